package storesim

import (
	"context"
	"iter"
	"sync"

	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/pkg/errs"
)

// Op names a method of [store.Store] for [Fault].
type Op string

// The operations.
const (
	OpGet      Op = "get"
	OpGetRange Op = "getrange"
	OpCreate   Op = "create"
	OpReplace  Op = "replace"
	OpList     Op = "list"
	OpDelete   Op = "delete"
)

// Action is what goes wrong with one operation; the zero value is nothing.
type Action struct {
	Race     func() // work of another client, before anything is done: a lost compare-and-swap
	Slow     func() // runs once it is done, before the answer; for a list between its entries
	Before   error  // fail without doing anything
	After    error  // do it, then report this: a time-out after success
	Truncate bool   // reads return only the first half of the body
	Stale    bool   // Get returns what the last Replace has replaced
	Flip     int    // reads return the body with bit Flip-1 inverted (0: none)
}

// Fault passes operations on to a store and lets Hook decide what goes wrong.
// Hook is called before each operation, by whichever goroutine makes it.
type Fault struct {
	store.Store
	Hook func(op Op, key string) Action

	mu       sync.Mutex
	replaced map[string][]byte
}

// Unreachable is the error of a store that cannot be asked.
func Unreachable() error { return errs.New(errs.Unavailable, "injected: store does not answer") }

func (f *Fault) ask(op Op, key string) Action {
	if f.Hook == nil {
		return Action{}
	}
	a := f.Hook(op, key)
	if a.Race != nil {
		a.Race()
	}
	return a
}

func (a Action) slow() {
	if a.Slow != nil {
		a.Slow()
	}
}

func (a Action) body(data []byte, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	if a.After != nil {
		return nil, a.After
	}
	if a.Truncate {
		data = data[:len(data)/2]
	}
	if bit := a.Flip - 1; bit >= 0 && len(data) > 0 {
		data[bit/8%len(data)] ^= 1 << (bit % 8)
	}
	return data, nil
}

// Get implements [store.Store].
func (f *Fault) Get(ctx context.Context, key string) ([]byte, store.Version, error) {
	a := f.ask(OpGet, key)
	if a.Before != nil {
		return nil, "", a.Before
	}
	if a.Stale {
		f.mu.Lock()
		old, ok := f.replaced[key]
		f.mu.Unlock()
		if ok {
			return old, store.ContentVersion(old), nil
		}
	}
	data, v, err := f.Store.Get(ctx, key)
	a.slow()
	data, err = a.body(data, err)
	return data, v, err
}

// GetRange implements [store.Store].
func (f *Fault) GetRange(ctx context.Context, key string, off, n int64) ([]byte, error) {
	a := f.ask(OpGetRange, key)
	if a.Before != nil {
		return nil, a.Before
	}
	data, err := f.Store.GetRange(ctx, key, off, n)
	a.slow()
	return a.body(data, err)
}

// Create implements [store.Store].
func (f *Fault) Create(ctx context.Context, key string, data []byte) (store.Version, error) {
	a := f.ask(OpCreate, key)
	if a.Before != nil {
		return "", a.Before
	}
	v, err := f.Store.Create(ctx, key, data)
	a.slow()
	if err == nil && a.After != nil {
		return "", a.After
	}
	return v, err
}

// Replace implements [store.Store].
func (f *Fault) Replace(ctx context.Context, key string, data []byte, old store.Version) (store.Version, error) {
	a := f.ask(OpReplace, key)
	if a.Before != nil {
		return "", a.Before
	}
	was, _, gerr := f.Store.Get(ctx, key)
	v, err := f.Store.Replace(ctx, key, data, old)
	a.slow()
	if err == nil && gerr == nil {
		f.mu.Lock()
		if f.replaced == nil {
			f.replaced = map[string][]byte{}
		}
		f.replaced[key] = was
		f.mu.Unlock()
	}
	if err == nil && a.After != nil {
		return "", a.After
	}
	return v, err
}

// List implements [store.Store]. A truncated list ends early with an error.
func (f *Fault) List(ctx context.Context, prefix string) iter.Seq2[store.Info, error] {
	a := f.ask(OpList, prefix)
	return func(yield func(store.Info, error) bool) {
		if a.Before != nil {
			yield(store.Info{}, a.Before)
			return
		}
		for i, err := range f.Store.List(ctx, prefix) {
			if a.Truncate && err == nil {
				yield(store.Info{}, Unreachable())
				return
			}
			a.slow()
			if !yield(i, err) {
				return
			}
		}
	}
}

// Delete implements [store.Store].
func (f *Fault) Delete(ctx context.Context, key string) error {
	a := f.ask(OpDelete, key)
	if a.Before != nil {
		return a.Before
	}
	err := f.Store.Delete(ctx, key)
	a.slow()
	if err != nil {
		return err
	}
	return a.After
}
