package webhooks

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/api"
	"miren.dev/runtime/api/webhook"
	"miren.dev/runtime/domain/events"
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
		if got := events.Match(c.pattern, c.eventType); got != c.want {
			t.Errorf("%q selects %s: %v", c.pattern, c.eventType, got)
		}
	}
	for _, bad := range []string{"", "sandbox", "sandbox.starts", "unknown.*", "**"} {
		if _, err := canonical([]string{bad}); !errs.Is(err, errs.InvalidArgument) {
			t.Errorf("%q: %v", bad, err)
		}
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
