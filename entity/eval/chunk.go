package eval

import (
	"slices"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// # Large deletions
//
// A deletion may change more entities than Config.MaxCascade, or more than
// maxCascadeBytes, besides those that its transaction names. It is then applied in
// parts. Each part is a transaction of its own, with a revision; other writes
// may come in between. The last part is the transaction as it was submitted.
//
// A part deletes entities that go with the named ones, each after every entity
// that refers to it, and clears references to them. It changes no entity that
// the transaction names. The conditions of the transaction are checked for every
// part, and nothing is changed when one fails.
//
// Readers and watches may see before the last part:
//   - Some entities that go with the deleted one are gone, and some references
//     are cleared. The named entities all exist, unchanged.
//   - At no revision does a reference lead nowhere.
//   - Some entities of a lease that ends are gone, and the lease can neither be
//     renewed nor get new entities.
//
// When the server is killed, the caller gives up, or a condition fails in
// between, this state stays. The store does not resume the deletion of an entity:
// the entity still exists, and the caller must delete it again. The expirer of any
// server ends a lease that was ending.
//
// A deletion that a restricting reference forbids is refused before its first
// part. Another part may be refused, and earlier ones stay, if such a reference
// is made meanwhile, if a project still has entities, or if clearing a reference
// would leave an entity invalid.
//
// A request id belongs to the last part: a repeated request continues with what is
// left, or is answered with the outcome.

// chunker collects one part of a large deletion.
type chunker struct {
	deletion
	named   map[Key]bool // entities that the transaction names; they belong to no part
	path    map[Key]bool // the entities that are being visited
	stuck   map[Key]bool // entities that cannot be deleted in this part
	blocked error        // a reference that keeps one of them
}

// chunk returns a part of a deletion that is too large for one transaction.
func (del *deletion) chunk(t *Txn) (*Draft, error) {
	c := &chunker{
		deletion: deletion{e: del.e, v: del.v, rev: del.rev, now: del.now},
		named:    map[Key]bool{}, path: map[Key]bool{}, stuck: map[Key]bool{},
	}
	c.d = &Draft{byKey: map[Key]*Change{}, taken: map[UniqueKey]string{}, partial: true}
	var roots []Key
	for i := range t.Req.Ops {
		op := &t.Req.Ops[i]
		k := KeyOf(&op.Record)
		if c.named[k] = true; op.Type == opDelete {
			roots = append(roots, k)
		}
	}
	err := c.fill(t, roots)
	if err == nil || err == errLarge { // the part is full
		err = c.prune()
	}
	if err != nil {
		return nil, err
	}
	switch {
	case len(c.d.Changes) > 0:
		return c.d, nil
	case c.blocked != nil:
		return nil, c.blocked
	}
	return nil, errs.New(errs.FailedPrecondition, "more than %d entities would have to be deleted together: they refer to each other in circles, or to what the transaction changes", del.e.maxCascade).
		WithHint("delete some of them first")
}

// fill adds entities until the part is full; errLarge reports that.
func (c *chunker) fill(t *Txn, roots []Key) error {
	for i, k := range roots {
		if err := c.loadAround(roots[i:]); err != nil {
			return err
		}
		if _, err := c.visit(k); err != nil {
			return err
		}
	}
	if t.EndLease == "" {
		return nil
	}
	c.d.endsLease = t.EndLease
	members, _, err := c.v.leaseMembers(t.EndLease)
	if err != nil {
		return err
	}
	for i := range members {
		if err := c.remove(members[i:]); err != nil {
			return err
		}
	}
	return nil
}

// remove visits the first of keys and deletes it if no remaining entity refers
// to it. errLarge: the part is full.
func (c *chunker) remove(keys []Key) error {
	if err := c.load(keys); err != nil {
		return err
	}
	if err := c.loadAround(keys); err != nil {
		return err
	}
	free, err := c.visit(keys[0])
	if err != nil || !free {
		return err
	}
	return c.delete(keys[0])
}

// visit deletes the entities that go with k and clears the references to k, as
// far as the part has room. It reports whether k itself may be deleted.
func (c *chunker) visit(k Key) (free bool, err error) {
	refs, more, err := c.v.refsTo(k)
	if err != nil {
		return false, err
	}
	c.path[k] = true
	defer delete(c.path, k)
	list := sortedRefs(refs)
	var cascade []Key
	for _, r := range list {
		if refs[r] == schema.Cascade && c.d.stillRefers(r, k) && !c.path[r.From] && !c.named[r.From] && !c.stuck[r.From] {
			cascade = append(cascade, r.From)
		}
	}
	for i := range cascade {
		if err := c.remove(cascade[i:]); err != nil {
			return false, err
		}
	}
	others := slices.DeleteFunc(slices.Clone(list), func(r RefID) bool { return c.named[r.From] })
	if err := c.clearEach(others, refs, k); err != nil {
		return false, err
	}
	free = !more
	for _, r := range list {
		if !c.d.stillRefers(r, k) {
			continue
		}
		switch {
		case c.named[r.From]:
			free = false
		case refs[r] == schema.Cascade:
			// prune decides whether entities in a circle can be deleted
			// together.
			free = free && c.path[r.From]
		default:
			if free = false; c.blocked == nil {
				c.blocked = ErrInUse(k, r)
			}
		}
	}
	if !free {
		c.stuck[k] = true
	}
	return free, nil
}

// prune removes from the part the entities to which others still refer: members
// of circles that did not fit.
func (c *chunker) prune() error {
	for again := true; again; {
		again = false
		kept := c.d.Changes[:0]
		for _, ch := range c.d.Changes {
			keep := true
			if ch.New == nil {
				refs, _, err := c.v.refsTo(ch.key)
				if err != nil {
					return err
				}
				for r := range refs {
					keep = keep && !c.d.stillRefers(r, ch.key)
				}
			}
			if keep {
				kept = append(kept, ch)
			} else {
				delete(c.d.byKey, ch.key)
				again = true
			}
		}
		c.d.Changes = kept
	}
	return nil
}
