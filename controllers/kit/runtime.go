package kit

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// Config of a Runtime.
type Config struct {
	Informers  *informer.Set // source of changes; the caller runs it
	Logger     *slog.Logger
	Registerer prometheus.Registerer // nil: no metrics
	// StopGrace is how long runs under way may continue after the stop before
	// their context ends; default 2 s.
	StopGrace time.Duration
}

// Runtime runs controllers over one store.
type Runtime struct {
	cfg     Config
	metrics *metrics

	mu      sync.Mutex
	started bool
	workers []*worker
	others  []writer // writers that are no controllers
	removes []func() // removes the handlers
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
	return &Runtime{cfg: cfg, metrics: newMetrics(cfg.Registerer), synced: make(chan struct{})}
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
		rt.removes = append(rt.removes, rt.cfg.Informers.Handle(c.Kind, w.changed))
	}
	for _, s := range c.Watches {
		if s.kind == nil {
			continue
		}
		rt.removes = append(rt.removes, rt.cfg.Informers.Handle(s.kind, func(ch informer.Change[schema.Object]) {
			for _, o := range []schema.Object{ch.New, ch.Old} {
				if o == nil {
					continue
				}
				for _, key := range s.keys(o) {
					w.queue.Add(key)
				}
			}
		}))
	}
	return nil
}

// Declare adds a writer that is no controller, such as the operations that
// users call. It must come before Run.
func (rt *Runtime) Declare(name string, a Access) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	rt.others = append(rt.others, writer{name, a})
}

// Check fails if two of the writers that were added own the same field, or if
// one shares a field that its owner does not own.
func (rt *Runtime) Check() error {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	all := slices.Clone(rt.others)
	for _, w := range rt.workers {
		all = append(all, writer{w.Name, w.Access})
	}
	return checkAccess(all)
}

// Synced is closed when every kind has been listed once and the controllers
// work.
func (rt *Runtime) Synced() <-chan struct{} { return rt.synced }

// Run runs the controllers until ctx ends, then waits for the runs that are
// under way, and returns nil. It fails if the store refuses to list a kind.
func (rt *Runtime) Run(ctx context.Context) error {
	rt.mu.Lock()
	if rt.started {
		rt.mu.Unlock()
		return errs.New(errs.FailedPrecondition, "the runtime runs already")
	}
	rt.started = true
	rt.mu.Unlock()
	defer func() {
		for _, remove := range rt.removes {
			remove()
		}
	}()

	// Runs outlive ctx by StopGrace.
	work, kill := context.WithCancel(context.WithoutCancel(ctx))
	defer kill()
	stopKill := context.AfterFunc(ctx, func() { time.AfterFunc(rt.cfg.StopGrace, kill) })
	defer stopKill()

	// Mapping functions and filters have seen every entity before any
	// controller acts.
	if err := rt.cfg.Informers.WaitSynced(ctx); ctx.Err() != nil {
		return nil
	} else if err != nil {
		return err
	}
	close(rt.synced)
	rt.cfg.Logger.Info("controllers run", "controllers", len(rt.workers))

	var wg sync.WaitGroup
	for _, w := range rt.workers {
		for _, s := range w.Watches {
			if s.run != nil {
				wg.Go(func() { s.run(ctx, w.queue.Add) })
			}
		}
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
