package informer

import (
	"context"
	"math/rand/v2"
	"time"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// WaitSynced waits until every kind that was requested so far is synced. If the
// store refuses to list one (InvalidArgument, PermissionDenied, Unimplemented),
// WaitSynced returns the error at once; Run continues to try.
func (s *Set) WaitSynced(ctx context.Context) error {
	for {
		s.mu.Lock()
		synced, err, news := s.synced(), s.status.Err, s.awaitNews()
		s.mu.Unlock()
		if synced {
			return nil
		}
		switch errs.ClassOf(err) {
		case errs.InvalidArgument, errs.PermissionDenied, errs.Unimplemented:
			return err
		}
		select {
		case <-news:
		case <-ctx.Done():
			if err == nil {
				err = ctx.Err()
			}
			return errs.New(errs.ClassOf(ctx.Err()), "wait for the first listing: %w", err)
		}
	}
}

// WaitRevision waits until the position is at least rev: the handlers have seen
// every write up to it. Writes of other kinds move the position only with the
// next bookmark. It returns the position, with ctx's error if ctx ends first.
func (s *Set) WaitRevision(ctx context.Context, rev schema.Revision) (schema.Token, error) {
	for {
		s.mu.Lock()
		at, synced, news := s.status.Position, s.synced(), s.awaitNews()
		s.mu.Unlock()
		if synced && at.Revision >= rev {
			return at, nil
		}
		select {
		case <-news:
		case <-ctx.Done():
			return at, errs.New(errs.ClassOf(ctx.Err()), "wait for revision %d, at %d: %w", rev, at.Revision, ctx.Err())
		}
	}
}

// Await reads the entity from the store, then calls cond with it and again
// after each change, until cond reports that it is done. It returns the entity
// of that call. cond may see several changes as one. An error of cond ends the
// wait. Errors: NotFound if the entity is gone, Unavailable if the store could
// not be reached for Config.OutageLimit, and ctx's error.
func (i Informer[T, P]) Await(ctx context.Context, id schema.ID, cond func(P) (done bool, err error)) (P, error) {
	o, err := i.read(ctx, id)
	for err == nil {
		done, cerr := cond(o)
		if cerr != nil {
			return nil, cerr
		}
		if done {
			return o, nil
		}
		o, err = i.After(ctx, id, o.GetMeta().Revision)
	}
	return nil, err
}

// read reads the entity from the store, and retries while the store is
// unavailable.
func (i Informer[T, P]) read(ctx context.Context, id schema.ID) (P, error) {
	begin, pause := time.Now(), minPause
	for {
		o, err := entity.Get[T, P](ctx, i.s.cfg.Reader, id)
		if !errs.Is(err, errs.Unavailable) || time.Since(begin) > i.s.cfg.OutageLimit {
			return o, err
		}
		select {
		case <-time.After(pause/2 + rand.N(pause/2+1)):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		pause = min(2*pause, maxPause)
	}
}

// After waits until the entity is newer than rev, a revision that the caller
// has read, and returns it. Its errors are Await's.
func (i Informer[T, P]) After(ctx context.Context, id schema.ID, rev schema.Revision) (P, error) {
	s, begin := i.s, time.Now()
	epoch := s.Position().Epoch
	for {
		s.mu.Lock()
		o, at, err := i.c.objects[id], s.status.Position, s.status.Err
		replaced := epoch != "" && at.Epoch != epoch // revisions of different epochs cannot be compared
		seen := begin
		if s.status.LastSeen.After(seen) {
			seen = s.status.LastSeen
		}
		var changed <-chan struct{}
		if o != nil {
			changed = i.c.wait(id)
		} else {
			changed = s.awaitNews()
		}
		known := i.c.synced && (at.Revision >= rev || replaced)
		s.mu.Unlock()
		if epoch == "" {
			epoch = at.Epoch
		}
		switch {
		case o != nil && (replaced || o.GetMeta().Revision > rev):
			return o.(P), nil
		case o == nil && known:
			return nil, errs.New(errs.NotFound, "%s %s does not exist any more", i.c.kind.Name, id).
				With("kind", i.c.kind.Name).With("id", string(id))
		}
		left := s.cfg.OutageLimit - time.Since(seen)
		if left <= 0 {
			if err == nil {
				err = errs.New(errs.Unavailable, "the store does not answer")
			}
			return nil, errs.New(errs.Unavailable, "wait for %s %s: %w", i.c.kind.Name, id, err)
		}
		t := time.NewTimer(left)
		select {
		case <-changed:
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil, ctx.Err()
		}
		t.Stop()
	}
}
