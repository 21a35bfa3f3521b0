package kit

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// Config of a Runtime.
type Config struct {
	Reader     entity.Reader // where changes come from; an entity.Store is one
	Logger     *slog.Logger
	Registerer prometheus.Registerer // nil: no metrics
	// StopGrace is how long runs that are under way may go on after the stop
	// before their context ends; default 2 s.
	StopGrace time.Duration
}

// Runtime runs controllers over one store.
type Runtime struct {
	cfg     Config
	metrics *metrics

	mu      sync.Mutex
	started bool
	workers []*worker
	feeds   map[string]*feed
	synced  chan struct{}
}

// New returns a runtime without controllers.
func New(cfg Config) *Runtime {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.StopGrace <= 0 {
		cfg.StopGrace = 2 * time.Second
	}
	return &Runtime{cfg: cfg, metrics: newMetrics(cfg.Registerer), feeds: map[string]*feed{}, synced: make(chan struct{})}
}

// Add registers a controller. It must come before Run.
func (rt *Runtime) Add(c Controller) error {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	switch {
	case rt.started:
		return errs.New(errs.FailedPrecondition, "controller %q added to a running runtime", c.Name)
	case c.Name == "" || c.Reconcile == nil:
		return errs.New(errs.InvalidArgument, "controller %q needs a name and Reconcile", c.Name)
	case c.Kind == nil && len(c.Watches) == 0:
		return errs.New(errs.InvalidArgument, "controller %q watches nothing", c.Name)
	case c.Kind == nil && (c.Deleted != nil || c.Filter != nil):
		return errs.New(errs.InvalidArgument, "controller %q has Deleted or Filter without a kind", c.Name)
	}
	for _, w := range rt.workers {
		if w.Name == c.Name {
			return errs.New(errs.AlreadyExists, "two controllers are named %q", c.Name)
		}
	}
	if c.Workers <= 0 {
		c.Workers = 1
	}
	if c.Resync == 0 {
		c.Resync = 10 * time.Minute
	}
	w := newWorker(c, rt.cfg.Logger, rt.metrics)
	rt.workers = append(rt.workers, w)
	if c.Kind != nil {
		rt.follow(c.Kind, func(_, now schema.Object, gone bool) { w.changed(now, gone) })
	}
	for _, s := range c.Watches {
		if s.kind == nil {
			continue
		}
		rt.follow(s.kind, func(before, now schema.Object, _ bool) {
			for _, key := range s.keys(now) {
				w.queue.Add(key)
			}
			if before != nil {
				for _, key := range s.keys(before) {
					w.queue.Add(key)
				}
			}
		})
	}
	return nil
}

// follow is called with mu held.
func (rt *Runtime) follow(k *schema.Kind, h func(before, now schema.Object, gone bool)) {
	f := rt.feeds[k.Name]
	if f == nil {
		f = newFeed(rt.cfg.Reader, k, rt.cfg.Logger)
		rt.feeds[k.Name] = f
	}
	f.handlers = append(f.handlers, h)
}

// Synced is closed when every kind has been listed once and the controllers
// work.
func (rt *Runtime) Synced() <-chan struct{} { return rt.synced }

// Run runs the controllers until ctx ends, then waits for the runs that are
// under way, and returns nil.
func (rt *Runtime) Run(ctx context.Context) error {
	rt.mu.Lock()
	if rt.started {
		rt.mu.Unlock()
		return errs.New(errs.FailedPrecondition, "the runtime runs already")
	}
	rt.started = true
	rt.mu.Unlock()

	// Runs outlive ctx by StopGrace.
	work, kill := context.WithCancel(context.WithoutCancel(ctx))
	defer kill()
	stopKill := context.AfterFunc(ctx, func() { time.AfterFunc(rt.cfg.StopGrace, kill) })
	defer stopKill()

	var wg sync.WaitGroup
	for _, f := range rt.feeds {
		wg.Go(func() { f.run(ctx) })
	}
	for _, w := range rt.workers {
		for _, s := range w.Watches {
			if s.run != nil {
				wg.Go(func() { s.run(ctx, w.queue.Add) })
			}
		}
	}
	// Mapping functions and filters have seen the whole before anybody acts.
	for _, f := range rt.feeds {
		select {
		case <-f.synced:
		case <-ctx.Done():
		}
	}
	if ctx.Err() == nil {
		close(rt.synced)
		rt.cfg.Logger.Info("controllers run", "controllers", len(rt.workers), "kinds", len(rt.feeds))
	}
	for _, w := range rt.workers {
		for range w.Workers {
			wg.Go(func() { w.run(ctx, work) })
		}
		if w.Resync > 0 {
			wg.Go(func() { w.resyncEvery(ctx) })
		}
	}
	wg.Wait()
	for _, w := range rt.workers {
		w.queue.Stop()
	}
	return nil
}

func (w *worker) resyncEvery(ctx context.Context) {
	t := time.NewTicker(w.Resync)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			w.resync()
		case <-ctx.Done():
			return
		}
	}
}
