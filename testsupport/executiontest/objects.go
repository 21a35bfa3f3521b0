package executiontest

import (
	"context"
	"iter"
	"strings"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/lsvd/store"
)

// Objects are the objects of a store whose keys begin with a prefix, for copies of snapshots.
type Objects struct {
	Store  store.Store
	Prefix string
}

// Get implements execution.Objects.
func (o Objects) Get(ctx context.Context, key string) ([]byte, error) {
	b, _, err := o.Store.Get(ctx, o.Prefix+key)
	return b, err
}

// Create implements execution.Objects.
func (o Objects) Create(ctx context.Context, key string, data []byte) error {
	_, err := o.Store.Create(ctx, o.Prefix+key, data)
	return err
}

// Delete implements execution.Objects.
func (o Objects) Delete(ctx context.Context, key string) error {
	return o.Store.Delete(ctx, o.Prefix+key)
}

// List implements execution.Objects.
func (o Objects) List(ctx context.Context) iter.Seq2[execution.ObjectInfo, error] {
	return func(yield func(execution.ObjectInfo, error) bool) {
		for i, err := range o.Store.List(ctx, o.Prefix) {
			if !yield(execution.ObjectInfo{Key: strings.TrimPrefix(i.Key, o.Prefix), Size: i.Size}, err) {
				return
			}
		}
	}
}
