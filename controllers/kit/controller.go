package kit

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// Controller describes one controller.
type Controller struct {
	Name string // in logs and metrics; unique
	// Kind is the kind that it reconciles: keys are ids of this kind. Nil for a
	// controller that only Watches feed.
	Kind *schema.Kind
	// Filter selects the entities whose changes are delivered; nil: all. An
	// entity that passed before a change but not after it is delivered once
	// more.
	Filter func(schema.Object) bool
	// Reconcile makes the system match the entity key. It reads the entity
	// itself, which may be gone. The key is reconciled again after the returned
	// time if nothing changes sooner; 0: only after a change.
	Reconcile func(ctx context.Context, key schema.ID) (again time.Duration, err error)
	// Deleted, if set, is called instead of Reconcile for an entity that was
	// deleted, with the last object, until it succeeds.
	Deleted func(ctx context.Context, last schema.Object) error
	Watches []Source // kinds besides Kind
	Access           // what it reads and writes in the store

	Workers int           // default 1
	Resync  time.Duration // the time after which all keys are reconciled again; default 10 min; negative: never
	Timeout time.Duration // bounds one run; 0: none
	Backoff Backoff
}

// Watched returns the kinds that it watches besides its own.
func (c *Controller) Watched() []*schema.Kind {
	var out []*schema.Kind
	for _, s := range c.Watches {
		if s.kind != nil && s.kind != c.Kind && !slices.Contains(out, s.kind) {
			out = append(out, s.kind)
		}
	}
	return out
}

// Declared returns its Access, in which Reads has every kind that it may read.
func (c *Controller) Declared() Access {
	a := c.Access
	a.Reads = append(slices.Clone(a.Reads), c.Watched()...)
	if c.Kind != nil {
		a.Reads = append(a.Reads, c.Kind)
	}
	return a
}

// Last makes a Deleted function of one that gets the typed object.
func Last[T any, P entity.ObjectPtr[T]](fn func(ctx context.Context, o P) error) func(context.Context, schema.Object) error {
	return func(ctx context.Context, o schema.Object) error {
		p, ok := o.(P)
		if !ok {
			return Terminal(errs.New(errs.Internal, "deleted %s is a %T", o.EntityKind().Name, o))
		}
		return fn(ctx, p)
	}
}

// worker runs one Controller.
type worker struct {
	Controller
	queue   *Queue
	logger  *slog.Logger
	metrics *metrics

	mu      sync.Mutex
	known   map[schema.ID]bool // entities of Kind that pass Filter
	deleted map[schema.ID]schema.Object
	runs    int64
	failure *Failure // the last failure
}

func newWorker(c Controller, log *slog.Logger, m *metrics) *worker {
	w := &worker{Controller: c, queue: NewQueue(c.Backoff), logger: log.With("controller", c.Name), metrics: m,
		known: map[schema.ID]bool{}, deleted: map[schema.ID]schema.Object{}}
	m.queue(c.Name, w.queue)
	return w
}

// changed handles a change of an entity of Kind.
func (w *worker) changed(c informer.Change[schema.Object]) {
	o, gone := c.New, c.New == nil
	if gone {
		o = c.Old
	}
	id := o.GetMeta().ID
	pass := w.Filter == nil || w.Filter(o)
	w.mu.Lock()
	was := w.known[id]
	if pass && !gone {
		w.known[id] = true
	} else {
		delete(w.known, id)
	}
	if gone && w.Deleted != nil && (pass || was) {
		w.deleted[id] = o
	}
	w.mu.Unlock()
	if pass || was {
		w.queue.Add(id)
	}
}

func (w *worker) resync() {
	w.mu.Lock()
	keys := make([]schema.ID, 0, len(w.known))
	for id := range w.known {
		keys = append(keys, id)
	}
	w.mu.Unlock()
	for _, id := range keys {
		w.queue.Resync(id)
	}
}

// run takes keys until stop ends; the runs themselves get ctx.
func (w *worker) run(stop, ctx context.Context) {
	busy := w.metrics.busy.WithLabelValues(w.Name)
	for {
		key, err := w.queue.Get(stop)
		if err != nil {
			return
		}
		busy.Inc()
		w.one(ctx, key)
		busy.Dec()
	}
}

func (w *worker) one(ctx context.Context, key schema.ID) {
	start := time.Now()
	again, err, panicked := w.call(ctx, key)
	took := time.Since(start)

	o := Outcome{Err: err, Terminal: IsTerminal(err), After: again}
	result := resultOK
	switch {
	case panicked:
		result = resultPanic
	case o.Terminal:
		result = resultTerminal
	case errs.Is(err, errs.Conflict):
		result = resultConflict
	case err != nil:
		result = resultError
	case again > 0:
		result = resultRequeue
	}
	w.ended(key, err)
	delay := w.queue.Finish(key, o)
	w.metrics.ran(w.Name, result, took)

	switch {
	case err == nil, ctx.Err() != nil: // the process is stopping; the next one starts over
	case o.Terminal:
		w.logger.Error("reconcile failed for good", "id", key, "error", err)
	case result == resultConflict:
		w.logger.Debug("reconcile met another writer", "id", key, "error", err, "retry_in", delay)
	default:
		w.logger.Warn("reconcile failed", "id", key, "error", err, "retry_in", delay)
	}
}

// ended records the outcome of a run.
func (w *worker) ended(key schema.ID, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.runs++
	if err != nil {
		w.failure = &Failure{Key: key, Err: err, At: time.Now()}
	}
}

func (w *worker) call(ctx context.Context, key schema.ID) (again time.Duration, err error, panicked bool) {
	defer func() {
		if p := recover(); p != nil {
			w.logger.Error("reconcile panicked", "id", key, "panic", p, "stack", string(debug.Stack()))
			again, err, panicked = 0, fmt.Errorf("panic: %v", p), true
		}
	}()
	if w.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, w.Timeout)
		defer cancel()
	}
	w.mu.Lock()
	last := w.deleted[key]
	w.mu.Unlock()
	if last == nil {
		again, err = w.Reconcile(ctx, key)
		return again, err, false
	}
	if err = w.Deleted(ctx, last); err == nil || IsTerminal(err) {
		w.mu.Lock()
		if w.deleted[key] == last {
			delete(w.deleted, key)
		}
		w.mu.Unlock()
	}
	return 0, err, false
}
