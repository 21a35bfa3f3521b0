// Package autoscale reconciles the number of sandboxes of services that follows the load: sandbox_pool.spec.autoscaled,
// within the bounds of spec.autoscale, of the pools of versions that serve.
//
// The load is the requests in flight and those that the ingress holds, which it measures by service and version, and the
// CPU time of the sandboxes, which their nodes measure. WebSockets and streams are requests in flight as long as they are
// open.
//
// Up is fast: the mean of the last seconds decides, and a held request of a service that sleeps decides at once. Down is
// slow: the number falls to the highest that the load wanted within the last minute, or the idle time if that is shorter.
// A service whose least number is 0 sleeps when it had no request for the idle time. What is not known, since an ingress
// or a node does not answer, lowers nothing.
//
// The history of the load is in memory. After a restart the number that a pool has counts as wanted, so it falls later.
// The pool controller makes and stops the sandboxes, and stops none that works on a request.
package autoscale

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/ingress"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/controllers/kit"
	"miren.dev/runtime/domain/sandboxes"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/fault"
	"miren.dev/runtime/pkg/schema"
)

// interval is the time between two measures of the load.
const interval = time.Second

// Ingress measures the load of services; ingress.Client is one.
type Ingress interface {
	// Load measures for the time wait, or until its Wakes is not seen.
	Load(ctx context.Context, seen int64, wait time.Duration) (ingress.Load, error)
}

// Meter reads the resource use of sandboxes.
type Meter interface {
	Stats(ctx context.Context, sid id.Sandbox) (sandbox.Stats, error)
}

// Reconciler sets how many sandboxes the load wants.
type Reconciler struct {
	Store     entity.Store
	Informers *informer.Set // used by Controller
	Ingress   Ingress       // nil: there is none, and only CPU counts
	Meter     Meter
	Node      id.Node                   // of this server, whose ingress measures requests to its own sandboxes only
	Connected func(runner id.Node) bool // whether this server's ingress reaches a runner; nil: none
	Logger    *slog.Logger
	Now       func() time.Time // nil: time.Now

	mu      sync.Mutex
	load    map[service]measure
	history map[schema.ID]*history // by pool
	asleep  map[schema.ID]int64    // Missed when the pool was last found asleep
}

// service is a service of a version.
type service struct {
	version id.AppVersion
	name    string
}

// measure is the last measure of the load of a service.
type measure struct {
	ingress.ServiceLoad
	at   time.Time
	over time.Duration
}

// byLoad is the index of the pools whose number follows the load.
const byLoad = "autoscale"

// Controller describes the reconciler to the controller runtime.
func (r *Reconciler) Controller() kit.Controller {
	pools := informer.Of[sandbox.SandboxPool](r.Informers)
	pools.AddIndex(byLoad, func(p *sandbox.SandboxPool) []string {
		if follows(p) {
			return []string{""}
		}
		return nil
	})
	return kit.Controller{
		Name: "autoscale", Kind: sandbox.SandboxPoolKind, Reconcile: r.Reconcile, Workers: 2,
		Filter: func(o schema.Object) bool { return follows(o.(*sandbox.SandboxPool)) },
		Watches: []kit.Source{kit.Func(func(ctx context.Context, add func(schema.ID)) {
			r.follow(ctx, func() []*sandbox.SandboxPool { return pools.ByIndex(byLoad, "") }, add)
		})},
		Access: kit.Access{
			Reads: []*schema.Kind{app.AppKind, sandbox.SandboxKind},
			Owns:  kit.Fields(sandbox.SandboxPoolKind, "spec.autoscaled"),
		},
	}
}

// follows reports whether the number of sandboxes of a pool follows the load.
func follows(p *sandbox.SandboxPool) bool {
	return p.Spec.Autoscale != nil && p.Spec.App != "" && p.Spec.State == sandbox.PoolStateActive
}

// follow measures the load until ctx ends, and has the pools reconciled after each measure.
func (r *Reconciler) follow(ctx context.Context, pools func() []*sandbox.SandboxPool, add func(schema.ID)) {
	seen := int64(0)
	for ctx.Err() == nil {
		list := pools()
		var err error
		if r.Ingress != nil && len(list) > 0 {
			seen, err = r.measure(ctx, seen)
		}
		if err != nil {
			r.Logger.Debug("the load is not known", "error", err)
		}
		if err != nil || r.Ingress == nil || len(list) == 0 {
			select {
			case <-ctx.Done():
			case <-time.After(interval):
			}
		}
		for _, p := range list {
			if !r.sleepsOn(p) {
				add(p.ID)
			}
		}
	}
}

// sleepsOn reports whether a pool sleeps and has no request that would wake it, so that many which sleep cost no reads of
// the store.
func (r *Reconciler) sleepsOn(p *sandbox.SandboxPool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	m, known := r.load[service{p.Spec.AppVersion, p.Spec.Service}]
	missed, asleep := r.asleep[p.ID]
	return known && asleep && p.Wanted() == 0 && m.Held == 0 && m.InFlight == 0 && m.Missed == missed
}

// measure asks the ingress for the load, and returns the number of its last wake.
func (r *Reconciler) measure(ctx context.Context, seen int64) (int64, error) {
	ask, cancel := context.WithTimeout(ctx, 5*interval)
	defer cancel()
	l, err := r.Ingress.Load(ask, seen, interval)
	if err != nil {
		return seen, err
	}
	at := r.now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.load = map[service]measure{}
	for _, s := range l.Services {
		r.load[service{id.AppVersion(s.Version), s.Service}] = measure{s, at, l.Over}
	}
	return l.Wakes, nil
}

func (r *Reconciler) now() time.Time {
	if r.Now != nil {
		return r.Now()
	}
	return time.Now()
}

// Reconcile writes how many sandboxes the load of one pool wants, if that has changed.
func (r *Reconciler) Reconcile(ctx context.Context, pid schema.ID) (time.Duration, error) {
	p, err := entity.Get[sandbox.SandboxPool](ctx, r.Store, pid)
	if err != nil || !follows(p) {
		r.forget(pid)
		if errs.Is(err, errs.NotFound) {
			return 0, nil
		}
		return 0, err
	}
	a, err := entity.Get[app.App](ctx, r.Store, p.Spec.App)
	if errs.Is(err, errs.NotFound) {
		return 0, nil // it is being deleted, and the pool with it
	}
	if err != nil {
		return 0, err
	}
	if !a.Status.Serves(p.Spec.AppVersion) {
		r.forget(pid) // its rollout says how many start
		return 0, nil
	}
	wanted, err := r.decide(ctx, p)
	if err != nil {
		return 0, err
	}
	before := p.Wanted()
	if wanted < before {
		// Another server's ingress may have requests for its sandboxes: the load is not known.
		elsewhere, err := r.elsewhere(ctx, p)
		if err != nil {
			return 0, err
		}
		if elsewhere {
			wanted = before
		}
	}
	if p.Spec.Autoscaled != nil && *p.Spec.Autoscaled == wanted {
		return 0, nil
	}
	p.Spec.Autoscaled = &wanted
	fault.Point("autoscale", "write", fault.Before)
	err = entity.UpdateSpec(ctx, r.Store, p)
	fault.Point("autoscale", "write", fault.After)
	if err == nil && p.Wanted() != before {
		r.Logger.Info("scaled", "pool", p.ID, "app", a.Name, "service", p.Spec.Service, "from", before, "to", p.Wanted())
	}
	return 0, err
}

// elsewhere reports whether sandboxes of a pool run where other servers may send requests: on their nodes,
// or on runners that are not connected to this server.
func (r *Reconciler) elsewhere(ctx context.Context, p *sandbox.SandboxPool) (bool, error) {
	all, err := sandboxes.InPool(ctx, r.Store, p.GetID())
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(sandboxes.Classify(all).Live, func(sb *sandbox.Sandbox) bool {
		own := sb.Spec.Node == "" || sb.Spec.Node == r.Node || sb.Spec.Runner && r.Connected != nil && r.Connected(sb.Spec.Node)
		return !own
	}), nil
}

func (r *Reconciler) forget(pid schema.ID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.history, pid)
	delete(r.asleep, pid)
}
