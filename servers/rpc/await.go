package rpcserver

import (
	"context"
	"errors"
	"time"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

const (
	// storePatience is how long those who wait go on while the store cannot be
	// asked.
	storePatience = 30 * time.Second
	// storeAgain is the pause between attempts.
	storeAgain = 200 * time.Millisecond
)

// verdict is an error of look, which ends the wait whatever its class.
type verdict struct{ error }

// await calls look with an entity as it is and whenever it has changed, until
// look says that it is done, and returns the entity as it was then. It goes on
// over a store that is away for storePatience.
func await[T any, P entity.ObjectPtr[T], I ~string](ctx context.Context, s entity.Reader, project schema.ID, id I, look func(P) (done bool, err error)) (P, error) {
	var last schema.Revision
	away := time.Time{}
	read := func() (P, bool, error) {
		o, err := entity.Get[T, P](ctx, s, id)
		if err != nil {
			return nil, false, err
		}
		away = time.Time{}
		if o.GetMeta().Revision == last {
			return nil, false, nil
		}
		last = o.GetMeta().Revision
		done, err := look(o)
		if err != nil {
			err = verdict{err}
		}
		return o, done, err
	}
	for {
		o, done, err := awaitOnce(ctx, s, project, schema.ID(id), read)
		var v verdict
		switch {
		case done:
			return o, nil
		case errors.As(err, &v):
			return nil, v.error
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case errs.Is(err, errs.Compacted), errs.Is(err, errs.ResourceExhausted): // of the watch
		case errs.Is(err, errs.Unavailable):
			if away.IsZero() {
				away = time.Now()
			}
			if time.Since(away) > storePatience {
				return nil, err
			}
		default:
			return nil, err
		}
		if err := pause(ctx, storeAgain); err != nil {
			return nil, err
		}
	}
}

// awaitOnce reads at every change, until one watch fails.
func awaitOnce[P schema.Object](ctx context.Context, s entity.Reader, project, id schema.ID, read func() (P, bool, error)) (o P, done bool, err error) {
	// From now: what changed before is read after the watch has begun.
	w, err := s.Watch(ctx, entity.WatchQuery{Kind: o.EntityKind().Name, Project: project, Bookmarks: time.Second})
	if err != nil {
		return o, false, err
	}
	defer w.Close()
	o, done, err = read()
	for !done && err == nil {
		events, werr := w.Next(ctx)
		if werr != nil {
			return o, false, werr
		}
		for i := range events {
			if events[i].Record.ID == id || events[i].Type == entity.EventBookmark {
				o, done, err = read()
				break
			}
		}
	}
	return o, done, err
}

// pause waits for d.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
