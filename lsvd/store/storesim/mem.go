// Package storesim has object stores for tests: one in memory, and one that goes wrong.
package storesim

import (
	"bytes"
	"context"
	"iter"
	"slices"
	"strings"
	"sync"

	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/pkg/errs"
)

// Mem is a store in memory. The zero value is empty and ready.
type Mem struct {
	mu      sync.Mutex
	objects map[string][]byte
}

// Get implements [store.Store].
func (m *Mem) Get(ctx context.Context, key string) ([]byte, store.Version, error) {
	data, err := m.read(ctx, key)
	if err != nil {
		return nil, "", err
	}
	return bytes.Clone(data), store.ContentVersion(data), nil
}

// GetRange implements [store.Store].
func (m *Mem) GetRange(ctx context.Context, key string, off, n int64) ([]byte, error) {
	data, err := m.read(ctx, key)
	if err != nil {
		return nil, err
	}
	part, err := slice(key, data, off, n)
	return bytes.Clone(part), err
}

func (m *Mem) read(ctx context.Context, key string) ([]byte, error) {
	if err := store.CheckCall(ctx, key); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	data, ok := m.objects[key]
	if !ok {
		return nil, errs.New(errs.NotFound, "object %s does not exist", key)
	}
	return data, nil // contents are never changed in place
}

// Create implements [store.Store].
func (m *Mem) Create(ctx context.Context, key string, data []byte) (store.Version, error) {
	if err := store.CheckCall(ctx, key); err != nil {
		return "", err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.objects[key]; ok {
		return "", errs.New(errs.AlreadyExists, "object %s exists", key)
	}
	if m.objects == nil {
		m.objects = map[string][]byte{}
	}
	m.objects[key] = bytes.Clone(data)
	return store.ContentVersion(data), nil
}

// Replace implements [store.Store].
func (m *Mem) Replace(ctx context.Context, key string, data []byte, old store.Version) (store.Version, error) {
	if err := store.CheckCall(ctx, key); err != nil {
		return "", err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	have, ok := m.objects[key]
	if !ok {
		return "", errs.New(errs.NotFound, "object %s does not exist", key)
	}
	if store.ContentVersion(have) != old {
		return "", errs.New(errs.Conflict, "object %s has changed", key)
	}
	m.objects[key] = bytes.Clone(data)
	return store.ContentVersion(data), nil
}

// List implements [store.Store].
func (m *Mem) List(ctx context.Context, prefix string) iter.Seq2[store.Info, error] {
	return func(yield func(store.Info, error) bool) {
		if err := ctx.Err(); err != nil {
			yield(store.Info{}, err)
			return
		}
		m.mu.Lock()
		var found []store.Info
		for key, data := range m.objects {
			if strings.HasPrefix(key, prefix) {
				found = append(found, store.Info{Key: key, Size: int64(len(data))})
			}
		}
		m.mu.Unlock()
		slices.SortFunc(found, func(a, b store.Info) int { return strings.Compare(a.Key, b.Key) })
		for _, i := range found {
			if !yield(i, nil) {
				return
			}
		}
	}
}

// Delete implements [store.Store].
func (m *Mem) Delete(ctx context.Context, key string) error {
	if err := store.CheckCall(ctx, key); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.objects, key)
	return nil
}

// slice is the part of data that GetRange returns.
func slice(key string, data []byte, off, n int64) ([]byte, error) {
	if off < 0 || n < 0 || off > int64(len(data)) {
		return nil, errs.New(errs.InvalidArgument, "object %s: range %d+%d of %d bytes", key, off, n, len(data))
	}
	return data[off:min(off+n, int64(len(data)))], nil
}
