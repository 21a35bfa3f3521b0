package deployment_test

import (
	"testing"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/apps"
	"miren.dev/runtime/entity"
)

// TestAutoscaledRollout: a version is rolled out while the one before sleeps or has much load. It starts at least one
// sandbox, which proves that it starts, and as many as the one before has. One that fails leaves the one before asleep.
func TestAutoscaledRollout(t *testing.T) {
	e := newEnv(t)
	e.control(e.store)
	e.succeed(e.deploy("shop", e.source("ok", "web=ok")))
	bounds := func(low, high int64) {
		t.Helper()
		if _, _, err := e.apps.Scale(t.Context(), "", "shop", apps.Scaling{Bounds: []app.ScaleBounds{{Service: "web", Min: low, Max: high}}}); err != nil {
			t.Fatal(err)
		}
	}
	sandboxes := func(n int) {
		t.Helper()
		e.settled("shop")
		e.eventually("there are as many as wanted", func() bool { return e.live("shop") == n })
	}
	// The load wants n; that is the autoscaler's to write.
	load := func(n int64) {
		t.Helper()
		a := e.settled("shop")
		pools := list(e, func(p *sandbox.SandboxPool) bool { return p.Spec.AppVersion == a.Status.Active() })
		pools[0].Spec.Autoscaled = &n
		if err := entity.UpdateSpec(t.Context(), e.store, pools[0]); err != nil {
			t.Fatal(err)
		}
	}
	bounds(0, 3)
	sandboxes(1) // until the load is known
	load(0)
	sandboxes(0)
	e.phase(e.deploy("shop", e.source("ok", "web=crash")), app.DeploymentPhaseFailed)
	sandboxes(0)
	e.succeed(e.deploy("shop", e.source("ok", "web=ok")))
	sandboxes(1)
	load(3)
	sandboxes(3)
	e.succeed(e.deploy("shop", e.source("ok", "web=ok")))
	sandboxes(3)
	load(0)
	sandboxes(0)
	bounds(2, 3)
	sandboxes(2)
	if _, _, err := e.apps.Scale(t.Context(), "", "shop", apps.Scaling{Set: map[string]int64{"web": 1}}); err != nil {
		t.Fatal(err)
	}
	sandboxes(1)
	load(3) // what the load wanted before does not count
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
