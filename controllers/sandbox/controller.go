package sandbox

import (
	"context"
	"time"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/controllers/runtime"
	"miren.dev/runtime/pkg/schema"
)

const (
	// workers bounds the sandboxes that are set up at the same time.
	workers = 16
	// sweepEvery is how often everything that the driver has is looked at.
	sweepEvery = time.Minute
)

// Controller describes the reconciler to the controller runtime: it is woken
// by changes of sandboxes of this node, by the driver, and for everything that
// the driver has, which is how what has no entity any more is found.
func (r *Reconciler) Controller() runtime.Controller {
	return runtime.Controller{
		Name: "sandbox", Kind: sandbox.SandboxKind, Filter: r.Mine, Workers: workers, Resync: time.Minute,
		Reconcile: func(ctx context.Context, key schema.ID) (runtime.Result, error) {
			d, err := r.Reconcile(ctx, key)
			return runtime.Result{RequeueAfter: d}, err
		},
		Watches: []runtime.Source{runtime.Func(r.watchDriver), runtime.Func(r.sweep)},
	}
}

// watchDriver adds the sandboxes that the driver saw change, until ctx ends.
func (r *Reconciler) watchDriver(ctx context.Context, add func(schema.ID)) {
	for ctx.Err() == nil {
		ch, err := r.Driver.Watch(ctx)
		if err == nil {
			for sid := range ch {
				add(schema.ID(sid))
			}
		} else {
			r.Log.Warn("watch the driver", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

// logLister is a driver that can list the sandboxes whose logs it keeps.
type logLister interface {
	LogIDs(ctx context.Context) ([]string, error)
}

// sweep adds everything that the driver has, logs included, now and then.
func (r *Reconciler) sweep(ctx context.Context, add func(schema.ID)) {
	t := time.NewTicker(sweepEvery)
	defer t.Stop()
	for {
		list, err := r.Driver.List(ctx)
		if err != nil && ctx.Err() == nil {
			r.Log.Warn("list the sandboxes of this node", "error", err)
		}
		for i := range list {
			add(schema.ID(list[i].ID))
		}
		if l, ok := r.Driver.(logLister); ok {
			ids, err := l.LogIDs(ctx)
			if err != nil && ctx.Err() == nil {
				r.Log.Warn("list the logs of sandboxes of this node", "error", err)
			}
			for _, sid := range ids {
				add(schema.ID(sid))
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}
