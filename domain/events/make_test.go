package events

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/event"
	"miren.dev/runtime/api/execution"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/pkg/schema"
)

// The same state is the same event, whatever else changes; another state is another.
func TestEventsOfStates(t *testing.T) {
	sb := sandbox.NewSandbox()
	sb.ID, sb.Project, sb.Status.Phase = "sb-1", "proj-1", sandbox.SandboxPhaseRunning
	first := Of(sb)
	sb.Status.Ready, sb.UpdatedAt = true, time.Now()
	if second := Of(sb); first == nil || second.ID != first.ID || first.Type != "sandbox.running" || first.Project != "proj-1" {
		t.Errorf("%+v, then %+v", first, second)
	}
	sb.Status.Pauses = 1
	if resumed := Of(sb); resumed.ID == first.ID || resumed.Type != "sandbox.running" {
		t.Errorf("resumed: %+v", resumed)
	}
	sb.Spec.WarmPool = "warm-1"
	if e := Of(sb); e != nil {
		t.Errorf("of a sandbox that waits in a pool: %+v", e)
	}
	sb.Spec.WarmPool = ""
	if e := OfDeleted(schema.Copy(sb)); e == nil || e.Type != "sandbox.ended" || e.Data.Reason != "user" {
		t.Errorf("deleted: %+v", e)
	}
	for phase, want := range map[sandbox.SandboxPhase]string{
		sandbox.SandboxPhaseStopped: "sandbox.ended", sandbox.SandboxPhaseFailed: "sandbox.ended", sandbox.SandboxPhasePaused: "sandbox.paused",
		sandbox.SandboxPhasePending: "", sandbox.SandboxPhasePausing: "", sandbox.SandboxPhaseStopping: "",
	} {
		sb.Status.Phase = phase
		if got := typeOf(Of(sb)); got != want {
			t.Errorf("a sandbox that is %s: %q, want %q", phase, got, want)
		}
	}
	x := execution.NewExecution()
	x.ID, x.Status.Phase = "exec-1", execution.PhaseEnded
	for outcome, want := range map[execution.Outcome]string{
		execution.OutcomeSucceeded: "execution.succeeded", execution.OutcomeCancelled: "execution.cancelled", execution.OutcomeOOM: "execution.failed",
	} {
		x.Status.Outcome = outcome
		if got := Of(x); typeOf(got) != want || got.Data.Reason != string(outcome) {
			t.Errorf("%s: %+v", outcome, got)
		}
	}
	d := app.NewDeployment()
	d.ID, d.Status.Phase = "dep-1", app.DeploymentPhaseBuilding
	if e := Of(d); e != nil {
		t.Errorf("a deployment under way: %+v", e)
	}
	d.Status.Phase, d.Status.Failure = app.DeploymentPhaseFailed, &app.Failure{Reason: app.FailureReasonBuild, Message: "hunter2"}
	e := Of(d)
	body, err := e.Body()
	if err != nil || e.Type != "deployment.failed" || e.Data.Reason != "build" || strings.Contains(body, "hunter2") {
		t.Errorf("%s, %v", body, err)
	}
}

func typeOf(e *Event) string {
	if e == nil {
		return ""
	}
	return e.Type
}

// Labels that make a body too long are left out.
func TestBodyIsBounded(t *testing.T) {
	sb := sandbox.NewSandbox()
	sb.ID, sb.Status.Phase, sb.Labels = "sb-1", sandbox.SandboxPhaseStopped, map[string]string{"a": strings.Repeat("x", event.MaxBody)}
	body, err := Of(sb).Body()
	if err != nil || len(body) > event.MaxBody || !json.Valid([]byte(body)) {
		t.Errorf("%d bytes, %v", len(body), err)
	}
}
