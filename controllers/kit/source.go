package kit

import (
	"context"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/schema"
)

// Source yields further keys to reconcile, besides the changes of the
// controller's own kind.
type Source struct {
	kind *schema.Kind
	keys func(schema.Object) []schema.ID
	run  func(ctx context.Context, add func(schema.ID))
}

// Map enqueues the keys that fn makes of every entity of T's kind, first of
// those that exist and then of each that changes or is deleted. When an entity
// comes to map to other keys, its former keys are enqueued too. Empty keys are
// skipped. fn must not block. It depends only on its argument, or also on
// informers of the same set, which are at least as new.
//
//	kit.Map(func(s *sandbox.Sandbox) []id.SandboxPool { return kit.Key(s.Spec.Pool) })
func Map[T any, P entity.ObjectPtr[T], I ~string](fn func(P) []I) Source {
	return Source{
		kind: P(new(T)).EntityKind(),
		keys: func(o schema.Object) []schema.ID {
			p, ok := o.(P)
			if !ok {
				return nil
			}
			ids := fn(p)
			keys := make([]schema.ID, 0, len(ids))
			for _, id := range ids {
				if id != "" {
					keys = append(keys, schema.ID(id))
				}
			}
			return keys
		},
	}
}

// Key is the list of ids, for fn of Map.
func Key[I ~string](ids ...I) []I { return ids }

// Func runs fn, which calls add for each key until ctx ends.
func Func(fn func(ctx context.Context, add func(schema.ID))) Source { return Source{run: fn} }
