package rpc

import (
	"context"
	"time"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// await calls look with an entity as it is and whenever it has changed, until
// look says that it is done, and returns the entity as it was then.
func await[T any, P entity.ObjectPtr[T], I ~string](ctx context.Context, s entity.Reader, project schema.ID, id I, look func(P) (done bool, err error)) (P, error) {
	kind := P(new(T)).EntityKind().Name
	var last schema.Revision
	read := func() (P, bool, error) {
		o, err := entity.Get[T, P](ctx, s, id)
		if err != nil || o.GetMeta().Revision == last {
			return nil, false, err
		}
		last = o.GetMeta().Revision
		done, err := look(o)
		return o, done, err
	}
	for {
		// From now: what changed before is read after the watch has begun.
		w, err := s.Watch(ctx, entity.WatchQuery{Kind: kind, Project: project, Bookmarks: time.Second})
		if err != nil {
			return nil, err
		}
		o, done, err := read()
		for !done && err == nil {
			var events []entity.Event
			if events, err = w.Next(ctx); err != nil {
				break
			}
			for i := range events {
				if events[i].Record.ID == schema.ID(id) || events[i].Type == entity.EventBookmark {
					o, done, err = read()
					break
				}
			}
		}
		w.Close()
		if done || (!errs.Is(err, errs.Compacted) && !errs.Is(err, errs.ResourceExhausted)) {
			return o, err
		}
	}
}
