package deployment_test

import (
	"context"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// flaky makes a part of its calls fail; half of the failed writes take effect.
type flaky struct {
	entity.Store
	mu  sync.Mutex
	rng *rand.Rand
}

func (f *flaky) draw() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rng.IntN(20)
}

func (f *flaky) Txn(ctx context.Context, req entity.TxnRequest) (entity.TxnResult, error) {
	switch f.draw() {
	case 0:
		return entity.TxnResult{}, errs.New(errs.Unavailable, "connection refused")
	case 1:
		if _, err := f.Store.Txn(ctx, req); err != nil {
			return entity.TxnResult{}, err
		}
		return entity.TxnResult{}, errs.New(errs.Unavailable, "connection reset").With("outcome", "unknown")
	}
	return f.Store.Txn(ctx, req)
}

func (f *flaky) Get(ctx context.Context, kind string, id schema.ID) (schema.Record, error) {
	if f.draw() == 0 {
		return schema.Record{}, errs.New(errs.Unavailable, "connection refused")
	}
	return f.Store.Get(ctx, kind, id)
}

func (f *flaky) List(ctx context.Context, q entity.Query) (entity.Page, error) {
	if f.draw() == 0 {
		return entity.Page{}, errs.New(errs.Unavailable, "connection refused")
	}
	return f.Store.List(ctx, q)
}

func (f *flaky) KeepAlive(ctx context.Context, id schema.LeaseID) (entity.Lease, error) {
	if f.draw() == 0 {
		return entity.Lease{}, errs.New(errs.Unavailable, "connection refused")
	}
	return f.Store.KeepAlive(ctx, id)
}

// A store that sometimes fails delays rollouts and changes nothing about their
// end.
func TestFlakyStore(t *testing.T) {
	e := newEnv(t)
	e.control(&flaky{Store: e.store, rng: rand.New(rand.NewPCG(1, 2))})
	for i := range 6 {
		how, end := "web=ok", app.DeploymentPhaseSucceeded
		if i%3 == 2 {
			how, end = "web=crash", app.DeploymentPhaseFailed
		}
		d := e.phase(e.deploy("shop", e.source("ok", how, "worker=ok")), end)
		if f := d.Status.Failure; f != nil && f.Reason != app.FailureReasonCrash {
			t.Fatalf("failure %+v", f)
		}
		if a := e.settled("shop"); int(a.Spec.VersionCounter) != i+1 {
			t.Fatalf("%d versions after %d deployments", a.Spec.VersionCounter, i+1)
		}
	}
}

// An entity that a user deletes midway is explained, or made again.
func TestDeletedMidway(t *testing.T) {
	remove := func(e *env, o schema.Object) {
		e.Helper()
		for {
			rec, err := e.store.Get(e.Context(), o.EntityKind().Name, o.GetMeta().ID)
			if err != nil {
				e.Fatal(err)
			}
			o.GetMeta().Revision = rec.Revision
			if err := entity.Delete(e.Context(), e.store, o); !errs.Is(err, errs.Conflict) {
				if err != nil {
					e.Fatal(err)
				}
				return
			}
		}
	}
	fails := func(e *env, d *app.Deployment, reason app.FailureReason) {
		e.Helper()
		d = e.phase(d, app.DeploymentPhaseFailed)
		if f := d.Status.Failure; f.Reason != reason || !strings.Contains(f.Message, "deleted") || f.Hint == "" {
			e.Errorf("failure %+v", f)
		}
	}
	newPools := func(e *env, d *app.Deployment) []*sandbox.SandboxPool {
		return list(e, func(p *sandbox.SandboxPool) bool { return p.Spec.AppVersion == e.get(d).Status.Version })
	}
	for name, test := range map[string]func(e *env){
		"build": func(e *env) {
			d := e.phase(e.deploy("shop", e.source("hang", "web=ok")), app.DeploymentPhaseBuilding)
			remove(e, list(e, func(b *app.Build) bool { return b.GetID() == d.Spec.Build })[0])
			fails(e, d, app.FailureReasonBuild)
		},
		"version": func(e *env) {
			d := e.phase(e.deploy("shop", e.source("ok", "web=gate")), app.DeploymentPhaseStarting)
			remove(e, e.version(d))
			fails(e, d, app.FailureReasonImage)
		},
		"pool": func(e *env) {
			d := e.phase(e.deploy("shop", e.source("ok", "web=gate")), app.DeploymentPhaseStarting)
			e.eventually("pool", func() bool { return len(newPools(e, d)) == 1 })
			remove(e, newPools(e, d)[0])
			e.gate.Store(true)
			e.succeed(d)
		},
		"sandbox stopped": func(e *env) {
			d := e.phase(e.deploy("shop", e.source("ok", "web=gate")), app.DeploymentPhaseStarting)
			var sbs []*sandbox.Sandbox
			e.eventually("sandbox", func() bool {
				sbs = list(e, func(sb *sandbox.Sandbox) bool { return sb.Spec.AppVersion == d.Status.Version })
				return len(sbs) == 1
			})
			if _, err := entity.ModifySpec(e.Context(), e.store, sbs[0].ID, func(sb *sandbox.Sandbox) error {
				sb.Spec.Desired = sandbox.DesiredStateStopped
				return nil
			}); err != nil {
				e.Fatal(err)
			}
			e.eventually("another", func() bool {
				return len(list(e, func(sb *sandbox.Sandbox) bool { return sb.Spec.AppVersion == d.Status.Version })) == 2
			})
			e.gate.Store(true)
			e.succeed(d)
		},
		"deployment": func(e *env) {
			d := e.phase(e.deploy("shop", e.source("ok", "web=gate")), app.DeploymentPhaseStarting)
			e.eventually("pool", func() bool { return len(newPools(e, d)) == 1 })
			remove(e, d)
			e.eventually("the app forgets it", func() bool {
				// The app has not changed, so only a write to it wakes the
				// controller.
				if _, err := entity.ModifySpec(e.Context(), e.store, e.app("shop").ID, func(a *app.App) error { return nil }); err != nil {
					e.Fatal(err)
				}
				return e.app("shop").Status.ActiveDeployment == ""
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t)
			e.control(e.store)
			e.succeed(e.deploy("shop", e.source("ok", "web=ok")))
			test(e)
			e.settled("shop")
			e.gate.Store(true)
			e.succeed(e.deploy("shop", e.source("ok", "web=ok")))
			e.settled("shop")
		})
	}
}
