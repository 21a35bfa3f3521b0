package storetest

import (
	"context"
	"iter"
	"sync"

	"miren.dev/runtime/lsvd/store"
)

// listPage is how many objects a request to list returns at most, as with S3.
const listPage = 1000

// Counter is a store that counts the requests that reach the store below it.
type Counter struct {
	store.Store

	mu       sync.Mutex
	requests map[string]int
}

// Take returns how many requests there were since the last call, by operation.
// A listing counts as one for every 1000 objects.
func (c *Counter) Take() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.requests
	c.requests = nil
	return n
}

func (c *Counter) count(operation string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.requests == nil {
		c.requests = map[string]int{}
	}
	c.requests[operation]++
}

// Get implements [store.Store].
func (c *Counter) Get(ctx context.Context, key string) ([]byte, store.Version, error) {
	c.count("get")
	return c.Store.Get(ctx, key)
}

// GetRange implements [store.Store].
func (c *Counter) GetRange(ctx context.Context, key string, off, n int64) ([]byte, error) {
	c.count("range")
	return c.Store.GetRange(ctx, key, off, n)
}

// Create implements [store.Store].
func (c *Counter) Create(ctx context.Context, key string, data []byte) (store.Version, error) {
	c.count("create")
	return c.Store.Create(ctx, key, data)
}

// Replace implements [store.Store].
func (c *Counter) Replace(ctx context.Context, key string, data []byte, old store.Version) (store.Version, error) {
	c.count("replace")
	return c.Store.Replace(ctx, key, data, old)
}

// List implements [store.Store].
func (c *Counter) List(ctx context.Context, prefix string) iter.Seq2[store.Info, error] {
	return func(yield func(store.Info, error) bool) {
		n := 0
		c.count("list")
		for i, err := range c.Store.List(ctx, prefix) {
			if n++; n > listPage {
				n = 1
				c.count("list")
			}
			if !yield(i, err) {
				return
			}
		}
	}
}

// Delete implements [store.Store].
func (c *Counter) Delete(ctx context.Context, key string) error {
	c.count("delete")
	return c.Store.Delete(ctx, key)
}
