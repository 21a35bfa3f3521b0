package eval

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
	"time"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// Short names of the operations.
const (
	opCreate       = entity.OpCreate
	opUpdateSpec   = entity.OpUpdateSpec
	opUpdateStatus = entity.OpUpdateStatus
	opDelete       = entity.OpDelete
	opCheck        = entity.OpCheck
	opAdd          = entity.OpAdd
)

// projectKind is the kind that Meta.Project refers to, if the store has it.
const projectKind = "project"

// Change is what a transaction does to one entity.
type Change struct {
	key      Key
	kind     *schema.Kind
	Old, New *Object // nil: absent

	Departed []schema.IndexEntry // the indexed values that the change removes, if it is accepted
}

// Draft is the effect of one transaction, if it is accepted.
type Draft struct {
	Changes    []*Change // in the order of the log
	byKey      map[Key]*Change
	freed      []UniqueKey
	taken      map[UniqueKey]string
	checked    map[Key]*schema.Record
	endedLease schema.LeaseID // the lease is deleted
	endsLease  schema.LeaseID // the lease has ended, but has entities left

	// partial: changes of a transaction too large to be applied at once; they
	// precede it.
	partial bool

	repeat *Reply // the outcome of an earlier transaction with the same request id
}

// evaluate decides about t on the state v, without changing v. The error is
// errMiss if more must be loaded first; any other error is the client's.
//
// Conditions are checked against the state before the transaction, references
// and uniqueness against the state after it, so that the order of operations
// does not matter.
func (e *Evaluator) evaluate(v *View, t *Txn, rev schema.Revision, now time.Time) (*Draft, error) {
	id := t.Req.RequestID
	if id == "" {
		return e.decide(v, t, rev, now)
	}
	r, known := v.Replies[id]
	if !known && t.guarded {
		// A repeated transaction is certainly rejected, so only rejected ones
		// need a lookup.
		d, err := e.decide(v, t, rev, now)
		if err == nil || err == errMiss {
			return d, err
		}
	}
	if !known {
		add(&v.Missing.Replies, id)
		return nil, errMiss
	}
	if r == nil {
		return e.decide(v, t, rev, now)
	}
	if !bytes.Equal(r.Hash, t.hash) {
		return nil, errs.New(errs.InvalidArgument, "request id %q was used for another transaction", id)
	}
	return &Draft{repeat: r}, nil
}

// decide is evaluate for a transaction that is not a repetition.
func (e *Evaluator) decide(v *View, t *Txn, rev schema.Revision, now time.Time) (*Draft, error) {
	d := &Draft{byKey: make(map[Key]*Change, len(t.Req.Ops)), taken: map[UniqueKey]string{}}
	del := &deletion{e: e, v: v, d: d, rev: rev, now: now}
	var err error
	if t.EndLease != "" {
		err = del.endLease(t)
	} else if err = e.evalOps(v, t, d, rev, now); err == nil {
		err = del.all()
	}
	if err == errLarge && t.chunked {
		if d, err = del.chunk(t); err != nil {
			return nil, err
		}
	}
	if err != nil {
		return nil, err
	}
	if err := e.evalRefs(v, d); err != nil {
		return nil, err
	}
	if err := e.evalUnique(v, d); err != nil {
		return nil, err
	}
	return d, nil
}

func (d *Draft) change(k Key, kind *schema.Kind, old *Object) *Change {
	c, ok := d.byKey[k]
	if !ok {
		c = &Change{key: k, kind: kind, Old: old, New: old}
		d.byKey[k] = c
		d.Changes = append(d.Changes, c)
	}
	return c
}

// evalOps checks the conditions and makes the new versions.
func (e *Evaluator) evalOps(v *View, t *Txn, d *Draft, rev schema.Revision, now time.Time) error {
	miss := false
	for i := range t.Req.Ops {
		op := &t.Req.Ops[i]
		k := KeyOf(&op.Record)
		cur, err := v.object(k)
		if err != nil {
			miss = true // collect the other misses too
			continue
		}
		if err := checkCondition(op, k, cur); err != nil {
			return err
		}
		switch op.Type {
		case opCheck:
			if cur != nil {
				if d.checked == nil {
					d.checked = map[Key]*schema.Record{}
				}
				d.checked[k] = cur.Rec
			}
			continue
		case opDelete:
			e.ExtractOld(t.kinds[i], cur)
			d.change(k, t.kinds[i], cur).New = nil
			continue
		}
		c := d.change(k, t.kinds[i], cur)
		rec := schema.Record{Kind: k.Kind, Meta: schema.Meta{ID: op.Record.ID, Project: op.Record.Project, CreateRevision: rev, CreatedAt: now}}
		if c.New != nil {
			rec = *c.New.Rec
		}
		rec.Revision, rec.UpdatedAt = rev, now
		if op.Type == opAdd {
			if err := applyAddition(op.Add, t.kinds[i], &rec); err != nil {
				return err
			}
			c.New = &Object{Rec: &rec}
			continue
		}
		if op.Type != opUpdateStatus {
			rec.Name, rec.Labels, rec.Lease, rec.Spec, rec.SpecRevision = op.Record.Name, op.Record.Labels, op.Record.Lease, op.Record.Spec, rev
		}
		if op.Type != opUpdateSpec {
			rec.Status, rec.StatusRevision = op.Record.Status, rev
		}
		c.New = &Object{Rec: &rec}
		// The values extracted from the submitted record are valid if the half
		// that this operation does not write is the current one.
		if ext := t.exts[i]; ext != nil && (op.Type == opCreate || sameInputs(&rec, &op.Record)) {
			c.New.Ext = ext
		}
	}
	if miss {
		return errMiss
	}
	for _, c := range d.Changes {
		if c.New == nil {
			continue
		}
		e.ExtractOld(c.kind, c.Old)
		if err := ensureExtracted(c.kind, c.New); err != nil {
			return err
		}
		lease := c.New.Rec.Lease
		if lease == "" || c.Old != nil && c.Old.Rec.Lease == lease {
			continue
		}
		l, err := v.lease(lease)
		if err != nil {
			return err
		}
		if !l.Exists || l.Ended {
			return about(errs.New(errs.FailedPrecondition, "lease %s of %s %s has lapsed", lease, c.key.Kind, c.key.ID), c.key).With("attr", "meta.lease")
		}
	}
	return nil
}

// applyAddition applies an addition to rec, whose revision becomes the
// transaction's.
func applyAddition(add *entity.Addition, kind *schema.Kind, rec *schema.Record) error {
	attr, k := kind.Attr(add.Attr), KeyOf(rec)
	sum, err := attr.AddInt(rec, add.Delta)
	if err != nil {
		return err
	}
	for _, b := range []struct {
		limit *int64
		over  bool
		word  string
	}{{add.Max, add.Max != nil && sum > *add.Max, "most"}, {add.Min, add.Min != nil && sum < *add.Min, "least"}} {
		if b.over {
			return about(errs.New(errs.ResourceExhausted, "%s of %s %s is %d; with %+d it would be %d, and %d is the %s",
				add.Attr, k.Kind, k.ID, sum-add.Delta, add.Delta, sum, *b.limit, b.word), k).
				With("attr", add.Attr).With("value", strconv.FormatInt(sum-add.Delta, 10)).With("limit", strconv.FormatInt(*b.limit, 10))
		}
	}
	touch(attr, rec)
	return nil
}

// touch sets the revision of the half that an attribute is in to rec's.
func touch(attr *schema.Attr, rec *schema.Record) {
	if attr.InSpec() {
		rec.SpecRevision = rec.Revision
	} else {
		rec.StatusRevision = rec.Revision
	}
}

// sameInputs reports whether everything that extraction looks at is equal.
func sameInputs(a, b *schema.Record) bool {
	if a.Project != b.Project || a.Name != b.Name || len(a.Labels) != len(b.Labels) || !bytes.Equal(a.Spec, b.Spec) || !bytes.Equal(a.Status, b.Status) {
		return false
	}
	for k, v := range a.Labels {
		if w, ok := b.Labels[k]; !ok || v != w {
			return false
		}
	}
	return true
}

// ensureExtracted fills o.ext.
func ensureExtracted(kind *schema.Kind, o *Object) error {
	if o.Ext != nil {
		return nil
	}
	ext, err := Extract(kind, o.Rec)
	if err != nil {
		return err
	}
	o.Ext = ext
	return nil
}

// ExtractOld fills o.ext of a version that is about to be replaced. A version
// that is not valid today must still be changeable and deletable.
func (e *Evaluator) ExtractOld(kind *schema.Kind, o *Object) {
	if o == nil || ensureExtracted(kind, o) == nil {
		return
	}
	e.logger.Warn("stored entity is not valid", "kind", o.Rec.Kind, "id", o.Rec.ID, "revision", o.Rec.Revision)
	o.Ext = &schema.Extracted{}
}

func checkCondition(op *entity.Op, k Key, cur *Object) error {
	if op.Type == opCreate || op.Type == opCheck && op.If == 0 {
		if cur != nil {
			return about(errs.New(errs.AlreadyExists, "%s %s exists already", k.Kind, k.ID), k).With("attr", "meta.id")
		}
		return nil
	}
	if cur == nil {
		return NotFound(k)
	}
	switch op.Type {
	case opUpdateSpec:
		if p := op.Record.Project; p != "" && p != cur.Rec.Project {
			return about(errs.New(errs.InvalidArgument, "the project of %s %s cannot change", k.Kind, k.ID), k).With("attr", "meta.project")
		}
		if cur.Rec.SpecRevision != op.If {
			return revisionChanged(k, "spec_revision", op.If, cur.Rec.SpecRevision)
		}
	case opUpdateStatus:
		if cur.Rec.StatusRevision != op.If {
			return revisionChanged(k, "status_revision", op.If, cur.Rec.StatusRevision)
		}
	case opAdd:
	default:
		if cur.Rec.Revision != op.If {
			return revisionChanged(k, "revision", op.If, cur.Rec.Revision)
		}
	}
	return nil
}

// evalRefs checks that new references lead to existing entities.
func (e *Evaluator) evalRefs(v *View, d *Draft) error {
	_, haveProjects := e.Kinds[projectKind]
	miss := false
	check := func(c *Change, target Key, attr string) error {
		var ok bool
		var err error
		if t, changed := d.byKey[target]; changed {
			ok = t.New != nil
		} else if ok, err = v.present(target); err != nil {
			miss = true
			return nil
		}
		if !ok {
			return about(errs.New(errs.FailedPrecondition, "%s of %s %s: %s %q does not exist", attr, c.key.Kind, c.key.ID, target.Kind, target.ID), c.key).
				With("attr", attr)
		}
		return nil
	}
	for _, c := range d.Changes {
		if c.New == nil {
			continue
		}
		if c.Old == nil && haveProjects && c.New.Rec.Project != "" {
			if err := check(c, Key{projectKind, string(c.New.Rec.Project)}, "meta.project"); err != nil {
				return err
			}
		}
		for _, r := range c.New.Ext.Refs {
			if c.Old != nil && slices.Contains(c.Old.Ext.Refs, r) {
				continue
			}
			if err := check(c, Key{r.Kind, string(r.ID)}, r.Attr); err != nil {
				return err
			}
		}
	}
	if miss {
		return errMiss
	}
	return nil
}

// evalUnique checks that no other entity has the new names and unique values.
func (e *Evaluator) evalUnique(v *View, d *Draft) error {
	freed := map[UniqueKey]bool{}
	for _, c := range d.Changes {
		if c.Old == nil {
			continue
		}
		for _, u := range uniques(c.Old.Rec, c.Old.Ext) {
			freed[u] = true
		}
	}
	miss := false
	for _, c := range d.Changes {
		if c.New == nil {
			continue
		}
		for _, u := range uniques(c.New.Rec, c.New.Ext) {
			owner, again := d.taken[u]
			if !again && !freed[u] {
				var err error
				if owner, err = v.owner(u); err != nil {
					miss = true
					continue
				}
			}
			if owner != "" && owner != c.key.ID {
				return errTaken(c.key, u, owner)
			}
			d.taken[u] = c.key.ID
		}
	}
	if miss {
		return errMiss
	}
	for u := range freed {
		if _, ok := d.taken[u]; !ok {
			d.freed = append(d.freed, u)
		}
	}
	return nil
}

func errTaken(k Key, u UniqueKey, owner string) error {
	what := u.Attr
	value := u.Value
	if u.Attr == AttrName {
		what = "name"
	}
	if strings.ToValidUTF8(value, "") != value {
		value = "…"
	}
	return about(errs.New(errs.AlreadyExists, "%s %q is taken by %s %s", what, value, k.Kind, owner), k).With("attr", u.Attr).With("owner", owner)
}

func compareKeys(a, b Key) int {
	if c := strings.Compare(a.Kind, b.Kind); c != 0 {
		return c
	}
	return strings.Compare(a.ID, b.ID)
}
