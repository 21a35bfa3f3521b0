package server

import (
	"context"
	"iter"
	"strings"
	"sync/atomic"

	"golang.org/x/sync/singleflight"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/domain/executions"
	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/lsvd/store/open"
	"miren.dev/runtime/pkg/breaker"
	"miren.dev/runtime/pkg/errs"
)

// objects are the objects of executions in an object store: a directory, or
// S3. It is opened when it is first used, and keys begin with prefix, so that
// several installations may share a bucket.
type objects struct {
	url, prefix string
	breaker     *breaker.Breaker // nil: none

	opening singleflight.Group // so that callers wait for one attempt, not for each other's
	store   atomic.Pointer[store.Store]
}

var _ executions.Objects = (*objects)(nil)

// newObjects returns the objects below a prefix of the store with a URL, which
// is checked only. b may be nil.
func newObjects(url, prefix string, b *breaker.Breaker) (*objects, error) {
	if _, err := open.Parse(url); err != nil {
		return nil, errs.Wrap(err, "executions.store")
	}
	return &objects{url: url, prefix: prefix + "/", breaker: b}, nil
}

func (o *objects) open(ctx context.Context) (store.Store, error) {
	if s := o.store.Load(); s != nil {
		return *s, nil
	}
	attempt := context.WithoutCancel(ctx) // it is for others too, and has time limits of its own
	done := o.opening.DoChan("", func() (any, error) {
		s, err := open.Store(attempt, o.url)
		if err == nil {
			o.store.Store(&s)
		}
		return s, err
	})
	select {
	case r := <-done:
		if r.Err != nil {
			return nil, r.Err
		}
		return r.Val.(store.Store), nil
	case <-ctx.Done():
		return nil, errs.New(errs.ClassOf(ctx.Err()), "open the object store: %w", ctx.Err())
	}
}

// use calls f with the store, unless the store does not answer.
func (o *objects) use(ctx context.Context, f func(store.Store) error) error {
	return o.breaker.Do(ctx, func() error {
		s, err := o.open(ctx)
		if err != nil {
			return err
		}
		return f(s)
	})
}

// Get implements executions.Objects.
func (o *objects) Get(ctx context.Context, key string) (b []byte, err error) {
	err = o.use(ctx, func(s store.Store) error {
		b, _, err = s.Get(ctx, o.prefix+key)
		return err
	})
	return b, err
}

// Create implements executions.Objects.
func (o *objects) Create(ctx context.Context, key string, data []byte) error {
	return o.use(ctx, func(s store.Store) error {
		_, err := s.Create(ctx, o.prefix+key, data)
		return err
	})
}

// Delete implements executions.Objects.
func (o *objects) Delete(ctx context.Context, key string) error {
	return o.use(ctx, func(s store.Store) error { return s.Delete(ctx, o.prefix+key) })
}

// List implements executions.Objects.
func (o *objects) List(ctx context.Context) iter.Seq2[executions.Object, error] {
	return func(yield func(executions.Object, error) bool) {
		s, err := o.open(ctx)
		if err != nil {
			yield(executions.Object{}, err)
			return
		}
		for info, err := range s.List(ctx, o.prefix) {
			if !yield(executions.Object{Key: strings.TrimPrefix(info.Key, o.prefix), Size: info.Size}, err) {
				return
			}
		}
	}
}

// snapshotPrefix begins the keys of copies of snapshots; the id of the snapshot
// follows, which no other installation has.
const snapshotPrefix = "sandbox-snapshots/"

// snapshotObjects are the objects of the copy of one snapshot.
type snapshotObjects struct{ *objects }

func newSnapshotObjects(url, snapshot string) (execution.Objects, error) {
	if _, err := open.Parse(url); err != nil {
		return nil, err
	}
	return snapshotObjects{&objects{url: url, prefix: snapshotPrefix + snapshot + "/"}}, nil
}

// List implements execution.Objects.
func (o snapshotObjects) List(ctx context.Context) iter.Seq2[execution.ObjectInfo, error] {
	return func(yield func(execution.ObjectInfo, error) bool) {
		for i, err := range o.objects.List(ctx) {
			if !yield(execution.ObjectInfo(i), err) {
				return
			}
		}
	}
}
