package etcdstore

import (
	"context"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/eval"
	"miren.dev/runtime/pkg/schema"
)

// checkClosure refuses a deletion that cannot be completed before any part of
// it is applied: it looks for a reference that restricts the deletion of an entity
// that goes with the given ones, and whose own entity is not deleted with them. The
// transaction may change the references of the entities that it names.
func (s *Store) checkClosure(_ context.Context, t *eval.Txn) error {
	r := s.replica
	r.mu.RLock()
	defer r.mu.RUnlock()
	named, gone := map[eval.Key]bool{}, map[eval.Key]bool{}
	var queue []eval.Key
	add := func(k eval.Key) {
		if !gone[k] {
			gone[k], queue = true, append(queue, k)
		}
	}
	for i := range t.Req.Ops {
		k := eval.KeyOf(&t.Req.Ops[i].Record)
		if named[k] = true; t.Req.Ops[i].Type == entity.OpDelete {
			add(k)
		}
	}
	for k := range r.members[t.EndLease] {
		add(k)
	}
	for i := 0; i < len(queue); i++ { // the list grows in the loop
		for ref, policy := range r.refs[queue[i]] {
			if policy == schema.Cascade {
				add(ref.From)
			}
		}
	}
	for _, k := range queue {
		for ref, policy := range r.refs[k] {
			if policy == schema.Restrict && !gone[ref.From] && !named[ref.From] {
				return eval.ErrInUse(k, ref)
			}
		}
	}
	return nil
}
