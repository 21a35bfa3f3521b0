package pgstore

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
	s   *Store
	v   *view
	d   *draft
	rev schema.Revision
	now time.Time

	changed, bytes int // changes besides those that the transaction names
	seen           int // how many changes of the draft newlyDeleted has returned
}

// endLease deletes the entities of a lease.
func (del *deletion) endLease(t *txn) error {
	l, err := del.v.lease(t.endLease)
	if err != nil {
		add(&del.v.missing.ending, t.endLease)
		return err
	}
	if !l.exists || t.onlyLapsed && !l.lapsed {
		return errs.New(errs.NotFound, "lease %s does not exist", t.endLease)
	}
	del.d.endedLease = t.endLease
	members, more, err := del.v.leaseMembers(t.endLease)
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
		var cascade []key
		for _, r := range sortedRefs(refs) {
			if refs[r] == schema.Cascade && del.d.stillRefers(r, gone[i]) {
				cascade = append(cascade, r.from)
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
				return errInUse(k, r)
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
func (del *deletion) newlyDeleted(before []key) []key {
	for _, c := range del.d.changes[del.seen:] {
		if c.new == nil {
			before = append(before, c.key)
		}
	}
	del.seen = len(del.d.changes)
	return before
}

func sortedRefs(refs map[refID]schema.OnDelete) []refID {
	out := make([]refID, 0, len(refs))
	for r := range refs {
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b refID) int { return cmp.Or(compareKeys(a.from, b.from), cmp.Compare(a.attr, b.attr)) })
	return out
}

func errInUse(k key, r refID) *errs.Error {
	return about(errs.New(errs.FailedPrecondition, "%s %s is in use by %s %s (%s)", k.kind, k.id, r.from.kind, r.from.id, r.attr), k).
		With("attr", r.attr).WithHint("delete %s %s first", r.from.kind, r.from.id)
}

// stillRefers reports whether the reference r to target exists after d.
func (d *draft) stillRefers(r refID, target key) bool {
	c, ok := d.byKey[r.from]
	if !ok {
		return true
	}
	return c.new != nil && slices.ContainsFunc(c.new.ext.Refs, func(e schema.RefEntry) bool {
		return e.Attr == r.attr && e.Kind == target.kind && string(e.ID) == target.id
	})
}

// load returns errMiss unless the first of keys is loaded, after recording
// which of them to load next, with the references to them.
func (del *deletion) load(keys []key) error {
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
func (del *deletion) loadAround(keys []key) error {
	missing := 0
	for i, k := range keys {
		if _, ok := del.v.referrers[k]; !ok || missing >= loadAhead || i > 0 && missing == 0 {
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
			if policy != schema.Restrict && del.d.stillRefers(r, k) && del.want(r.from, policy == schema.Cascade) {
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
func (del *deletion) want(k key, withRefs bool) bool {
	_, object := del.v.objects[k]
	if !object {
		add(&del.v.missing.objects, k)
	}
	if !withRefs {
		return !object
	}
	_, refs := del.v.referrers[k]
	if !refs {
		add(&del.v.missing.referrers, k)
	}
	return !object || !refs
}

// deleteEach adds the deletion of keys to the draft.
func (del *deletion) deleteEach(keys []key) error {
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
func (del *deletion) delete(k key) error {
	cur := del.v.objects[k]
	if cur == nil {
		return nil
	}
	kind, err := del.s.knownKind(k)
	if err != nil {
		return err
	}
	if c := del.d.byKey[k]; c == nil {
		if err := del.count(cur); err != nil {
			return err
		}
	}
	del.s.extractOld(kind, cur)
	del.d.change(k, kind, cur).new = nil
	return nil
}

// count counts the change of an entity that the transaction does not name
// toward the bounds.
func (del *deletion) count(o *object) error {
	del.changed++
	if del.bytes += len(o.raw); del.changed > del.s.cfg.MaxCascade || del.bytes > maxCascadeBytes {
		return errLarge
	}
	// A slow machine changes fewer, so that the attempt ends in time.
	if del.changed > minCascade && time.Since(del.v.began) > del.s.cfg.Attempt/4 {
		return errLarge
	}
	return nil
}

// clearEach removes the references to target whose policy is clear.
func (del *deletion) clearEach(list []refID, refs map[refID]schema.OnDelete, target key) error {
	for _, r := range list {
		if refs[r] != schema.Clear || !del.d.stillRefers(r, target) {
			continue
		}
		if _, err := del.v.object(r.from); err != nil {
			return err
		}
		if err := del.clear(r, target); err != nil {
			return err
		}
	}
	return nil
}

// clear removes the reference r to target. The referrer must be loaded.
func (del *deletion) clear(r refID, target key) error {
	cur := del.v.objects[r.from]
	if cur == nil {
		return nil
	}
	kind, err := del.s.knownKind(r.from)
	if err != nil {
		return err
	}
	if del.d.byKey[r.from] == nil {
		if err := del.count(cur); err != nil {
			return err
		}
	}
	attr := kind.Attr(r.attr)
	if attr == nil {
		return errs.New(errs.Internal, "%s has a reference %s that its kind does not describe", kind.Name, r.attr)
	}
	del.s.extractOld(kind, cur)
	c := del.d.change(r.from, kind, cur)
	rec := *c.new.rec
	rec.Revision, rec.UpdatedAt = del.rev, del.now
	if err := attr.ClearRef(&rec, schema.ID(target.id)); err != nil {
		return err
	}
	touch(attr, &rec)
	o := &object{rec: &rec}
	if err := ensureExtracted(kind, o); err != nil {
		// The entity is not valid today, with or without the reference.
		return about(errs.New(errs.FailedPrecondition, "%s %s is in use by %s %s, which is not valid without %s: %w", target.kind, target.id, r.from.kind, r.from.id, r.attr, err), target).
			With("attr", r.attr).WithHint("mend or delete %s %s first", r.from.kind, r.from.id)
	}
	c.new = o
	return nil
}

// projects checks that deleted projects have no entities left.
func (del *deletion) projects() error {
	for _, c := range del.d.changes {
		if c.new != nil || c.key.kind != projectKind {
			continue
		}
		members, err := del.v.projectMembers(c.key.id)
		if err != nil {
			return err
		}
		for _, k := range members {
			if m, ok := del.d.byKey[k]; !ok || m.new != nil {
				return about(errs.New(errs.FailedPrecondition, "project %s still has %s %s", c.key.id, k.kind, k.id), c.key).
					With("attr", "meta.project").WithHint("delete what the project has first")
			}
		}
	}
	return nil
}

// knownKind returns the kind of an entity that a deletion reaches.
func (s *Store) knownKind(k key) (*schema.Kind, error) {
	kind, err := s.kind(k.kind)
	if err != nil {
		return nil, errs.New(errs.FailedPrecondition, "%s %s is of a kind that this server does not know", k.kind, k.id)
	}
	return kind, nil
}
