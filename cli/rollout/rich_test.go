package rollout

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/exit"
)

// TestRichFits draws a busy build on a small terminal: no line is wider and no
// drawing higher than it.
func TestRichFits(t *testing.T) {
	const width, height = 40, 12
	var out bytes.Buffer
	c := &console.Console{Out: &out, Terminal: true, Color: true, Size: func() (int, int) { return width, height }}
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	now := at
	v := New(c, func() time.Time { return now })
	d := &app.Deployment{}
	d.Status.Steps = []app.Step{{Name: "build", State: app.StepStateRunning, StartedAt: &at}, {Name: "start", State: app.StepStatePending}}
	v.Upload(Upload{Files: 100, Missing: 10, Bytes: 1000, Sent: 500})
	v.Upload(Upload{Files: 100, Missing: 10, Bytes: 1000, Sent: 1000, Done: true})
	v.Deployment(d)
	for n := range int64(20) {
		name := fmt.Sprintf("[build %d/20] RUN something with a very long command line", n)
		v.Build(&app.BuildEvent{Kind: "started", Step: &n, Name: name, At: at})
		v.Build(&app.BuildEvent{Kind: "log", Step: &n, Text: strings.Repeat("output ", 20) + "\x1b[2J\x1b[31mred", At: at})
		now = now.Add(time.Second)
		v.Tick()
	}
	end := now
	d.Status.Steps[0].State, d.Status.Steps[0].EndedAt = app.StepStateDone, &end
	d.Status.Steps[1].State, d.Status.Steps[1].StartedAt = app.StepStateRunning, &end
	v.Deployment(d)
	d.Status.Steps[1].Message = "v1: 0 of 1 services ready; web: listens on port 3000, but its port is 8080: set port = 3000"
	v.Deployment(d)
	v.Log(&sandbox.LogLine{Text: "listening on a port that nobody would guess at all"})
	v.Tick()
	v.Close()
	text := out.String()
	if strings.Contains(text, "\x1b[2J") {
		t.Error("what a build prints clears the screen")
	}
	ups := 0
	for line := range strings.SplitSeq(text, "\n") {
		for strings.HasPrefix(line, "\x1b[") && strings.Contains(line, "A\r\x1b[J") {
			var n int
			if _, err := fmt.Sscanf(line, "\x1b[%dA", &n); err != nil || n >= height {
				t.Fatalf("%q moves up %d lines on a terminal of %d", line, n, height)
			}
			ups++
			_, line, _ = strings.Cut(line, "\x1b[J")
		}
		// Lines that are printed once may wrap; redrawn lines must not.
		if strings.Contains(line, "⠋") && console.Columns(line) > width {
			t.Errorf("%d columns: %q", console.Columns(line), line)
		}
	}
	if ups < 20 {
		t.Errorf("drawn again %d times only", ups)
	}
	if !strings.Contains(text, "8080: set port =") {
		t.Error("the advice for the running step is cut off")
	}
	if !strings.Contains(text, "source") || !strings.Contains(text, "listening on") {
		t.Error("the upload or the output of the new version is missing")
	}
}

func TestCodes(t *testing.T) {
	outcome := func(phase app.DeploymentPhase, reason app.FailureReason, step string) Outcome {
		d := &app.Deployment{}
		d.Status.Phase = phase
		if reason != "" {
			d.Status.Failure = &app.Failure{Reason: reason}
		}
		d.Status.Steps = []app.Step{{Name: step, State: app.StepStateFailed}}
		return Outcome{Deployment: d}
	}
	for _, c := range []struct {
		o    Outcome
		want int
	}{
		{outcome(app.DeploymentPhaseSucceeded, "", ""), exit.OK},
		{outcome(app.DeploymentPhaseCanceled, "", "build"), exit.Failed},
		{outcome(app.DeploymentPhaseFailed, "", "build"), exit.Failed},
		{outcome(app.DeploymentPhaseFailed, app.FailureReasonPlan, "build"), exit.BuildFailed},
		{outcome(app.DeploymentPhaseFailed, app.FailureReasonTimeout, "build"), exit.BuildFailed},
		{outcome(app.DeploymentPhaseFailed, app.FailureReasonOOM, "build"), exit.BuildFailed},
		{outcome(app.DeploymentPhaseFailed, app.FailureReasonTimeout, "start"), exit.Unhealthy},
		{outcome(app.DeploymentPhaseFailed, app.FailureReasonCapacity, "start"), exit.Unhealthy},
		{outcome(app.DeploymentPhaseFailed, app.FailureReasonLease, "start"), exit.LeaseHeld},
		{outcome(app.DeploymentPhaseFailed, app.FailureReasonInternal, "start"), exit.Failed},
	} {
		if got := c.o.code(); got != c.want {
			t.Errorf("%s %v: %d, want %d", c.o.Status.Phase, c.o.Status.Failure, got, c.want)
		}
	}
}

// TestKeptChange: the report says that a change of the environment stays
// although its rollout failed.
func TestKeptChange(t *testing.T) {
	for kind, want := range map[app.RolloutKind]bool{app.RolloutKindConfig: true, app.RolloutKindDeploy: false} {
		var stderr bytes.Buffer
		d := &app.Deployment{}
		d.Spec.Kind, d.Status.Phase = kind, app.DeploymentPhaseFailed
		d.Status.Failure = &app.Failure{Reason: app.FailureReasonCrash, Message: "it ended"}
		err := Report(&console.Console{Out: &bytes.Buffer{}, Err: &stderr}, Outcome{App: "shop", Deployment: d})
		if got := strings.Contains(stderr.String(), "stays changed"); got != want || exit.Code(err) != exit.Unhealthy {
			t.Errorf("%s: %v, %s", kind, err, stderr.String())
		}
	}
}
