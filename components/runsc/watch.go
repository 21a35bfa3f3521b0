package runsc

import (
	"context"
	"fmt"
	"time"

	apievents "github.com/containerd/containerd/api/events"
	"github.com/containerd/typeurl/v2"

	"miren.dev/runtime/components/containerd"
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

// Delays before the driver subscribes to containerd's events again.
const (
	followDelay    = 50 * time.Millisecond
	maxFollowDelay = time.Second
)

// follow turns containerd's events into notifications until ctx ends.
func (d *Driver) follow(ctx context.Context) error {
	delay := followDelay
	for ctx.Err() == nil {
		began := time.Now()
		if err := d.followOnce(ctx); ctx.Err() == nil {
			d.logger.Debug("events of containerd interrupted", "error", err)
		}
		if time.Since(began) > maxFollowDelay {
			delay = followDelay
		}
		select {
		case <-ctx.Done():
		case <-time.After(delay):
			delay = min(2*delay, maxFollowDelay)
		}
	}
	return nil
}

func (d *Driver) followOnce(ctx context.Context) error {
	c, err := d.client()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var filters []string
	for _, topic := range []string{"/tasks/exit", "/tasks/delete", "/containers/delete"} {
		filters = append(filters, fmt.Sprintf("namespace==%s,topic==%q", d.cfg.Containerd.Namespace(), topic))
	}
	events, failed := c.EventService().Subscribe(ctx, filters...)
	// Events may have been missed before the subscription, so check all
	// sandboxes.
	d.notifyAll(ctx)
	for {
		select {
		case err := <-failed:
			return containerd.Error(err, "events")
		case e := <-events:
			v, err := typeurl.UnmarshalAny(e.Event)
			if err != nil {
				d.logger.Warn("cannot decode an event of containerd", "topic", e.Topic, "error", err)
				continue
			}
			var task string
			switch v := v.(type) {
			case *apievents.TaskExit:
				task = v.ContainerID
			case *apievents.TaskDelete:
				task = v.ContainerID
			case *apievents.ContainerDelete:
				task = v.ID
			}
			if id, ok := sandboxID(task); ok {
				d.notify(id)
			}
		}
	}
}
