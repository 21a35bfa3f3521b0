package pgstore

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

// change is what a transaction does to one entity.
type change struct {
	key      key
	kind     *schema.Kind
	old, new *object // nil: absent

	departed []schema.IndexEntry // the indexed values that the change removes, if it is accepted
}

// draft is the effect of one transaction, if it is accepted.
type draft struct {
	changes    []*change // in the order of the log
	byKey      map[key]*change
	freed      []uniqueKey
	taken      map[uniqueKey]string
	checked    map[key]*schema.Record
	endedLease schema.LeaseID // the lease is deleted
	endsLease  schema.LeaseID // the lease has ended, but has entities left

	// partial: changes of a transaction too large to be applied at once; they
	// precede it.
	partial bool

	repeat *reply // the outcome of an earlier transaction with the same request id
}

// evaluate decides about t on the state v, without changing v. The error is
// errMiss if more must be loaded first; any other error is the client's.
//
// Conditions are checked against the state before the transaction, references
// and uniqueness against the state after it, so that the order of operations
// does not matter.
func (s *Store) evaluate(v *view, t *txn, rev schema.Revision, now time.Time) (*draft, error) {
	id := t.req.RequestID
	if id == "" {
		return s.decide(v, t, rev, now)
	}
	r, known := v.replies[id]
	if !known && t.guarded {
		// A repeated transaction is certainly rejected, so only rejected ones
		// need a lookup.
		d, err := s.decide(v, t, rev, now)
		if err == nil || err == errMiss {
			return d, err
		}
	}
	if !known {
		add(&v.missing.replies, id)
		return nil, errMiss
	}
	if r == nil {
		return s.decide(v, t, rev, now)
	}
	if !bytes.Equal(r.hash, t.hash) {
		return nil, errs.New(errs.InvalidArgument, "request id %q was used for another transaction", id)
	}
	return &draft{repeat: r}, nil
}

// decide is evaluate for a transaction that is not a repetition.
func (s *Store) decide(v *view, t *txn, rev schema.Revision, now time.Time) (*draft, error) {
	d := &draft{byKey: make(map[key]*change, len(t.req.Ops)), taken: map[uniqueKey]string{}}
	del := &deletion{s: s, v: v, d: d, rev: rev, now: now}
	var err error
	if t.endLease != "" {
		err = del.endLease(t)
	} else if err = s.evalOps(v, t, d, rev, now); err == nil {
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
	if err := s.evalRefs(v, d); err != nil {
		return nil, err
	}
	if err := s.evalUnique(v, d); err != nil {
		return nil, err
	}
	return d, nil
}

func (d *draft) change(k key, kind *schema.Kind, old *object) *change {
	c, ok := d.byKey[k]
	if !ok {
		c = &change{key: k, kind: kind, old: old, new: old}
		d.byKey[k] = c
		d.changes = append(d.changes, c)
	}
	return c
}

// evalOps checks the conditions and makes the new versions.
func (s *Store) evalOps(v *view, t *txn, d *draft, rev schema.Revision, now time.Time) error {
	miss := false
	for i := range t.req.Ops {
		op := &t.req.Ops[i]
		k := keyOf(&op.Record)
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
					d.checked = map[key]*schema.Record{}
				}
				d.checked[k] = cur.rec
			}
			continue
		case opDelete:
			s.extractOld(t.kinds[i], cur)
			d.change(k, t.kinds[i], cur).new = nil
			continue
		}
		c := d.change(k, t.kinds[i], cur)
		rec := schema.Record{Kind: k.kind, Meta: schema.Meta{ID: op.Record.ID, Project: op.Record.Project, CreateRevision: rev, CreatedAt: now}}
		if c.new != nil {
			rec = *c.new.rec
		}
		rec.Revision, rec.UpdatedAt = rev, now
		if op.Type == opAdd {
			if err := applyAddition(op.Add, t.kinds[i], &rec); err != nil {
				return err
			}
			c.new = &object{rec: &rec}
			continue
		}
		if op.Type != opUpdateStatus {
			rec.Name, rec.Labels, rec.Lease, rec.Spec, rec.SpecRevision = op.Record.Name, op.Record.Labels, op.Record.Lease, op.Record.Spec, rev
		}
		if op.Type != opUpdateSpec {
			rec.Status, rec.StatusRevision = op.Record.Status, rev
		}
		c.new = &object{rec: &rec}
		// The values extracted from the submitted record are valid if the half
		// that this operation does not write is the current one.
		if ext := t.exts[i]; ext != nil && (op.Type == opCreate || sameInputs(&rec, &op.Record)) {
			c.new.ext = ext
		}
	}
	if miss {
		return errMiss
	}
	for _, c := range d.changes {
		if c.new == nil {
			continue
		}
		s.extractOld(c.kind, c.old)
		if err := ensureExtracted(c.kind, c.new); err != nil {
			return err
		}
		lease := c.new.rec.Lease
		if lease == "" || c.old != nil && c.old.rec.Lease == lease {
			continue
		}
		l, err := v.lease(lease)
		if err != nil {
			return err
		}
		if !l.exists || l.ended {
			return about(errs.New(errs.FailedPrecondition, "lease %s of %s %s has lapsed", lease, c.key.kind, c.key.id), c.key).With("attr", "meta.lease")
		}
	}
	return nil
}

// applyAddition applies an addition to rec, whose revision becomes the
// transaction's.
func applyAddition(add *entity.Addition, kind *schema.Kind, rec *schema.Record) error {
	attr, k := kind.Attr(add.Attr), keyOf(rec)
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
				add.Attr, k.kind, k.id, sum-add.Delta, add.Delta, sum, *b.limit, b.word), k).
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
func ensureExtracted(kind *schema.Kind, o *object) error {
	if o.ext != nil {
		return nil
	}
	ext, err := extract(kind, o.rec)
	if err != nil {
		return err
	}
	o.ext = ext
	return nil
}

// extractOld fills o.ext of a version that is about to be replaced. A version
// that is not valid today must still be changeable and deletable.
func (s *Store) extractOld(kind *schema.Kind, o *object) {
	if o == nil || ensureExtracted(kind, o) == nil {
		return
	}
	s.logger.Warn("stored entity is not valid", "kind", o.rec.Kind, "id", o.rec.ID, "revision", o.rec.Revision)
	o.ext = &schema.Extracted{}
}

func checkCondition(op *entity.Op, k key, cur *object) error {
	if op.Type == opCreate || op.Type == opCheck && op.If == 0 {
		if cur != nil {
			return about(errs.New(errs.AlreadyExists, "%s %s exists already", k.kind, k.id), k).With("attr", "meta.id")
		}
		return nil
	}
	if cur == nil {
		return notFound(k)
	}
	switch op.Type {
	case opUpdateSpec:
		if p := op.Record.Project; p != "" && p != cur.rec.Project {
			return about(errs.New(errs.InvalidArgument, "the project of %s %s cannot change", k.kind, k.id), k).With("attr", "meta.project")
		}
		if cur.rec.SpecRevision != op.If {
			return revisionChanged(k, "spec_revision", op.If, cur.rec.SpecRevision)
		}
	case opUpdateStatus:
		if cur.rec.StatusRevision != op.If {
			return revisionChanged(k, "status_revision", op.If, cur.rec.StatusRevision)
		}
	case opAdd:
	default:
		if cur.rec.Revision != op.If {
			return revisionChanged(k, "revision", op.If, cur.rec.Revision)
		}
	}
	return nil
}

// evalRefs checks that new references lead to existing entities.
func (s *Store) evalRefs(v *view, d *draft) error {
	_, haveProjects := s.kinds[projectKind]
	miss := false
	check := func(c *change, target key, attr string) error {
		var ok bool
		var err error
		if t, changed := d.byKey[target]; changed {
			ok = t.new != nil
		} else if ok, err = v.present(target); err != nil {
			miss = true
			return nil
		}
		if !ok {
			return about(errs.New(errs.FailedPrecondition, "%s of %s %s: %s %q does not exist", attr, c.key.kind, c.key.id, target.kind, target.id), c.key).
				With("attr", attr)
		}
		return nil
	}
	for _, c := range d.changes {
		if c.new == nil {
			continue
		}
		if c.old == nil && haveProjects && c.new.rec.Project != "" {
			if err := check(c, key{projectKind, string(c.new.rec.Project)}, "meta.project"); err != nil {
				return err
			}
		}
		for _, r := range c.new.ext.Refs {
			if c.old != nil && slices.Contains(c.old.ext.Refs, r) {
				continue
			}
			if err := check(c, key{r.Kind, string(r.ID)}, r.Attr); err != nil {
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
func (s *Store) evalUnique(v *view, d *draft) error {
	freed := map[uniqueKey]bool{}
	for _, c := range d.changes {
		if c.old == nil {
			continue
		}
		for _, u := range uniques(c.old.rec, c.old.ext) {
			freed[u] = true
		}
	}
	miss := false
	for _, c := range d.changes {
		if c.new == nil {
			continue
		}
		for _, u := range uniques(c.new.rec, c.new.ext) {
			owner, again := d.taken[u]
			if !again && !freed[u] {
				var err error
				if owner, err = v.owner(u); err != nil {
					miss = true
					continue
				}
			}
			if owner != "" && owner != c.key.id {
				return errTaken(c.key, u, owner)
			}
			d.taken[u] = c.key.id
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

func errTaken(k key, u uniqueKey, owner string) error {
	what := u.attr
	value := u.value
	if u.attr == attrName {
		what = "name"
	}
	if strings.ToValidUTF8(value, "") != value {
		value = "…"
	}
	return about(errs.New(errs.AlreadyExists, "%s %q is taken by %s %s", what, value, k.kind, owner), k).With("attr", u.attr).With("owner", owner)
}

func compareKeys(a, b key) int {
	if c := strings.Compare(a.kind, b.kind); c != 0 {
		return c
	}
	return strings.Compare(a.id, b.id)
}
