package deployment_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/wait"
)

// A sandbox that becomes ready while the store takes long to list it is not
// late.
func TestSlowStore(t *testing.T) {
	e := newEnv(t)
	e.control(e.store)
	d := e.phase(e.deploy("shop", e.source("ok", "web=gate")), app.DeploymentPhaseStarting)
	var once sync.Once
	listed := make(chan schema.ID, 1)
	slow, goOn := context.WithCancel(t.Context())
	defer goOn()
	after := func(page entity.Page) {
		for i := range page.Records {
			sb, err := entity.Decode[sandbox.Sandbox](&page.Records[i])
			if err != nil || sb.Status.StartedAt == nil || sb.Status.Ready {
				continue
			}
			once.Do(func() {
				listed <- sb.ID
				<-slow.Done()
			})
		}
	}
	e.afterList.Store(&after)
	id := wait.Receive(t, "a list of sandboxes", listed)
	e.gate.Store(true)
	e.eventually("it is ready", func() bool {
		sb, err := entity.Get[sandbox.Sandbox](t.Context(), e.store, id)
		return err == nil && sb.Status.Ready
	})
	e.advance(time.Hour)
	goOn()
	e.succeed(d)
	e.settled("shop")
}

// TestServerIsAway: a deployment does not fail for the time in which no server made or probed its sandboxes. The next
// server gives them their time again, and no more.
func TestServerIsAway(t *testing.T) {
	for service, reason := range map[string]app.FailureReason{"many=gate": app.FailureReasonTimeout, "web=gate": app.FailureReasonPort, "huge=ok": app.FailureReasonCapacity} {
		t.Run(service, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t)
			stop := e.control(e.store)
			d := e.phase(e.deploy("shop", e.source("ok", service)), app.DeploymentPhaseStarting)
			e.eventually("it is waited for", func() bool { return e.waitsFor(d, service) })
			stop()
			e.advance(time.Hour)
			looks := make(chan struct{}, 3)
			after := func(entity.Page) {
				select {
				case looks <- struct{}{}:
				default:
				}
			}
			e.afterList.Store(&after)
			e.control(e.store)
			for range cap(looks) { // the second look follows what came of the first
				wait.Receive(t, "a look at the sandboxes", looks)
			}
			if d = e.get(d); d.Status.Phase != app.DeploymentPhaseStarting {
				t.Fatalf("%s: %+v", d.Status.Phase, d.Status.Failure)
			}
			e.advance(time.Hour)
			if d = e.phase(d, app.DeploymentPhaseFailed); d.Status.Failure.Reason != reason {
				t.Fatalf("failure %+v", d.Status.Failure)
			}
			e.settled("shop")
		})
	}
}

// A wrong port is reported while time remains, and is no failure yet.
func TestOtherPortIsToldBeforeTheDeadline(t *testing.T) {
	e := newEnv(t)
	e.control(e.store)
	e.gate.Store(false)
	d := e.deploy("shop", e.source("ok", "web=early"))
	e.eventually("the step says which ports", func() bool {
		d = e.get(d)
		return slices.ContainsFunc(d.Status.Steps, func(s app.Step) bool {
			return s.Name == "start" && strings.Contains(s.Message, "web: listens on port 3000, but its port is 8080: set port = 3000 under [services.web]")
		})
	})
	e.gate.Store(true)
	e.succeed(d)
	e.settled("shop")
}
