package deployment_test

import (
	"testing"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/apps"
	"miren.dev/runtime/entity"
)

// bounds has the number of sandboxes of the service web follow its load.
func (e *env) bounds(name string, low, high int64) {
	e.Helper()
	if _, _, err := e.apps.Scale(e.Context(), "", name, apps.Scaling{Bounds: []app.ScaleBounds{{Service: "web", Min: low, Max: high}}}); err != nil {
		e.Fatal(err)
	}
}

// load plays the autoscaler: the load of the active version wants n sandboxes.
func (e *env) load(name string, n int64) {
	e.Helper()
	active := e.app(name).Status.Active()
	for _, p := range list(e, func(p *sandbox.SandboxPool) bool { return p.Spec.AppVersion == active && p.Spec.Service == "web" }) {
		p.Spec.Autoscaled = &n
		if err := entity.UpdateSpec(e.Context(), e.store, p); err != nil {
			e.Fatal(err)
		}
	}
}

// TestAutoscaledRollout: a version is rolled out while the one before sleeps or has much load. It starts at least one
// sandbox, which proves that it starts, and as many as the one before has. One that fails leaves the one before asleep.
func TestAutoscaledRollout(t *testing.T) {
	e := newEnv(t)
	e.control(e.store)
	e.succeed(e.deploy("shop", e.source("ok", "web=ok")))
	sandboxes := func(n int) {
		t.Helper()
		e.settled("shop")
		e.eventually("there are as many as wanted", func() bool { return e.live("shop") == n })
	}
	e.bounds("shop", 0, 3)
	sandboxes(1) // until the load is known
	e.load("shop", 0)
	sandboxes(0)
	e.phase(e.deploy("shop", e.source("ok", "web=crash")), app.DeploymentPhaseFailed)
	sandboxes(0)
	e.succeed(e.deploy("shop", e.source("ok", "web=ok")))
	sandboxes(1)
	e.load("shop", 3)
	sandboxes(3)
	e.succeed(e.deploy("shop", e.source("ok", "web=ok")))
	sandboxes(3)
	e.load("shop", 0)
	sandboxes(0)
	e.bounds("shop", 2, 3)
	sandboxes(2)
	if _, _, err := e.apps.Scale(t.Context(), "", "shop", apps.Scaling{Set: map[string]int64{"web": 1}}); err != nil {
		t.Fatal(err)
	}
	sandboxes(1)
	e.load("shop", 3) // what the load wanted before does not count
	sandboxes(1)
	if _, _, err := e.apps.Scale(t.Context(), "", "shop", apps.Scaling{Reset: []string{"web"}}); err != nil {
		t.Fatal(err)
	}
	if a := e.settled("shop"); len(a.Spec.Bounds) != 0 || len(a.Spec.Scale) != 0 {
		t.Errorf("%+v", a.Spec)
	}
	for _, b := range []app.ScaleBounds{{Service: "none", Min: 1, Max: 2}, {Service: "web", Min: 3, Max: 2}, {Service: "web", Max: 0}, {Service: "web", Max: 1 << 20}} {
		if _, _, err := e.apps.Scale(t.Context(), "", "shop", apps.Scaling{Bounds: []app.ScaleBounds{b}}); err == nil {
			t.Errorf("%+v was taken", b)
		}
	}
}
