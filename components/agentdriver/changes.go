package agentdriver

import (
	"context"
	"sync"
	"time"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/errs"
)

// Changes tells watchers which sandboxes changed. The zero value is ready. Its
// lock is held for moments only, and nothing is called under it.
type Changes struct {
	mu       sync.Mutex
	watchers map[*watcher]struct{}
}

// watcher is one receiver of changed ids.
type watcher struct {
	pending map[string]struct{} // guarded by Changes.mu
	wake    chan struct{}       // has room for one
}

// Notify tells every watcher that the state of id may have changed.
func (c *Changes) Notify(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for w := range c.watchers {
		w.pending[id] = struct{}{}
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
}

func (c *Changes) subscribe() (*watcher, func()) {
	w := &watcher{pending: map[string]struct{}{}, wake: make(chan struct{}, 1)}
	c.mu.Lock()
	if c.watchers == nil {
		c.watchers = map[*watcher]struct{}{}
	}
	c.watchers[w] = struct{}{}
	c.mu.Unlock()
	return w, func() {
		c.mu.Lock()
		delete(c.watchers, w)
		c.mu.Unlock()
	}
}

func (c *Changes) takeChanged(w *watcher) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	ids := make([]string, 0, len(w.pending))
	for id := range w.pending {
		ids = append(ids, id)
	}
	clear(w.pending)
	return ids
}

// Watch sends the ids of sandboxes whose state may have changed, until ctx
// ends.
func (c *Changes) Watch(ctx context.Context) (<-chan string, error) {
	w, leave := c.subscribe()
	out := make(chan string)
	go func() {
		defer close(out)
		defer leave()
		for {
			select {
			case <-ctx.Done():
				return
			case <-w.wake:
			}
			for _, id := range c.takeChanged(w) {
				select {
				case <-ctx.Done():
					return
				case out <- id:
				}
			}
		}
	}()
	return out, nil
}

// Await returns the state of id, which get reads, as soon as ok accepts it.
// Besides at reported changes it reads the state periodically.
func (c *Changes) Await(ctx context.Context, id string, get func(context.Context, string) (execution.Instance, error), ok func(execution.Instance) bool) (execution.Instance, error) {
	const look = 500 * time.Millisecond
	w, leave := c.subscribe()
	defer leave()
	tick := time.NewTicker(look)
	defer tick.Stop()
	for {
		in, err := get(ctx, id)
		if err != nil && !errs.Is(err, errs.Unavailable) || err == nil && ok(in) {
			return in, err
		}
		for waiting := true; waiting; {
			select {
			case <-ctx.Done():
				return in, ctx.Err()
			case <-tick.C:
				waiting = false
			case <-w.wake:
				for _, changed := range c.takeChanged(w) {
					waiting = waiting && changed != id
				}
			}
		}
	}
}
