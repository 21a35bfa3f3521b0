package store

import (
	"bytes"
	"context"
	"iter"
	"slices"
	"strings"
	"sync"

	"miren.dev/runtime/pkg/errs"
)

// Mem is a store in memory. The zero value is empty and ready.
type Mem struct {
	mu      sync.Mutex
	objects map[string][]byte
}

// Get implements [Store].
func (m *Mem) Get(ctx context.Context, key string) ([]byte, Version, error) {
	data, err := m.read(ctx, key)
	if err != nil {
		return nil, "", err
	}
	return bytes.Clone(data), ContentVersion(data), nil
}

// GetRange implements [Store].
func (m *Mem) GetRange(ctx context.Context, key string, off, n int64) ([]byte, error) {
	data, err := m.read(ctx, key)
	if err != nil {
		return nil, err
	}
	part, err := slice(key, data, off, n)
	return bytes.Clone(part), err
}

func (m *Mem) read(ctx context.Context, key string) ([]byte, error) {
	if err := CheckCall(ctx, key); err != nil {
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

// Create implements [Store].
func (m *Mem) Create(ctx context.Context, key string, data []byte) (Version, error) {
	if err := CheckCall(ctx, key); err != nil {
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
	return ContentVersion(data), nil
}

// Replace implements [Store].
func (m *Mem) Replace(ctx context.Context, key string, data []byte, old Version) (Version, error) {
	if err := CheckCall(ctx, key); err != nil {
		return "", err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	have, ok := m.objects[key]
	if !ok {
		return "", errs.New(errs.NotFound, "object %s does not exist", key)
	}
	if ContentVersion(have) != old {
		return "", errs.New(errs.Conflict, "object %s has changed", key)
	}
	m.objects[key] = bytes.Clone(data)
	return ContentVersion(data), nil
}

// List implements [Store].
func (m *Mem) List(ctx context.Context, prefix string) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		if err := ctx.Err(); err != nil {
			yield(Info{}, err)
			return
		}
		m.mu.Lock()
		var found []Info
		for key, data := range m.objects {
			if strings.HasPrefix(key, prefix) {
				found = append(found, Info{Key: key, Size: int64(len(data))})
			}
		}
		m.mu.Unlock()
		slices.SortFunc(found, func(a, b Info) int { return strings.Compare(a.Key, b.Key) })
		for _, i := range found {
			if !yield(i, nil) {
				return
			}
		}
	}
}

// Delete implements [Store].
func (m *Mem) Delete(ctx context.Context, key string) error {
	if err := CheckCall(ctx, key); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.objects, key)
	return nil
}
