package server

import (
	"context"
	"iter"
	"strings"
	"sync"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/domain/executions"
	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/lsvd/store/open"
	"miren.dev/runtime/pkg/errs"
)

// objects are the objects of executions in an object store: a directory, or
// S3. It is opened when it is first used, and keys begin with prefix, so that
// several installations may share a bucket.
type objects struct {
	url, prefix string

	mu    sync.Mutex
	store store.Store
}

var _ executions.Objects = (*objects)(nil)

// newObjects returns the objects below a prefix of the store with a URL, which
// is checked only.
func newObjects(url, prefix string) (*objects, error) {
	if _, err := open.Parse(url); err != nil {
		return nil, errs.Wrap(err, "executions.store")
	}
	return &objects{url: url, prefix: prefix + "/"}, nil
}

func (o *objects) open(ctx context.Context) (store.Store, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.store == nil {
		s, err := open.Store(ctx, o.url)
		if err != nil {
			return nil, err
		}
		o.store = s
	}
	return o.store, nil
}

// Get implements executions.Objects.
func (o *objects) Get(ctx context.Context, key string) ([]byte, error) {
	s, err := o.open(ctx)
	if err != nil {
		return nil, err
	}
	b, _, err := s.Get(ctx, o.prefix+key)
	return b, err
}

// Create implements executions.Objects.
func (o *objects) Create(ctx context.Context, key string, data []byte) error {
	s, err := o.open(ctx)
	if err != nil {
		return err
	}
	_, err = s.Create(ctx, o.prefix+key, data)
	return err
}

// Delete implements executions.Objects.
func (o *objects) Delete(ctx context.Context, key string) error {
	s, err := o.open(ctx)
	if err != nil {
		return err
	}
	return s.Delete(ctx, o.prefix+key)
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
