package deployment_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/api/addon"
	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/addons"
	"miren.dev/runtime/domain/apps"
	"miren.dev/runtime/entity"
)

// A version that fails once it has the traffic loses it again, with what the app had
// before: version, sandboxes and, after a rollback, environment.
func TestBakeFails(t *testing.T) {
	for sim, reason := range map[string]app.FailureReason{"late": app.FailureReasonCrash, "wilt": app.FailureReasonUnhealthy, "hang": app.FailureReasonUnhealthy} {
		t.Run(sim, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t)
			stop := e.control(e.store)
			d1 := e.succeed(e.deploy("shop", e.source("ok", "web=ok", "many=ok")))
			e.settled("shop")
			stop()
			e.bake = time.Hour
			e.control(e.store)
			d2 := e.phase(e.deploy("shop", e.source("ok", "web="+sim)), app.DeploymentPhaseFailed)
			f := d2.Status.Failure
			if f == nil || f.Reason != reason || !strings.Contains(f.Message, "the version before serves again") {
				t.Errorf("failure %+v", f)
			}
			if a := e.settled("shop"); a.Status.Active() != d1.Status.Version || e.live("shop") != 6 {
				t.Errorf("%s serves with %d sandboxes, want %s with 6", a.Status.Active(), e.live("shop"), d1.Status.Version)
			}
			// A rollback does not choose it.
			for d, served := range map[*app.Deployment]bool{d1: true, d2: false} {
				if v, err := entity.Get[app.AppVersion](t.Context(), e.store, d.Status.Version); err != nil || (v.Status.ServedAt != nil) != served {
					t.Errorf("version %s: served at %v, %v", d.Status.Version, v.Status.ServedAt, err)
				}
			}
		})
	}
}

// The version before stays until the new one has held, and a cancel gives it the
// traffic back.
func TestBakeHolds(t *testing.T) {
	e := newEnv(t)
	e.bake = time.Hour
	e.control(e.store)
	d1 := e.phase(e.deploy("shop", e.source("ok", "web=ok")), app.DeploymentPhaseBaking)
	e.advance(2 * time.Hour)
	e.succeed(d1)
	running := func(v *app.Deployment) bool {
		return len(list(e, func(sb *sandbox.Sandbox) bool { return sb.Spec.AppVersion == v.Status.Version && sb.Status.Ready })) == 1
	}
	d2 := e.phase(e.deploy("shop", e.source("ok", "web=ok")), app.DeploymentPhaseBaking)
	if a := e.app("shop"); a.Status.Active() != d2.Status.Version || !running(d1) || !running(d2) {
		t.Fatalf("%s serves, old %t, new %t", a.Status.Active(), running(d1), running(d2))
	}
	for _, p := range list(e, func(p *sandbox.SandboxPool) bool { return p.Spec.AppVersion == d1.Status.Version }) {
		if p.Spec.State != sandbox.PoolStateDraining {
			t.Errorf("pool %s is %s", p.Name, p.Spec.State)
		}
	}
	if _, err := e.apps.Cancel(t.Context(), "", "shop"); err != nil {
		t.Fatal(err)
	}
	e.phase(d2, app.DeploymentPhaseCanceled)
	if a := e.settled("shop"); a.Status.Active() != d1.Status.Version || !running(d1) {
		t.Errorf("%s serves, want %s", a.Status.Active(), d1.Status.Version)
	}
	d3 := e.phase(e.deploy("shop", e.source("ok", "web=ok")), app.DeploymentPhaseBaking)
	e.advance(4 * time.Hour)
	e.succeed(d3)
	if a := e.settled("shop"); a.Status.Active() != d3.Status.Version || running(d1) {
		t.Errorf("%s serves, want %s alone", a.Status.Active(), d3.Status.Version)
	}
}

// TestRollbackTakenBackAfterADetach: a rollback that fails restores the environment of the app, but no variables of an
// addon that a user has detached.
func TestRollbackTakenBackAfterADetach(t *testing.T) {
	e := newEnv(t)
	stop := e.control(e.store)
	e.succeed(e.deploy("shop", e.source("ok", "web=ok")))
	a := e.settled("shop")
	x := addon.NewAddon()
	x.Project, x.Name, x.Spec.Engine, x.Spec.Version = a.Project, "cache", addon.EngineValkey, "8"
	if err := entity.Create(t.Context(), e.store, x); err != nil {
		t.Fatal(err)
	}
	attached := addons.NewAttachment(x, a, "")
	if err := entity.Create(t.Context(), e.store, attached); err != nil {
		t.Fatal(err)
	}
	set := func(c apps.EnvChange) {
		t.Helper()
		d, _, err := e.apps.SetEnv(t.Context(), "", "shop", c, apps.DeployRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if d != nil {
			e.succeed(d)
			e.settled("shop")
		}
	}
	set(apps.EnvChange{SetSecret: map[string]string{"REDIS_URL": "of cache", "OWN": "x"}, Deploy: true})
	stop()
	set(apps.EnvChange{Unset: []string{"REDIS_URL"}})
	if err := entity.Delete(t.Context(), e.store, attached); err != nil {
		t.Fatal(err)
	}
	e.bake = time.Hour
	e.control(e.store)
	d, err := e.apps.Rollback(t.Context(), "", "shop", "v1", apps.DeployRequest{})
	if err != nil {
		t.Fatal(err)
	}
	e.phase(d, app.DeploymentPhaseBaking)
	if _, err := e.apps.Cancel(t.Context(), "", "shop"); err != nil {
		t.Fatal(err)
	}
	e.phase(d, app.DeploymentPhaseCanceled)
	secrets := e.settled("shop").Spec.Secrets
	if _, has := secrets["OWN"]; !has || len(secrets) != 1 {
		t.Errorf("after the rollback was taken back the app has %v", slices.Sorted(maps.Keys(secrets)))
	}
}

// Scale holds for the version that serves and those to come; during a deployment it
// holds when that has ended.
func TestScale(t *testing.T) {
	e := newEnv(t)
	e.control(e.store)
	e.succeed(e.deploy("shop", e.source("ok", "web=ok")))
	scale := func(want bool, set map[string]int64, reset ...string) {
		t.Helper()
		if _, deferred, err := e.apps.Scale(t.Context(), "", "shop", apps.Scaling{Set: set, Reset: reset}); err != nil || deferred != want {
			t.Fatalf("deferred %t, %v", deferred, err)
		}
	}
	sandboxes := func(n int) {
		t.Helper()
		e.settled("shop")
		e.eventually("there are as many as asked for", func() bool { return e.live("shop") == n })
	}
	scale(false, map[string]int64{"web": 3})
	sandboxes(3)
	e.succeed(e.deploy("shop", e.source("ok", "web=ok")))
	sandboxes(3)
	scale(false, map[string]int64{"web": 0})
	sandboxes(0)
	if d := e.succeed(e.deploy("shop", e.source("ok", "web=ok"))); d.Status.Failure != nil {
		t.Errorf("failure %+v", d.Status.Failure)
	}
	sandboxes(0)
	scale(false, nil, "web")
	sandboxes(1)

	for _, outcome := range []string{"ok", "slow"} {
		d := e.phase(e.deploy("shop", e.source("ok", "web=gate", "worker="+outcome)), app.DeploymentPhaseStarting)
		scale(true, map[string]int64{"web": 2})
		e.gate.Store(true)
		want := 2
		if outcome == "ok" {
			want++ // its worker
			e.succeed(d)
		} else {
			e.phase(d, app.DeploymentPhaseFailed)
			want++ // the worker of the version before
		}
		sandboxes(want)
		e.gate.Store(false)
		scale(false, map[string]int64{"web": 1})
		sandboxes(2)
	}
	for _, set := range []map[string]int64{{"none": 1}, {"web": -1}, {"web": 1 << 20}} {
		if _, _, err := e.apps.Scale(t.Context(), "", "shop", apps.Scaling{Set: set}); err == nil {
			t.Errorf("%v was taken", set)
		}
	}
}
