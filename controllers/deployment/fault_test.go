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

// flaky fails a part of its calls; of the writes, half of those that fail
// happened.
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

// A store that fails now and then delays rollouts and changes nothing about
// how they end.
func TestFlakyStore(t *testing.T) {
	w := newWorld(t)
	w.control(&flaky{Store: w.store, rng: rand.New(rand.NewPCG(1, 2))})
	for i := range 6 {
		how, end := "web=ok", app.DeploymentPhaseSucceeded
		if i%3 == 2 {
			how, end = "web=crash", app.DeploymentPhaseFailed
		}
		d := w.phase(w.deploy("shop", w.source("ok", how, "worker=ok")), end)
		if f := d.Status.Failure; f != nil && f.Reason != app.FailureReasonCrash {
			t.Fatalf("failure %+v", f)
		}
		if a := w.settled("shop"); int(a.Spec.VersionCounter) != i+1 {
			t.Fatalf("%d versions after %d deployments", a.Spec.VersionCounter, i+1)
		}
	}
}

// What somebody deletes midway is explained, or made again.
func TestDeletedMidway(t *testing.T) {
	remove := func(w *world, o schema.Object) {
		w.Helper()
		for {
			rec, err := w.store.Get(w.Context(), o.EntityKind().Name, o.GetMeta().ID)
			if err != nil {
				w.Fatal(err)
			}
			o.GetMeta().Revision = rec.Revision
			if err := entity.Delete(w.Context(), w.store, o); !errs.Is(err, errs.Conflict) {
				if err != nil {
					w.Fatal(err)
				}
				return
			}
		}
	}
	fails := func(w *world, d *app.Deployment, reason app.FailureReason) {
		w.Helper()
		d = w.phase(d, app.DeploymentPhaseFailed)
		if f := d.Status.Failure; f.Reason != reason || !strings.Contains(f.Message, "deleted") || f.Hint == "" {
			w.Errorf("failure %+v", f)
		}
	}
	newPools := func(w *world, d *app.Deployment) []*sandbox.SandboxPool {
		return list(w, func(p *sandbox.SandboxPool) bool { return p.Spec.AppVersion == w.get(d).Status.Version })
	}
	for name, test := range map[string]func(w *world){
		"build": func(w *world) {
			d := w.phase(w.deploy("shop", w.source("hang", "web=ok")), app.DeploymentPhaseBuilding)
			remove(w, list(w, func(b *app.Build) bool { return b.GetID() == d.Spec.Build })[0])
			fails(w, d, app.FailureReasonBuild)
		},
		"version": func(w *world) {
			d := w.phase(w.deploy("shop", w.source("ok", "web=gate")), app.DeploymentPhaseStarting)
			remove(w, w.version(d))
			fails(w, d, app.FailureReasonImage)
		},
		"pool": func(w *world) {
			d := w.phase(w.deploy("shop", w.source("ok", "web=gate")), app.DeploymentPhaseStarting)
			w.eventually("pool", func() bool { return len(newPools(w, d)) == 1 })
			remove(w, newPools(w, d)[0])
			w.gate.Store(true)
			w.succeed(d)
		},
		"sandbox stopped": func(w *world) {
			d := w.phase(w.deploy("shop", w.source("ok", "web=gate")), app.DeploymentPhaseStarting)
			var sbs []*sandbox.Sandbox
			w.eventually("sandbox", func() bool {
				sbs = list(w, func(sb *sandbox.Sandbox) bool { return sb.Spec.AppVersion == d.Status.Version })
				return len(sbs) == 1
			})
			if _, err := entity.ModifySpec(w.Context(), w.store, sbs[0].ID, func(sb *sandbox.Sandbox) error {
				sb.Spec.Desired = sandbox.DesiredStateStopped
				return nil
			}); err != nil {
				w.Fatal(err)
			}
			w.eventually("another", func() bool {
				return len(list(w, func(sb *sandbox.Sandbox) bool { return sb.Spec.AppVersion == d.Status.Version })) == 2
			})
			w.gate.Store(true)
			w.succeed(d)
		},
		"deployment": func(w *world) {
			d := w.phase(w.deploy("shop", w.source("ok", "web=gate")), app.DeploymentPhaseStarting)
			w.eventually("pool", func() bool { return len(newPools(w, d)) == 1 })
			remove(w, d)
			w.eventually("the app forgets it", func() bool {
				// Nothing about the app has changed: it is looked at when somebody writes it.
				if _, err := entity.ModifySpec(w.Context(), w.store, w.app("shop").ID, func(a *app.App) error { return nil }); err != nil {
					w.Fatal(err)
				}
				return w.app("shop").Status.ActiveDeployment == ""
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.control(w.store)
			w.succeed(w.deploy("shop", w.source("ok", "web=ok")))
			test(w)
			w.settled("shop")
			w.gate.Store(true)
			w.succeed(w.deploy("shop", w.source("ok", "web=ok")))
			w.settled("shop")
		})
	}
}
