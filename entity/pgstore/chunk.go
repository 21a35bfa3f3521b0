package pgstore

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

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
	named   map[key]bool // entities that the transaction names; they belong to no part
	path    map[key]bool // the entities that are being visited
	stuck   map[key]bool // entities that cannot be deleted in this part
	blocked error        // a reference that keeps one of them
}

// chunk returns a part of a deletion that is too large for one transaction.
func (del *deletion) chunk(t *txn) (*draft, error) {
	c := &chunker{
		deletion: deletion{s: del.s, v: del.v, rev: del.rev, now: del.now},
		named:    map[key]bool{}, path: map[key]bool{}, stuck: map[key]bool{},
	}
	c.d = &draft{byKey: map[key]*change{}, taken: map[uniqueKey]string{}, partial: true}
	var roots []key
	for i := range t.req.Ops {
		op := &t.req.Ops[i]
		k := keyOf(&op.Record)
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
	case len(c.d.changes) > 0:
		return c.d, nil
	case c.blocked != nil:
		return nil, c.blocked
	}
	return nil, errs.New(errs.FailedPrecondition, "more than %d entities would have to be deleted together: they refer to each other in circles, or to what the transaction changes", del.s.cfg.MaxCascade).
		WithHint("delete some of them first")
}

// fill adds entities until the part is full; errLarge reports that.
func (c *chunker) fill(t *txn, roots []key) error {
	for i, k := range roots {
		if err := c.loadAround(roots[i:]); err != nil {
			return err
		}
		if _, err := c.visit(k); err != nil {
			return err
		}
	}
	if t.endLease == "" {
		return nil
	}
	c.d.endsLease = t.endLease
	members, _, err := c.v.leaseMembers(t.endLease)
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
func (c *chunker) remove(keys []key) error {
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
func (c *chunker) visit(k key) (free bool, err error) {
	refs, more, err := c.v.refsTo(k)
	if err != nil {
		return false, err
	}
	c.path[k] = true
	defer delete(c.path, k)
	list := sortedRefs(refs)
	var cascade []key
	for _, r := range list {
		if refs[r] == schema.Cascade && c.d.stillRefers(r, k) && !c.path[r.from] && !c.named[r.from] && !c.stuck[r.from] {
			cascade = append(cascade, r.from)
		}
	}
	for i := range cascade {
		if err := c.remove(cascade[i:]); err != nil {
			return false, err
		}
	}
	others := slices.DeleteFunc(slices.Clone(list), func(r refID) bool { return c.named[r.from] })
	if err := c.clearEach(others, refs, k); err != nil {
		return false, err
	}
	free = !more
	for _, r := range list {
		if !c.d.stillRefers(r, k) {
			continue
		}
		switch {
		case c.named[r.from]:
			free = false
		case refs[r] == schema.Cascade:
			// prune decides whether entities in a circle can be deleted
			// together.
			free = free && c.path[r.from]
		default:
			if free = false; c.blocked == nil {
				c.blocked = errInUse(k, r)
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
		kept := c.d.changes[:0]
		for _, ch := range c.d.changes {
			keep := true
			if ch.new == nil {
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
		c.d.changes = kept
	}
	return nil
}

// sqlClosure looks for a reference that restricts the deletion of an entity
// that goes with the given ones, and whose own entity is not deleted with them.
// The transaction may change the references of the entities that it names.
const sqlClosure = `with recursive gone(kind, id) as (
		select kind collate "C", id collate "C" from unnest($1::text[], $2::text[]) k(kind, id)
		union
		select r.kind, r.id from gone g join entity_ref r on r.target_kind = g.kind and r.target_id = g.id where r.on_delete = 'cascade'
	)
	select r.target_kind, r.target_id, r.kind, r.id, r.attr
	from gone g join entity_ref r on r.target_kind = g.kind and r.target_id = g.id
	where r.on_delete = 'restrict' and not exists (select from gone o where o.kind = r.kind and o.id = r.id)
		and not exists (select from unnest($3::text[], $4::text[]) o(kind, id) where o.kind = r.kind and o.id = r.id)
		and exists (select from entity e where e.kind = r.kind and e.id = r.id)
	limit 1`

// checkClosure refuses a deletion that cannot be completed before any part of
// it is applied.
func (s *Store) checkClosure(ctx context.Context, t *txn) error {
	limited, cancel := context.WithTimeout(ctx, maintenanceTimeout)
	defer cancel()
	var kinds, ids, namedKinds, namedIDs []string
	for i := range t.req.Ops {
		op := &t.req.Ops[i]
		if op.Type == opDelete {
			kinds, ids = append(kinds, op.Record.Kind), append(ids, string(op.Record.ID))
		}
		namedKinds, namedIDs = append(namedKinds, op.Record.Kind), append(namedIDs, string(op.Record.ID))
	}
	if t.endLease != "" {
		rows, err := s.pool.Query(limited, `select kind, id from entity where lease = $1`, string(t.endLease))
		if err != nil {
			return callError(ctx, err, "read the entities of a lease")
		}
		var kind, id string
		if _, err := pgx.ForEachRow(rows, []any{&kind, &id}, func() error { kinds, ids = append(kinds, kind), append(ids, id); return nil }); err != nil {
			return callError(ctx, err, "read the entities of a lease")
		}
	}
	var target key
	var r refID
	err := s.pool.QueryRow(limited, sqlClosure, kinds, ids, namedKinds, namedIDs).Scan(&target.kind, &target.id, &r.from.kind, &r.from.id, &r.attr)
	if err == pgx.ErrNoRows {
		return nil
	}
	if err != nil {
		return callError(ctx, err, "read what a deletion takes with it")
	}
	return errInUse(target, r)
}
