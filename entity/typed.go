package entity

import (
	"context"
	"fmt"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// ObjectPtr is satisfied by the pointer to a generated entity type T.
type ObjectPtr[T any] interface {
	*T
	schema.Object
}

func kindOf[T any, P ObjectPtr[T]]() *schema.Kind { return P(new(T)).EntityKind() }

// Decode turns a record of T's kind into a *T.
func Decode[T any, P ObjectPtr[T]](r *schema.Record) (P, error) {
	o, err := kindOf[T, P]().Decode(r)
	if err != nil {
		return nil, err
	}
	p, ok := o.(P)
	if !ok {
		return nil, errs.New(errs.Internal, "record %s %s decoded to %T", r.Kind, r.ID, o)
	}
	return p, nil
}

// Get returns the entity of T's kind with the given id:
//
//	sb, err := entity.Get[sandbox.Sandbox](ctx, store, id)
func Get[T any, P ObjectPtr[T], I ~string](ctx context.Context, r Reader, id I) (P, error) {
	rec, err := r.Get(ctx, kindOf[T, P]().Name, schema.ID(id))
	if err != nil {
		return nil, err
	}
	return Decode[T, P](&rec)
}

// ByName returns the entity of T's kind with the given name in a project.
func ByName[T any, P ObjectPtr[T]](ctx context.Context, r Reader, project schema.ID, name string) (P, error) {
	k := kindOf[T, P]()
	page, err := r.List(ctx, Query{Kind: k.Name, Project: project, Name: name, Limit: 1})
	if err != nil {
		return nil, err
	}
	if name == "" || len(page.Records) == 0 {
		return nil, errs.New(errs.NotFound, "%s %q does not exist", k.Name, name).With("kind", k.Name).With("name", name)
	}
	return Decode[T, P](&page.Records[0])
}

// Where returns the query for entities whose attribute attr, which must be
// indexed, is value.
func Where[V ~string](attr string, value V) Query {
	return Query{Index: []IndexMatch{{Attr: attr, Op: IndexEq, Value: schema.EncodeIndexString(string(value))}}}
}

// List returns every entity of T's kind that q selects (List sets q.Kind),
// following pages, and the token to watch from.
func List[T any, P ObjectPtr[T]](ctx context.Context, r Reader, q Query) ([]P, schema.Token, error) {
	q.Kind = kindOf[T, P]().Name
	var out []P
	for {
		page, err := r.List(ctx, q)
		if err != nil {
			return nil, schema.Token{}, err
		}
		for i := range page.Records {
			p, err := Decode[T, P](&page.Records[i])
			if err != nil {
				return nil, schema.Token{}, err
			}
			out = append(out, p)
		}
		if page.Cursor == "" {
			return out, page.Token, nil
		}
		q.Cursor = page.Cursor
	}
}

// CreateOp, UpdateSpecOp, UpdateStatusOp and DeleteOp make the operation for a
// transaction from a typed object; the condition is the revision the object
// was read at.
func CreateOp(o schema.Object) (Op, error) { return op(OpCreate, o) }

// UpdateSpecOp replaces name, labels, lease and spec.
func UpdateSpecOp(o schema.Object) (Op, error) { return op(OpUpdateSpec, o) }

// UpdateStatusOp replaces the status.
func UpdateStatusOp(o schema.Object) (Op, error) { return op(OpUpdateStatus, o) }

// DeleteOp deletes o if it is unchanged since it was read.
func DeleteOp(o schema.Object) (Op, error) { return op(OpDelete, o) }

// CheckOp fails the transaction if o changed since it was read.
func CheckOp(o schema.Object) (Op, error) { return op(OpCheck, o) }

func op(t OpType, o schema.Object) (Op, error) {
	m := o.GetMeta()
	if m.ID == "" {
		if t != OpCreate {
			return Op{}, errs.New(errs.InvalidArgument, "%s without an id", o.EntityKind().Name)
		}
		m.ID = schema.NewID(o.EntityKind().Prefix)
	}
	if t == OpDelete || t == OpCheck {
		return Op{Type: t, Record: schema.Record{Kind: o.EntityKind().Name, Meta: *m}, If: m.Revision}, nil
	}
	rec, err := o.EntityKind().Encode(o)
	if err != nil {
		return Op{}, err
	}
	op := Op{Type: t, Record: *rec}
	switch t {
	case OpUpdateSpec:
		op.If = m.SpecRevision
	case OpUpdateStatus:
		op.If = m.StatusRevision
	}
	return op, nil
}

func apply(ctx context.Context, s Store, t OpType, o schema.Object) error {
	op, err := op(t, o)
	if err != nil {
		return err
	}
	res, err := s.Txn(ctx, TxnRequest{Ops: []Op{op}})
	if err != nil {
		return err
	}
	if len(res.Records) != 1 {
		return fmt.Errorf("store returned %d records for one operation", len(res.Records))
	}
	*o.GetMeta() = res.Records[0].Meta
	return nil
}

// Create stores o, giving it an id if it has none, and sets its Meta.
func Create(ctx context.Context, s Store, o schema.Object) error { return apply(ctx, s, OpCreate, o) }

// UpdateSpec writes o's name, labels, lease and spec if they are unchanged in
// the store since o was read; Conflict otherwise. It sets o's Meta.
func UpdateSpec(ctx context.Context, s Store, o schema.Object) error {
	return apply(ctx, s, OpUpdateSpec, o)
}

// UpdateStatus writes o's status under the same rule.
func UpdateStatus(ctx context.Context, s Store, o schema.Object) error {
	return apply(ctx, s, OpUpdateStatus, o)
}

// Delete deletes o if it is unchanged since it was read.
func Delete(ctx context.Context, s Store, o schema.Object) error { return apply(ctx, s, OpDelete, o) }

// Remove reads and deletes an entity, and retries when the entity changed in
// between (see Retry). NotFound if there is none.
func Remove[T any, P ObjectPtr[T], I ~string](ctx context.Context, s Store, id I) error {
	return Retry(ctx, func() error {
		o, err := Get[T, P](ctx, s, id)
		if err != nil {
			return err
		}
		return Delete(ctx, s, o)
	})
}

// AddOp returns the operation of an addition to the entity of a kind.
func AddOp[I ~string](kind *schema.Kind, id I, add Addition) Op {
	return Op{Type: OpAdd, Record: schema.Record{Kind: kind.Name, Meta: schema.Meta{ID: schema.ID(id)}}, Add: &add}
}

// Add adds to an integer attribute of the entity of T's kind with an id, and
// returns the entity with the sum. ResourceExhausted if the sum would be out of
// bounds.
//
//	q, err := entity.Add[quota.Quota](ctx, store, id, entity.Addition{Attr: quota.QuotaAttrUsed, Delta: 1, Max: &limit})
func Add[T any, P ObjectPtr[T], I ~string](ctx context.Context, s Store, id I, add Addition) (P, error) {
	res, err := s.Txn(ctx, TxnRequest{Ops: []Op{AddOp(kindOf[T, P](), id, add)}})
	if err != nil {
		return nil, err
	}
	if len(res.Records) != 1 {
		return nil, errs.New(errs.Internal, "the store returned %d records for one operation", len(res.Records))
	}
	return Decode[T, P](&res.Records[0])
}

// ModifySpec reads the entity, calls change and conditionally writes the spec.
// It retries when the entity changed in between (see Retry). change must depend
// only on its argument; its error ends the attempts and is returned.
func ModifySpec[T any, P ObjectPtr[T], I ~string](ctx context.Context, s Store, id I, change func(P) error) (P, error) {
	return modify[T, P](ctx, s, schema.ID(id), OpUpdateSpec, change)
}

// ModifyStatus is ModifySpec for the status.
func ModifyStatus[T any, P ObjectPtr[T], I ~string](ctx context.Context, s Store, id I, change func(P) error) (P, error) {
	return modify[T, P](ctx, s, schema.ID(id), OpUpdateStatus, change)
}

func modify[T any, P ObjectPtr[T]](ctx context.Context, s Store, id schema.ID, t OpType, change func(P) error) (P, error) {
	var o P
	err := Retry(ctx, func() (err error) {
		if o, err = Get[T, P](ctx, s, id); err != nil {
			return err
		}
		if err := change(o); err != nil {
			return Final(err)
		}
		return apply(ctx, s, t, o)
	})
	if err != nil {
		return nil, err
	}
	return o, nil
}
