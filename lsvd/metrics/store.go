package metrics

import (
	"context"
	"iter"
	"maps"
	"sync"
	"time"

	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/pkg/errs"
)

// Store counts the operations of a store. A local store stays it.
type Store struct {
	store.Store
	mu   sync.Mutex
	reqs map[request]uint64
	time [storeOps]Histogram
}

type storeOp int

const (
	opGet storeOp = iota
	opRange
	opCreate
	opReplace
	opList
	opDelete
	storeOps
)

var storeOpNames = [storeOps]string{"get", "range", "create", "replace", "list", "delete"}

type request struct {
	op     storeOp
	result string
}

type nearStore struct {
	*Store
	store.Local
}

// WrapStore counts what is asked of st: use the first result, read the second.
func WrapStore(st store.Store) (store.Store, *Store) {
	s := &Store{Store: st, reqs: map[request]uint64{}}
	if n, ok := st.(store.Local); ok {
		return nearStore{s, n}, s // reads of single blocks are not counted: they are too many and too fast
	}
	return s, s
}

// done counts an operation that began at a time.
func (s *Store) done(op storeOp, began time.Time, err error) {
	s.time[op].Observe(time.Since(began))
	result := "ok"
	if err != nil {
		result = string(errs.ClassOf(err))
	}
	s.mu.Lock()
	s.reqs[request{op, result}]++
	s.mu.Unlock()
}

func (s *Store) requests() map[request]uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.reqs)
}

// Get implements [store.Store].
func (s *Store) Get(ctx context.Context, key string) ([]byte, store.Version, error) {
	began := time.Now()
	b, v, err := s.Store.Get(ctx, key)
	s.done(opGet, began, err)
	return b, v, err
}

// GetRange implements [store.Store].
func (s *Store) GetRange(ctx context.Context, key string, off, n int64) ([]byte, error) {
	began := time.Now()
	b, err := s.Store.GetRange(ctx, key, off, n)
	s.done(opRange, began, err)
	return b, err
}

// Create implements [store.Store].
func (s *Store) Create(ctx context.Context, key string, data []byte) (store.Version, error) {
	began := time.Now()
	v, err := s.Store.Create(ctx, key, data)
	s.done(opCreate, began, err)
	return v, err
}

// Replace implements [store.Store].
func (s *Store) Replace(ctx context.Context, key string, data []byte, old store.Version) (store.Version, error) {
	began := time.Now()
	v, err := s.Store.Replace(ctx, key, data, old)
	s.done(opReplace, began, err)
	return v, err
}

// List implements [store.Store].
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[store.Info, error] {
	return func(yield func(store.Info, error) bool) {
		began := time.Now()
		var failed error
		defer func() { s.done(opList, began, failed) }()
		for i, err := range s.Store.List(ctx, prefix) {
			failed = err
			if !yield(i, err) {
				return
			}
		}
	}
}

// Delete implements [store.Store].
func (s *Store) Delete(ctx context.Context, key string) error {
	began := time.Now()
	err := s.Store.Delete(ctx, key)
	s.done(opDelete, began, err)
	return err
}
