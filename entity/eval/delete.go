package eval

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

const (
	// maxCascadeBytes bounds, like Config.MaxCascade, the changes of a deletion
	// besides the entities that its transaction names, in bytes. A larger
	// deletion is applied in several transactions (chunk.go).
	maxCascadeBytes = 16 << 20
	// minCascade is how many entities may be changed together however slow the
	// database is.
	minCascade = 100
	// loadAhead is how many entities a deletion loads at once.
	loadAhead = 250
)

// errLarge says that a deletion is beyond these bounds, errPartial that only a
// part of it was applied.
var (
	errLarge   = errors.New("too large for one transaction")
	errPartial = errors.New("applied in part")
)

// deletion follows the references to what a transaction deletes.
type deletion struct {
	e   *Evaluator
	v   *View
	d   *Draft
	rev schema.Revision
	now time.Time

	changed, bytes int // changes besides those that the transaction names
	seen           int // how many changes of the draft newlyDeleted has returned
}

// endLease deletes the entities of a lease.
func (del *deletion) endLease(t *Txn) error {
	l, err := del.v.lease(t.EndLease)
	if err != nil {
		add(&del.v.Missing.Ending, t.EndLease)
		return err
	}
	if !l.Exists || t.OnlyLapsed && !l.Lapsed {
		return errs.New(errs.NotFound, "lease %s does not exist", t.EndLease)
	}
	del.d.endedLease = t.EndLease
	members, more, err := del.v.leaseMembers(t.EndLease)
	if err != nil {
		return err
	}
	if more {
		return errLarge
	}
	if err := del.deleteEach(members); err != nil {
		return err
	}
	return del.all()
}

// all follows the references to the entities that the draft deletes: first
// those that cascade, then, when all deleted entities are known, those that are
// cleared or restrict.
func (del *deletion) all() error {
	gone := del.newlyDeleted(nil)
	for i := 0; i < len(gone); i++ { // the list grows in the loop
		refs, more, err := del.v.refsTo(gone[i])
		if err != nil {
			return err
		}
		if more {
			return errLarge
		}
		if err := del.loadAround(gone[i:]); err != nil {
			return err
		}
		var cascade []Key
		for _, r := range sortedRefs(refs) {
			if refs[r] == schema.Cascade && del.d.stillRefers(r, gone[i]) {
				cascade = append(cascade, r.From)
			}
		}
		if err := del.deleteEach(cascade); err != nil {
			return err
		}
		gone = del.newlyDeleted(gone)
	}
	for i, k := range gone {
		refs, _, err := del.v.refsTo(k)
		if err != nil {
			return err
		}
		list := sortedRefs(refs)
		for _, r := range list {
			if refs[r] != schema.Clear && del.d.stillRefers(r, k) {
				return ErrInUse(k, r)
			}
		}
		if err := del.loadAround(gone[i:]); err != nil {
			return err
		}
		if err := del.clearEach(list, refs, k); err != nil {
			return err
		}
	}
	return del.projects()
}

// newlyDeleted returns the entities that the draft deletes, except those that it
// returned before.
func (del *deletion) newlyDeleted(before []Key) []Key {
	for _, c := range del.d.Changes[del.seen:] {
		if c.New == nil {
			before = append(before, c.key)
		}
	}
	del.seen = len(del.d.Changes)
	return before
}

func sortedRefs(refs map[RefID]schema.OnDelete) []RefID {
	out := make([]RefID, 0, len(refs))
	for r := range refs {
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b RefID) int { return cmp.Or(compareKeys(a.From, b.From), cmp.Compare(a.Attr, b.Attr)) })
	return out
}

// ErrInUse says that a reference keeps an entity from being deleted.
func ErrInUse(k Key, r RefID) *errs.Error {
	return about(errs.New(errs.FailedPrecondition, "%s %s is in use by %s %s (%s)", k.Kind, k.ID, r.From.Kind, r.From.ID, r.Attr), k).
		With("attr", r.Attr).WithHint("delete %s %s first", r.From.Kind, r.From.ID)
}

// stillRefers reports whether the reference r to target exists after d.
func (d *Draft) stillRefers(r RefID, target Key) bool {
	c, ok := d.byKey[r.From]
	if !ok {
		return true
	}
	return c.New != nil && slices.ContainsFunc(c.New.Ext.Refs, func(e schema.RefEntry) bool {
		return e.Attr == r.Attr && e.Kind == target.Kind && string(e.ID) == target.ID
	})
}

// load returns errMiss unless the first of keys is loaded, after recording
// which of them to load next, with the references to them.
func (del *deletion) load(keys []Key) error {
	missing := 0
	for i, k := range keys {
		if missing >= loadAhead || i > 0 && missing == 0 {
			break
		}
		if del.want(k, true) {
			missing++
		}
	}
	if missing > 0 {
		return errMiss
	}
	return nil
}

// loadAround returns errMiss unless every entity is loaded that is deleted with
// the first of keys, or that loses a reference to it. Before, it records the
// entities to load next.
func (del *deletion) loadAround(keys []Key) error {
	missing := 0
	for i, k := range keys {
		if _, ok := del.v.Referrers[k]; !ok || missing >= loadAhead || i > 0 && missing == 0 {
			break
		}
		refs, _, err := del.v.refsTo(k)
		if err != nil {
			return err
		}
		for r, policy := range refs {
			if missing >= loadAhead {
				break
			}
			if policy != schema.Restrict && del.d.stillRefers(r, k) && del.want(r.From, policy == schema.Cascade) {
				missing++
			}
		}
	}
	if missing > 0 {
		return errMiss
	}
	return nil
}

// want records that an entity must be loaded, with the references to it or
// without, and reports whether any of that is missing.
func (del *deletion) want(k Key, withRefs bool) bool {
	_, object := del.v.Objects[k]
	if !object {
		add(&del.v.Missing.Objects, k)
	}
	if !withRefs {
		return !object
	}
	_, refs := del.v.Referrers[k]
	if !refs {
		add(&del.v.Missing.Referrers, k)
	}
	return !object || !refs
}

// deleteEach adds the deletion of keys to the draft.
func (del *deletion) deleteEach(keys []Key) error {
	for i, k := range keys {
		if err := del.load(keys[i:]); err != nil {
			return err
		}
		if err := del.delete(k); err != nil {
			return err
		}
	}
	return nil
}

// delete adds the deletion of k, which must be loaded.
func (del *deletion) delete(k Key) error {
	cur := del.v.Objects[k]
	if cur == nil {
		return nil
	}
	kind, err := del.e.knownKind(k)
	if err != nil {
		return err
	}
	if c := del.d.byKey[k]; c == nil {
		if err := del.count(cur); err != nil {
			return err
		}
	}
	del.e.ExtractOld(kind, cur)
	del.d.change(k, kind, cur).New = nil
	return nil
}

// count counts the change of an entity that the transaction does not name
// toward the bounds.
func (del *deletion) count(o *Object) error {
	del.changed++
	if del.bytes += len(o.Raw); del.changed > del.e.maxCascade || del.bytes > del.e.maxBytes {
		return errLarge
	}
	// A slow machine changes fewer, so that the attempt ends in time.
	if del.changed > minCascade && time.Since(del.v.began) > del.e.attempt/4 {
		return errLarge
	}
	return nil
}

// clearEach removes the references to target whose policy is clear.
func (del *deletion) clearEach(list []RefID, refs map[RefID]schema.OnDelete, target Key) error {
	for _, r := range list {
		if refs[r] != schema.Clear || !del.d.stillRefers(r, target) {
			continue
		}
		if _, err := del.v.object(r.From); err != nil {
			return err
		}
		if err := del.clear(r, target); err != nil {
			return err
		}
	}
	return nil
}

// clear removes the reference r to target. The referrer must be loaded.
func (del *deletion) clear(r RefID, target Key) error {
	cur := del.v.Objects[r.From]
	if cur == nil {
		return nil
	}
	kind, err := del.e.knownKind(r.From)
	if err != nil {
		return err
	}
	if del.d.byKey[r.From] == nil {
		if err := del.count(cur); err != nil {
			return err
		}
	}
	attr := kind.Attr(r.Attr)
	if attr == nil {
		return errs.New(errs.Internal, "%s has a reference %s that its kind does not describe", kind.Name, r.Attr)
	}
	del.e.ExtractOld(kind, cur)
	c := del.d.change(r.From, kind, cur)
	rec := *c.New.Rec
	rec.Revision, rec.UpdatedAt = del.rev, del.now
	if err := attr.ClearRef(&rec, schema.ID(target.ID)); err != nil {
		return err
	}
	touch(attr, &rec)
	o := &Object{Rec: &rec}
	if err := ensureExtracted(kind, o); err != nil {
		// The entity is not valid today, with or without the reference.
		return about(errs.New(errs.FailedPrecondition, "%s %s is in use by %s %s, which is not valid without %s: %w", target.Kind, target.ID, r.From.Kind, r.From.ID, r.Attr, err), target).
			With("attr", r.Attr).WithHint("mend or delete %s %s first", r.From.Kind, r.From.ID)
	}
	c.New = o
	return nil
}

// projects checks that deleted projects have no entities left.
func (del *deletion) projects() error {
	for _, c := range del.d.Changes {
		if c.New != nil || c.key.Kind != projectKind {
			continue
		}
		members, err := del.v.projectMembers(c.key.ID)
		if err != nil {
			return err
		}
		for _, k := range members {
			if m, ok := del.d.byKey[k]; !ok || m.New != nil {
				return about(errs.New(errs.FailedPrecondition, "project %s still has %s %s", c.key.ID, k.Kind, k.ID), c.key).
					With("attr", "meta.project").WithHint("delete what the project has first")
			}
		}
	}
	return nil
}

// knownKind returns the kind of an entity that a deletion reaches.
func (e *Evaluator) knownKind(k Key) (*schema.Kind, error) {
	kind, err := e.Kind(k.Kind)
	if err != nil {
		return nil, errs.New(errs.FailedPrecondition, "%s %s is of a kind that this server does not know", k.Kind, k.ID)
	}
	return kind, nil
}
