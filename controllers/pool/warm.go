package pool

import (
	"context"
	"log/slog"
	"reflect"
	"runtime"
	"slices"
	"sync"
	"time"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/controllers/kit"
	"miren.dev/runtime/domain/sandboxes"
	"miren.dev/runtime/domain/templates"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

const (
	// yield is how long a pool that still has warm sandboxes waits after a claim
	// before it makes more: the claimed sandbox gets the processors first.
	yield = 200 * time.Millisecond
	// maxHold is how long claims may keep a pool from being reconciled while it has
	// warm sandboxes.
	maxHold = time.Second
	// indexWaiting is the informer's index of sandboxes that can be claimed, by warm pool.
	indexWaiting = "waiting in warm pool"
	// indexTemplate is the informer's index of warm pools by template.
	indexTemplate = "template"
)

// Warm keeps each warm pool at as many sandboxes as the largest recent burst of
// claims took, within its bounds. While a sandbox of anything else finds no
// room on any node, warm pools keep none.
type Warm struct {
	Store     entity.Store
	Informers *informer.Set
	Templates *templates.Service
	Demand    *sandboxes.Demand
	Logger    *slog.Logger
	Now       func() time.Time // nil: time.Now

	started time.Time // when this process began to count demand

	mu   sync.Mutex
	held map[schema.ID]time.Time // pools that are not reconciled because of claims, and since when
}

// Controller describes it to the controller runtime.
func (r *Warm) Controller() kit.Controller {
	r.started = r.now()
	pools := informer.Of[sandbox.WarmPool](r.Informers)
	pools.AddIndex(indexTemplate, func(p *sandbox.WarmPool) []string { return []string{string(p.Spec.Template)} })
	informer.Of[sandbox.Sandbox](r.Informers).AddIndex(indexWaiting, func(sb *sandbox.Sandbox) []string {
		if !sandboxes.Claimable(sb) {
			return nil
		}
		return []string{string(sb.Spec.WarmPool)}
	})
	keys := func(list []*sandbox.WarmPool) []id.WarmPool {
		var out []id.WarmPool
		for _, p := range list {
			out = append(out, p.GetID())
		}
		return out
	}
	return kit.Controller{
		Name: "warm-pool", Kind: sandbox.WarmPoolKind, Reconcile: r.Reconcile, Workers: 4,
		Watches: []kit.Source{
			kit.Map(func(sb *sandbox.Sandbox) []id.WarmPool {
				if sandboxes.Homeless(sb) {
					return keys(pools.List())
				}
				return kit.Key(sb.Spec.WarmPool)
			}),
			kit.Map(func(t *sandbox.Template) []id.WarmPool { return keys(pools.ByIndex(indexTemplate, string(t.ID))) }),
			kit.Func(func(ctx context.Context, add func(schema.ID)) {
				r.Demand.OnChange(func(p id.WarmPool) { add(schema.ID(p)) })
				<-ctx.Done()
			}),
		},
		Access: kit.Access{
			Reads:   []*schema.Kind{sandbox.TemplateVersionKind},
			Creates: []*schema.Kind{sandbox.SandboxKind},
			Deletes: []*schema.Kind{sandbox.SandboxKind},
			Owns:    kit.Fields(sandbox.WarmPoolKind, "status"),
			Shares:  shares(),
		},
	}
}

// shares are the fields of a pool's sandboxes that other writers own.
func shares() []kit.Share {
	warm := func(before, _ schema.Object) bool { return before.(*sandbox.Sandbox).Spec.WarmPool != "" }
	out := []kit.Share{countedShare()}
	for _, f := range kit.Fields(sandbox.SandboxKind, "spec.desired", "spec.stop_reason") {
		out = append(out, kit.Share{Field: f, Owner: "api", Why: "to stop one of its own that is too many", When: warm})
	}
	return out
}

func (r *Warm) now() time.Time {
	if r.Now != nil {
		return r.Now()
	}
	return time.Now()
}

// pressed reports whether any sandbox waits for room.
func (r *Warm) pressed(ctx context.Context) (bool, error) {
	pending, err := sandboxes.Pending(ctx, r.Store)
	if err != nil {
		return false, err
	}
	paused, _, err := entity.List[sandbox.Sandbox](ctx, r.Store, entity.Where(sandbox.SandboxAttrPhase, sandbox.SandboxPhasePaused))
	return slices.ContainsFunc(append(pending, paused...), sandboxes.Homeless), err
}

// hold returns for how long a pool is left alone because of a claim, which the
// reads of a reconciliation would delay; 0: it is not.
func (r *Warm) hold(pid schema.ID, now time.Time) time.Duration {
	wait := yield - now.Sub(r.Demand.Last(id.WarmPool(pid)))
	waiting := len(informer.Of[sandbox.Sandbox](r.Informers).ByIndex(indexWaiting, string(pid)))
	r.mu.Lock()
	defer r.mu.Unlock()
	since, held := r.held[pid]
	if wait <= 0 || waiting == 0 || held && now.Sub(since) >= maxHold {
		delete(r.held, pid)
		return 0
	}
	if !held {
		if r.held == nil {
			r.held = map[schema.ID]time.Time{}
		}
		r.held[pid] = now
	}
	return wait
}

// Reconcile brings one warm pool closer to its target and returns after how
// long to reconcile it again (0: when something changes).
func (r *Warm) Reconcile(ctx context.Context, pid schema.ID) (time.Duration, error) {
	now := r.now()
	if wait := r.hold(pid, now); wait > 0 {
		return wait, nil
	}
	p, err := entity.Get[sandbox.WarmPool](ctx, r.Store, pid)
	if errs.Is(err, errs.NotFound) {
		r.Demand.Forget(id.WarmPool(pid))
		return 0, nil // the deletion of the pool cascades to its sandboxes
	}
	if err != nil {
		return 0, err
	}
	t, err := entity.Get[sandbox.Template](ctx, r.Store, p.Spec.Template)
	if err != nil {
		return 0, err
	}
	all, _, err := entity.List[sandbox.Sandbox](ctx, r.Store, entity.Where(sandbox.SandboxAttrWarmPool, pid))
	if err != nil {
		return 0, err
	}
	members := sandboxes.Classify(all)
	before := p.Status
	current, stale := divide(members.Live, t.Status.Version)
	wanted, again, err := r.target(ctx, p, len(current), now)
	if err != nil {
		return 0, err
	}
	p.Status.Target = int64(wanted)
	p.Status.Warm, p.Status.Starting = int64(members.Ready), int64(len(members.Live)-members.Ready)
	b := backoff{&p.Status.Failures, &p.Status.NextStart, &p.Status.Message}
	counted, recount := b.account(members, now)
	again = soonest(again, recount)
	ops, err := markCounted(counted)
	if err != nil {
		return 0, err
	}
	ended, err := stop(stale[:min(len(stale), maxAtOnce)], sandbox.EndReasonIdle)
	if err != nil {
		return 0, err
	}
	ops = append(ops, ended...)
	if excess := len(current) - wanted; excess > 0 {
		order := current[len(current)-excess:] // the newest: the oldest are the warmest
		ended, err := stop(order[:min(excess, maxAtOnce)], sandbox.EndReasonIdle)
		if err != nil {
			return 0, err
		}
		ops = append(ops, ended...)
	}
	if missing := wanted - len(current); missing > 0 {
		more, wait, err := r.fill(ctx, p, t, missing, now)
		if err != nil {
			return 0, err
		}
		ops, again = append(ops, more...), soonest(again, wait)
	}
	if !reflect.DeepEqual(before, p.Status) {
		op, err := entity.UpdateStatusOp(p)
		if err != nil {
			return 0, err
		}
		ops = append(ops, op)
	}
	if err := write(ctx, r.Store, "warm", ops); err != nil {
		return 0, err
	}
	surplus := surplusEnded(members.Ended)
	return again, deleteEnded(ctx, r.Store, surplus[:min(len(surplus), maxAtOnce)])
}

// target returns how many sandboxes the pool shall hold, and after how long
// that may change by itself.
func (r *Warm) target(ctx context.Context, p *sandbox.WarmPool, have int, now time.Time) (wanted int, again time.Duration, err error) {
	if pressed, err := r.pressed(ctx); pressed || err != nil {
		return 0, time.Minute, err
	}
	peak, expires := r.Demand.Peak(p.GetID(), now.Add(-p.Spec.Idle))
	wanted = max(peak, int(p.Spec.Min))
	if peak > 0 {
		again = max(time.Millisecond, expires.Add(p.Spec.Idle).Sub(now))
	}
	// Demand before the start of this process is not known: the existing ones stay.
	if until := r.started.Add(p.Spec.Idle).Sub(now); until > 0 && have > wanted {
		wanted, again = have, soonest(again, until)
	}
	return min(wanted, int(p.Spec.Max)), again, nil
}

// fill returns the operations that make up to n more sandboxes, or after how
// long to try again.
func (r *Warm) fill(ctx context.Context, p *sandbox.WarmPool, t *sandbox.Template, n int, now time.Time) ([]entity.Op, time.Duration, error) {
	if p.Status.NextStart != nil && now.Before(*p.Status.NextStart) {
		return nil, p.Status.NextStart.Sub(now), nil
	}
	if wait := yield - now.Sub(r.Demand.Last(p.GetID())); wait > 0 && p.Status.Warm > 0 {
		return nil, wait, nil
	}
	// Few at a time: a sandbox that starts takes a processor from those in use.
	n = min(n, max(1, runtime.NumCPU())-int(p.Status.Starting))
	if n <= 0 || t.Status.Version == "" {
		return nil, 0, nil
	}
	v, err := entity.Get[sandbox.TemplateVersion](ctx, r.Store, t.Status.Version)
	if err != nil {
		return nil, 0, err
	}
	image, err := r.Templates.Image(ctx, v)
	if err != nil {
		p.Status.Message = err.Error()
		return nil, maxBackoff, nil
	}
	if p.Status.Failures == 0 {
		p.Status.Message = ""
	}
	var ops []entity.Op
	for range n {
		p.Status.Starting++
		sb := sandbox.NewSandbox()
		sb.Project, sb.Spec.WarmPool, sb.Spec.TemplateVersion = p.Project, p.GetID(), v.GetID()
		sb.Spec.Template = sandboxes.OfVersion(v, image)
		op, err := entity.CreateOp(sb)
		if err != nil {
			return nil, 0, err
		}
		ops = append(ops, op)
	}
	return ops, 0, nil
}

// divide separates the sandboxes of the template's current version from older
// ones.
func divide(live []*sandbox.Sandbox, version id.TemplateVersion) (current, stale []*sandbox.Sandbox) {
	for _, sb := range live {
		if sb.Spec.TemplateVersion == version {
			current = append(current, sb)
		} else {
			stale = append(stale, sb)
		}
	}
	return current, stale
}

// soonest returns the shorter of two times, of which 0 means never.
func soonest(a, b time.Duration) time.Duration {
	if b == 0 {
		return a
	}
	return earlier(a, b)
}
