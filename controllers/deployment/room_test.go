package deployment_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
)

// small sizes the node for n sandboxes of the default size.
func (e *env) small(n int64) {
	e.Helper()
	nodes := list(e, func(*core.Node) bool { return true })
	_, err := entity.ModifySpec(e.Context(), e.store, nodes[0].GetID(), func(node *core.Node) error {
		node.Spec.MemoryBytes = n*(sandbox.DefaultMemoryBytes+sandbox.OverheadBytes) + 1
		return nil
	})
	if err != nil {
		e.Fatal(err)
	}
}

// crowded waits until a sandbox of the deployment has no room, then moves the
// clock past the time for which it waits.
func (e *env) crowded(d *app.Deployment) {
	e.Helper()
	e.phase(d, app.DeploymentPhaseStarting)
	e.eventually("no node has room", func() bool {
		v := e.get(d).Status.Version
		return len(list(e, func(sb *sandbox.Sandbox) bool {
			return sb.Spec.AppVersion == v && strings.Contains(sb.Status.Message, "no node has room")
		})) > 0
	})
	e.advance(4 * time.Second)
}

// live returns the wanted sandboxes of the app's active version.
func (e *env) live(name string) int {
	v := e.app(name).Status.Active()
	return len(list(e, func(sb *sandbox.Sandbox) bool {
		return sb.Spec.AppVersion == v && !sb.Status.Phase.Ended() && sb.Spec.Desired == sandbox.DesiredStateRunning
	}))
}

// A node without room for two versions still runs five deployments in a row.
func TestRolloutsOnAFullNode(t *testing.T) {
	e := newEnv(t)
	e.small(1)
	e.control(e.store)
	e.succeed(e.deploy("shop", e.source("ok", "web=ok")))
	for range 5 {
		d := e.deploy("shop", e.source("ok", "web=ok"))
		e.crowded(d)
		d = e.succeed(d)
		if len(d.Status.Yielded) != 1 {
			t.Errorf("%+v", d.Status)
		}
		i := slices.IndexFunc(d.Status.Steps, func(s app.Step) bool { return s.Name == "start" })
		if i < 0 || d.Status.Steps[i].State != app.StepStateDone {
			t.Errorf("%+v", d.Status.Steps)
		}
		if a := e.settled("shop"); a.Status.Active() != d.Status.Version || e.live("shop") != 1 {
			t.Errorf("%+v, %d live", a.Status, e.live("shop"))
		}
	}
}

// One at a time: of six sandboxes in room for six, those of the new version replace as many of the old.
func TestRolloutYieldsOneAtATime(t *testing.T) {
	e := newEnv(t)
	e.small(6)
	e.control(e.store)
	first := e.succeed(e.deploy("shop", e.source("ok", "web=ok", "many=ok")))
	d := e.deploy("shop", e.source("ok", "web=gate", "many=gate"))
	placed := func() int {
		v := e.get(d).Status.Version
		return len(list(e, func(sb *sandbox.Sandbox) bool { return sb.Spec.AppVersion == v && sb.Spec.Node != "" }))
	}
	for taken := range 3 {
		e.crowded(d)
		e.eventually("one more is placed", func() bool { return placed() == taken+1 })
		if n := e.live("shop"); n != 5-taken {
			t.Errorf("%d of the new version are placed, %d of the old one left", taken+1, n)
		}
	}
	gone := 0
	for _, y := range e.get(d).Status.Yielded {
		p, err := entity.Get[sandbox.SandboxPool](t.Context(), e.store, y.Pool)
		if err != nil {
			t.Fatal(err)
		}
		gone += int(y.Replicas - p.Spec.Replicas)
	}
	if a := e.app("shop"); a.Status.Active() != first.Status.Version || gone != 3 {
		t.Errorf("%+v; %d were yielded", a.Status, gone)
	}
	e.gate.Store(true)
	for taken := 3; taken < 6; taken++ {
		e.advance(4 * time.Second)
		e.eventually("one more is placed", func() bool { return placed() == taken+1 })
	}
	e.succeed(d)
	e.settled("shop")
}

// A version that fails gives back the sandboxes that it displaced, also if the server is killed in between.
func TestFailedRolloutGivesRoomBack(t *testing.T) {
	for _, tc := range []struct {
		name   string
		killed bool
	}{{"fails", false}, {"killed server", true}} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t)
			e.small(1)
			stop := e.control(e.store)
			first := e.succeed(e.deploy("shop", e.source("ok", "web=ok")))
			d := e.deploy("shop", e.source("ok", "web=slow"))
			e.crowded(d)
			e.eventually("the old version has yielded", func() bool { return len(e.get(d).Status.Yielded) == 1 && e.live("shop") == 0 })
			if tc.killed {
				stop()
				e.control(e.store)
			}
			e.gate.Store(true) // the sandbox crashes
			if d = e.phase(d, app.DeploymentPhaseFailed); d.Status.Failure.Reason != app.FailureReasonCrash {
				t.Errorf("%+v", d.Status.Failure)
			}
			e.eventually("the old version serves again", func() bool {
				v := e.app("shop").Status.Active()
				return v == first.Status.Version && len(list(e, func(sb *sandbox.Sandbox) bool { return sb.Spec.AppVersion == v && sb.Status.Ready })) == 1
			})
		})
	}
}
