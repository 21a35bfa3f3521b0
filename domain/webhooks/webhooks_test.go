package webhooks

import (
	"context"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/api"
	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/execution"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/api/webhook"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/pgtest"
)

// The example of the libraries of Standard Webhooks.
func TestSignature(t *testing.T) {
	got, err := Sign([]string{"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}, "msg_p5jXN8AQM9LWM0D4loKWxJek", time.Unix(1614265330, 0), []byte(`{"test": 2432232314}`))
	if want := "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="; err != nil || got != want {
		t.Errorf("%q, want %q, %v", got, want, err)
	}
	if two, err := Sign([]string{"whsec_MfKQ", "whsec_ABCD"}, "id", time.Unix(1, 0), nil); err != nil || len(strings.Fields(two)) != 2 {
		t.Errorf("with two secrets: %q, %v", two, err)
	}
}

func TestPatterns(t *testing.T) {
	for _, c := range []struct {
		pattern, eventType string
		want               bool
	}{
		{"*", "sandbox.ended", true}, {"sandbox.*", "sandbox.ended", true}, {"sandbox.ended", "sandbox.ended", true},
		{"sandbox.*", "snapshot.ready", false}, {"sandbox*", "sandbox.ended", false}, {"s*", "sandbox.ended", false}, {"*.ended", "sandbox.ended", false}, {"", "sandbox.ended", false},
	} {
		if got := match(c.pattern, c.eventType); got != c.want {
			t.Errorf("%q selects %s: %v", c.pattern, c.eventType, got)
		}
	}
	for _, bad := range []string{"", "sandbox", "sandbox.starts", "unknown.*", "**"} {
		if _, err := canonical([]string{bad}); !errs.Is(err, errs.InvalidArgument) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// The same state is the same event, whatever else changes; another state is another.
func TestEventsOfStates(t *testing.T) {
	sb := sandbox.NewSandbox()
	sb.ID, sb.Project, sb.Status.Phase = "sb-1", "proj-1", sandbox.SandboxPhaseRunning
	first := EventOf(sb)
	sb.Status.Ready, sb.UpdatedAt = true, time.Now()
	if second := EventOf(sb); first == nil || second.ID != first.ID || first.Type != "sandbox.running" || first.Project != "proj-1" {
		t.Errorf("%+v, then %+v", first, second)
	}
	sb.Status.Pauses = 1
	if resumed := EventOf(sb); resumed.ID == first.ID || resumed.Type != "sandbox.running" {
		t.Errorf("resumed: %+v", resumed)
	}
	sb.Spec.WarmPool = "warm-1"
	if e := EventOf(sb); e != nil {
		t.Errorf("of a sandbox that waits in a pool: %+v", e)
	}
	sb.Spec.WarmPool = ""
	if e := EventOfDeleted(schema.Copy(sb)); e == nil || e.Type != "sandbox.ended" || e.Data.Reason != "user" {
		t.Errorf("deleted: %+v", e)
	}
	for phase, want := range map[sandbox.SandboxPhase]string{
		sandbox.SandboxPhaseStopped: "sandbox.ended", sandbox.SandboxPhaseFailed: "sandbox.ended", sandbox.SandboxPhasePaused: "sandbox.paused",
		sandbox.SandboxPhasePending: "", sandbox.SandboxPhasePausing: "", sandbox.SandboxPhaseStopping: "",
	} {
		sb.Status.Phase = phase
		if got := typeOf(EventOf(sb)); got != want {
			t.Errorf("a sandbox that is %s: %q, want %q", phase, got, want)
		}
	}
	x := execution.NewExecution()
	x.ID, x.Status.Phase = "exec-1", execution.PhaseEnded
	for outcome, want := range map[execution.Outcome]string{
		execution.OutcomeSucceeded: "execution.succeeded", execution.OutcomeCancelled: "execution.cancelled", execution.OutcomeOOM: "execution.failed",
	} {
		x.Status.Outcome = outcome
		if got := EventOf(x); typeOf(got) != want || got.Data.Reason != string(outcome) {
			t.Errorf("%s: %+v", outcome, got)
		}
	}
	d := app.NewDeployment()
	d.ID, d.Status.Phase = "dep-1", app.DeploymentPhaseBuilding
	if e := EventOf(d); e != nil {
		t.Errorf("a deployment under way: %+v", e)
	}
	d.Status.Phase, d.Status.Failure = app.DeploymentPhaseFailed, &app.Failure{Reason: app.FailureReasonBuild, Message: "hunter2"}
	e := EventOf(d)
	body, err := e.Payload()
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
func TestPayloadIsBounded(t *testing.T) {
	sb := sandbox.NewSandbox()
	sb.ID, sb.Status.Phase, sb.Labels = "sb-1", sandbox.SandboxPhaseStopped, map[string]string{"a": strings.Repeat("x", webhook.MaxPayload)}
	body, err := EventOf(sb).Payload()
	if err != nil || len(body) > webhook.MaxPayload || !json.Valid([]byte(body)) {
		t.Errorf("%d bytes, %v", len(body), err)
	}
}

// A new secret signs beside the one before; the store has neither in the clear.
func TestSecrets(t *testing.T) {
	s := &Service{Store: pgtest.Store(t, api.Kinds()...), Sealer: schema.NewSealer(filepath.Join(t.TempDir(), "key"))}
	if err := projects.Ensure(t.Context(), s.Store, projects.Default); err != nil {
		t.Fatal(err)
	}
	w, old, err := s.Create(t.Context(), Request{Name: "hook", URL: "https://example.com"})
	if err != nil {
		t.Fatal(err)
	}
	w, secret, err := s.Rotate(t.Context(), "", w.Name)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	if got, err := s.Secrets(w, now); err != nil || len(got) != 2 || got[0] != secret || got[1] != old {
		t.Errorf("%d secrets, %v", len(got), err)
	}
	if got, err := s.Secrets(w, now.Add(webhook.SecretOverlap)); err != nil || len(got) != 1 {
		t.Errorf("a day later: %d secrets, %v", len(got), err)
	}
	rec, err := s.Store.Get(t.Context(), webhook.KindWebhook, w.ID)
	if err != nil || strings.Contains(string(rec.Spec), secret) || strings.Contains(string(rec.Spec), old) {
		t.Errorf("the store has a secret, %v", err)
	}
}

// manyWait is a store in which as many deliveries wait as a webhook may have.
type manyWait struct{ entity.Store }

func (s manyWait) List(ctx context.Context, q entity.Query) (entity.Page, error) {
	if q.Kind == webhook.KindWebhookDelivery {
		return entity.Page{Records: make([]schema.Record, q.Limit)}, nil
	}
	return s.Store.List(ctx, q)
}

// Tests of a webhook whose receiver does not answer do not fill the store.
func TestTestsAreBounded(t *testing.T) {
	s := &Service{Store: pgtest.Store(t, api.Kinds()...), Sealer: schema.NewSealer(filepath.Join(t.TempDir(), "key"))}
	if err := projects.Ensure(t.Context(), s.Store, projects.Default); err != nil {
		t.Fatal(err)
	}
	w, _, err := s.Create(t.Context(), Request{Name: "hook", URL: "https://example.com"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Test(t.Context(), "", w.Name); err != nil {
		t.Fatal(err)
	}
	s.Store = manyWait{s.Store}
	if d, err := s.Test(t.Context(), "", w.Name); !errs.Is(err, errs.ResourceExhausted) {
		t.Errorf("%+v, %v", d, err)
	}
}
