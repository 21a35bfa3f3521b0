package deployment_test

import (
	"testing"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/apps"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/source"
)

// canary deploys a version that gets a percentage of the requests.
func (e *env) canary(name, src string, percent int64) *app.Deployment {
	e.Helper()
	d, err := e.apps.Deploy(e.Context(), e.app(name), apps.DeployRequest{Kind: app.RolloutKindDeploy, Source: source.Digest(src), Canary: percent})
	if err != nil {
		e.Fatal(err)
	}
	return d
}

// TestCanary: a version that is tried out gets its share beside the active one, until it is promoted, or the share is
// taken from it again. The sandboxes of both stay that long.
func TestCanary(t *testing.T) {
	e := newEnv(t)
	e.control(e.store)
	ready := func(d *app.Deployment) int {
		return len(list(e, func(sb *sandbox.Sandbox) bool { return sb.Spec.AppVersion == d.Status.Version && sb.Status.Ready }))
	}
	traffic := func(what string, want ...app.TrafficShare) {
		t.Helper()
		got := e.settled("shop").Status.Traffic
		if len(got) != len(want) {
			t.Fatalf("%s: %+v, want %+v", what, got, want)
		}
		for i := range want {
			if got[i] != want[i] {
				t.Errorf("%s: %+v, want %+v", what, got, want)
			}
		}
	}
	first := e.succeed(e.canary("shop", e.source("ok", "web=ok", "idle=ok"), 10))
	traffic("the first version gets all", app.TrafficShare{Version: first.Status.Version, Weight: 100})

	try := e.succeed(e.canary("shop", e.source("ok", "web=ok"), 10))
	traffic("it is tried", app.TrafficShare{Version: first.Status.Version, Weight: 90}, app.TrafficShare{Version: try.Status.Version, Weight: 10})
	if ready(first) != 1 || ready(try) != 1 {
		t.Errorf("ready: %d of the active one, %d of the other", ready(first), ready(try))
	}
	for _, n := range []int64{2, 1} {
		if _, _, err := e.apps.Scale(t.Context(), "", "shop", apps.Scaling{Set: map[string]int64{"web": n}}); err != nil {
			t.Fatal(err)
		}
		e.eventually("both versions have as many sandboxes as asked for", func() bool { return ready(first) == int(n) && ready(try) == int(n) })
	}
	for _, d := range []*app.Deployment{first, try} {
		v, err := entity.Get[app.AppVersion](t.Context(), e.store, d.Status.Version)
		if err == nil {
			err = entity.Delete(t.Context(), e.store, v)
		}
		if !errs.Is(err, errs.FailedPrecondition) {
			t.Errorf("deletion of a version in traffic: %v", err)
		}
	}
	again := e.succeed(e.canary("shop", e.source("ok", "web=ok"), 25))
	traffic("another one is tried", app.TrafficShare{Version: first.Status.Version, Weight: 75}, app.TrafficShare{Version: again.Status.Version, Weight: 25})

	back, err := e.apps.Rollback(t.Context(), "", "shop", "", apps.DeployRequest{})
	if err != nil {
		t.Fatal(err)
	}
	e.succeed(back)
	traffic("the share is taken again", app.TrafficShare{Version: first.Status.Version, Weight: 100})
	e.eventually("only the active version has sandboxes", func() bool { return ready(first) == 1 && ready(try)+ready(again) == 0 })
	if _, err := e.apps.Promote(t.Context(), "", "shop", apps.DeployRequest{}); !errs.Is(err, errs.FailedPrecondition) {
		t.Errorf("nothing to promote: %v", err)
	}

	try = e.succeed(e.canary("shop", e.source("ok", "web=ok"), 10))
	promoted, err := e.apps.Promote(t.Context(), "", "shop", apps.DeployRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if d := e.succeed(promoted); d.Status.Version != try.Status.Version {
		t.Errorf("%s was promoted, want %s", d.Status.Version, try.Status.Version)
	}
	traffic("it is promoted", app.TrafficShare{Version: try.Status.Version, Weight: 100})
	e.eventually("only the promoted version has sandboxes", func() bool { return ready(first) == 0 && ready(try) == 1 })

	// The versions that were only tried did not serve before: a rollback brings back the first one.
	if back, err = e.apps.Rollback(t.Context(), "", "shop", "", apps.DeployRequest{}); err != nil {
		t.Fatal(err)
	}
	ver, err := entity.Get[app.AppVersion](t.Context(), e.store, e.succeed(back).Status.Version)
	if err != nil || ver.Spec.CopiedFrom != first.Status.Version {
		t.Errorf("rolled back to a copy of %s, want %s: %v", ver.Spec.CopiedFrom, first.Status.Version, err)
	}

	// A deployment of another kind ends a canary.
	e.succeed(e.canary("shop", e.source("ok", "web=ok"), 10))
	restart, err := e.apps.Restart(t.Context(), "", "shop", apps.DeployRequest{})
	if err != nil {
		t.Fatal(err)
	}
	traffic("a restart", app.TrafficShare{Version: e.succeed(restart).Status.Version, Weight: 100})
}

// TestCanaryFails: a version that does not hold loses its share, and one that cannot start gets none.
func TestCanaryFails(t *testing.T) {
	for _, sim := range []string{"crash", "wilt"} {
		t.Run(sim, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t)
			stop := e.control(e.store)
			first := e.succeed(e.deploy("shop", e.source("ok", "web=ok")))
			e.settled("shop")
			stop()
			e.bake = time.Hour
			e.control(e.store)
			e.phase(e.canary("shop", e.source("ok", "web="+sim), 10), app.DeploymentPhaseFailed)
			if got := e.settled("shop").Status.Traffic; len(got) != 1 || got[0].Version != first.Status.Version || got[0].Weight != 100 {
				t.Errorf("%+v", got)
			}
			if n := e.live("shop"); n != 1 {
				t.Errorf("%d sandboxes", n)
			}
		})
	}
}
