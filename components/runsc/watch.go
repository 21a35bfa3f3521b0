package runsc

import (
	"context"
	"time"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/errs"
)

// watcher is one receiver of changed ids.
type watcher struct {
	pending map[string]struct{} // guarded by Driver.mu
	wake    chan struct{}       // has room for one
}

// notify tells every watcher that the state of id may have changed.
func (d *Driver) notify(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for w := range d.watchers {
		w.pending[id] = struct{}{}
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
}

// notifyAll is for when changes may have been missed.
func (d *Driver) notifyAll(ctx context.Context) {
	all, err := d.List(ctx)
	if err != nil {
		return // containerd is away again, and follow will call notifyAll again
	}
	for _, in := range all {
		d.notify(in.ID)
	}
}

func (d *Driver) subscribe() (*watcher, func()) {
	w := &watcher{pending: map[string]struct{}{}, wake: make(chan struct{}, 1)}
	d.mu.Lock()
	d.watchers[w] = struct{}{}
	d.mu.Unlock()
	return w, func() {
		d.mu.Lock()
		delete(d.watchers, w)
		d.mu.Unlock()
	}
}

func (d *Driver) takeChanged(w *watcher) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	ids := make([]string, 0, len(w.pending))
	for id := range w.pending {
		ids = append(ids, id)
	}
	clear(w.pending)
	return ids
}

// Watch sends the ids of sandboxes whose state may have changed, until ctx
// ends.
func (d *Driver) Watch(ctx context.Context) (<-chan string, error) {
	w, leave := d.subscribe()
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
			for _, id := range d.takeChanged(w) {
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

// await returns the state of id as soon as ok accepts it. Besides reported
// changes it reads the state periodically.
func (d *Driver) await(ctx context.Context, id string, ok func(execution.Instance) bool) (execution.Instance, error) {
	const look = 500 * time.Millisecond
	w, leave := d.subscribe()
	defer leave()
	tick := time.NewTicker(look)
	defer tick.Stop()
	for {
		in, err := d.Get(ctx, id)
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
				for _, changed := range d.takeChanged(w) {
					waiting = waiting && changed != id
				}
			}
		}
	}
}
