package webhook

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/api/webhook"
	"miren.dev/runtime/controllers/kit/kittest"
	"miren.dev/runtime/domain/events"
	"miren.dev/runtime/domain/webhooks"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/wait"
)

// What a sandbox does reaches the receiver, signed, without its variables; a second
// write of the same phase is no event.
func TestDelivers(t *testing.T) {
	stores(t, func(e *env) {
		e.start(nil)
		e.begun()
		w, other := e.hook("hook", "sandbox.*"), e.hook("other", "execution.*")
		w, secret, err := e.service.Rotate(e.Context(), "", w.Name)
		if err != nil {
			e.Fatal(err)
		}
		e.secret = secret
		sb := e.sandbox(sandbox.SandboxPhasePending)
		for _, p := range []sandbox.SandboxPhase{sandbox.SandboxPhaseRunning, sandbox.SandboxPhaseRunning, sandbox.SandboxPhasePaused, sandbox.SandboxPhaseRunning, sandbox.SandboxPhaseStopped} {
			e.phase(sb, p)
		}
		if err := entity.Remove[sandbox.Sandbox](e.Context(), e.store, sb.ID); err != nil {
			e.Fatal(err)
		}
		all := e.settled(w, 4, webhook.DeliveryPhaseDelivered)
		e.check(1)
		for _, d := range all {
			var body struct {
				Data events.Data
			}
			if err := json.Unmarshal([]byte(d.Spec.Payload), &body); err != nil || body.Data.ID != string(sb.ID) || strings.Contains(d.Spec.Payload, "hunter2") {
				e.Errorf("%s, %v", d.Spec.Payload, err)
			}
		}
		e.mu.Lock()
		got := slices.Sorted(slices.Values(e.types))
		e.mu.Unlock()
		if want := []string{"sandbox.ended", "sandbox.paused", "sandbox.running", "sandbox.running"}; !slices.Equal(got, want) {
			e.Errorf("events %v, want %v", got, want)
		}
		var kept []string
		for _, x := range e.history() {
			kept = append(kept, x.Spec.Type)
			if x.Spec.Subject != string(sb.ID) || strings.Contains(x.Spec.Body, "hunter2") {
				e.Errorf("%+v", x.Spec)
			}
		}
		if want := []string{"sandbox.running", "sandbox.paused", "sandbox.running", "sandbox.ended"}; !slices.Equal(kept, want) {
			e.Errorf("the history has %v, want %v", kept, want)
		}
		if n := len(e.deliveries(other)); n != 0 {
			e.Errorf("%d deliveries that were not asked for", n)
		}
		wait.For(e, "the webhook says so", func() bool {
			w, err := entity.Get[webhook.Webhook](e.Context(), e.store, w.ID)
			return err == nil && w.Status.LastDelivered != nil && w.Status.LastOutcome == "204 No Content" && w.Status.Failures == 0
		})
	})
}

// A receiver that fails half of the time gets every event, and nothing that it
// accepted a second time.
func TestReceiverThatFailsHalfOfTheTime(t *testing.T) {
	stores(t, func(e *env) {
		n := 0
		e.answer = func(string, int) int {
			if n++; n%2 == 0 {
				return http.StatusInternalServerError
			}
			return http.StatusNoContent
		}
		e.start(nil)
		e.begun()
		w := e.hook("hook")
		const events = 60
		for range events {
			e.sandbox(sandbox.SandboxPhaseStopped)
		}
		e.settled(w, events, webhook.DeliveryPhaseDelivered)
		e.check(1)
		if len(e.accepted) != events {
			e.Errorf("%d events were accepted, want %d", len(e.accepted), events)
		}
	})
}

// Wherever a server dies, the next one makes every event once, and delivers it as one
// delivery. Only a request whose answer was lost comes again, with its id.
func TestDiesAfterEveryWrite(t *testing.T) {
	stores(t, func(e *env) {
		s := e.start(nil)
		e.begun()
		s.stop()
		for n := 1; ; n++ {
			w := e.hook(fmt.Sprintf("hook%d", n), "sandbox.*")
			m := newMortal(e.store, n)
			s := e.start(m)
			sb := e.sandbox(sandbox.SandboxPhaseRunning)
			for _, p := range []sandbox.SandboxPhase{sandbox.SandboxPhasePaused, sandbox.SandboxPhaseRunning, sandbox.SandboxPhaseStopped} {
				e.phase(sb, p)
			}
			delivered := func() (n int) {
				for _, d := range e.deliveries(w) {
					if d.Status.Phase == webhook.DeliveryPhaseDelivered {
						n++
					}
				}
				return n
			}
			survived := false
			wait.For(e, "the server is dead, or everything is delivered", func() bool {
				survived = delivered() == 4
				return survived || !m.alive()
			})
			survived = survived && m.alive()
			s.stop()
			next := e.start(nil)
			e.settled(w, 4, webhook.DeliveryPhaseDelivered)
			next.stop()
			e.check(2)
			kept := e.history()
			if len(kept) != 4*n {
				e.Fatalf("after write %d: the history has %d events, want %d", n, len(kept), 4*n)
			}
			for i, want := range []string{"sandbox.running", "sandbox.paused", "sandbox.running", "sandbox.ended"} {
				if x := kept[4*(n-1)+i]; x.Spec.Type != want || x.Spec.Subject != string(sb.ID) || e.accepted[string(x.ID)] == 0 {
					e.Errorf("after write %d: event %d is %s of %s", n, i, x.Spec.Type, x.Spec.Subject)
				}
			}
			if len(e.types) < 4 || len(e.accepted) != 4 {
				e.Fatalf("after write %d: events %v", n, e.types)
			}
			if survived {
				e.check(1)
				e.Logf("%d writes, died after each", n-1)
				return
			}
			if err := e.service.Delete(e.Context(), "", w.Name); err != nil {
				e.Fatal(err)
			}
			e.requests, e.accepted, e.types = map[string]int{}, map[string]int{}, nil
		}
	})
}

// When the position is gone from the log, the present states make the events that were
// not made, but none that is old.
func TestPositionIsGone(t *testing.T) {
	stores(t, func(e *env) {
		s := e.start(nil)
		e.begun()
		w := e.hook("hook", "sandbox.*")
		known := e.sandbox(sandbox.SandboxPhaseStopped)
		e.settled(w, 1, webhook.DeliveryPhaseDelivered)
		s.stop()
		e.sandbox(sandbox.SandboxPhaseStopped)
		e.phase(known, sandbox.SandboxPhaseStopped)
		late := timestamp(time.Now().Add(-2 * overlap)) // of an entity whose delivery is no longer kept
		old := func() {
			sb := sandbox.NewSandbox()
			sb.Project, sb.Spec.Template.Image, sb.Status.Phase, sb.Status.EndedAt = e.project, "image", sandbox.SandboxPhaseStopped, &late
			if err := entity.Create(e.Context(), e.store, sb); err != nil {
				e.Fatal(err)
			}
		}
		old()
		pos, err := entity.ByName[webhook.WebhookFeed](e.Context(), e.store, "", feedName)
		if err != nil {
			e.Fatal(err)
		}
		pos.Status.Epoch = "of a store that was restored"
		if err := entity.UpdateStatus(e.Context(), e.store, pos); err != nil {
			e.Fatal(err)
		}
		e.start(nil)
		e.settled(w, 2, webhook.DeliveryPhaseDelivered)
		old() // a node that was cut off tells of it
		e.settled(w, 3, webhook.DeliveryPhaseDelivered)
		e.check(1)
	})
}

// Two servers make each event once, and send it once.
func TestTwoServers(t *testing.T) {
	stores(t, func(e *env) {
		lost := func(s *Sender) { s.Lost = time.Minute }
		e.start(nil, lost)
		e.start(nil, lost)
		e.begun()
		w := e.hook("hook", "*")
		for range 20 {
			e.sandbox(sandbox.SandboxPhaseStopped)
		}
		e.settled(w, 20, webhook.DeliveryPhaseDelivered)
		e.check(1)
		if n := len(e.history()); n != 20 {
			e.Errorf("the history has %d events", n)
		}
	})
}

// Many events at once, more than one transaction holds, each with many deliveries.
func TestManyEventsAtOnce(t *testing.T) {
	stores(t, testManyEventsAtOnce)
	withEtcd(t, testManyEventsAtOnce)
}

func testManyEventsAtOnce(e *env) {
	s := e.start(nil)
	e.begun()
	s.stop()
	for i := range 10 {
		e.hook(fmt.Sprintf("hook%d", i), "sandbox.*")
	}
	var ops []entity.Op
	for range 3 * maxBatch {
		sb := sandbox.NewSandbox()
		sb.Project, sb.Spec.Template.Image, sb.Status.Phase = e.project, "image", sandbox.SandboxPhaseStopped
		op, err := entity.CreateOp(sb)
		if err != nil {
			e.Fatal(err)
		}
		ops = append(ops, op)
	}
	for part := range slices.Chunk(ops, maxBatch) {
		if _, err := e.store.Txn(e.Context(), entity.TxnRequest{Ops: part}); err != nil {
			e.Fatal(err)
		}
	}
	m := newMortal(e.store, 2)
	s = e.start(m) // dies in the middle of them
	wait.Receive(e, "the server dies", m.died)
	s.stop()
	if n := len(e.history()); n == 0 || n == len(ops) {
		e.Errorf("%d events when the server died", n)
	}
	e.start(nil)
	wait.For(e, "all events", func() bool { return len(e.history()) == len(ops) }, wait.Within(time.Minute))
}

// Old events go, and those beyond a number; the newest stays, and the next one has the
// next number.
func TestEventsExpire(t *testing.T) {
	stores(t, func(e *env) {
		s := e.start(nil)
		e.begun()
		for range 2*maxBatch + 3 {
			e.sandbox(sandbox.SandboxPhaseStopped)
		}
		wait.For(e, "all events", func() bool { return len(e.history()) == 2*maxBatch+3 }, wait.Within(time.Minute))
		x := &Expirer{Store: e.store, Keep: 3, For: time.Hour, Every: time.Nanosecond}
		x.Store = kittest.Hold(e, e.store, x.Controller())
		if _, err := x.Reconcile(e.Context(), e.project); err != nil {
			e.Fatal(err)
		}
		if all := e.history(); len(all) != 3 || all[0].Spec.Number != 2*maxBatch+1 {
			e.Errorf("%d events, the first is %+v", len(all), all[0].Spec)
		}
		x.For = time.Nanosecond
		for range 2 {
			if _, err := x.Reconcile(e.Context(), e.project); err != nil {
				e.Fatal(err)
			}
		}
		if all := e.history(); len(all) != 1 || all[0].Spec.Number != 2*maxBatch+3 {
			e.Errorf("%d events", len(all))
		}
		s.stop()
		e.start(nil) // reads the number of the newest
		e.sandbox(sandbox.SandboxPhaseStopped)
		wait.For(e, "the next event", func() bool { all := e.history(); return len(all) == 2 && all[1].Spec.Number == 2*maxBatch+4 })
	})
}

// answers is what receivers say, and what becomes of the delivery.
func TestAnswers(t *testing.T) {
	stores(t, func(e *env) {
		e.start(nil)
		e.begun()
		w := e.hook("hook", "webhook.test")
		test := func(status int) *webhook.WebhookDelivery {
			e.mu.Lock()
			e.answer = func(string, int) int { return status }
			e.mu.Unlock()
			d, err := e.service.Test(e.Context(), "", w.Name)
			if err != nil {
				e.Fatal(err)
			}
			return d
		}
		got := func(d *webhook.WebhookDelivery, what string, cond func(st *webhook.WebhookDeliveryStatus) bool) {
			e.Helper()
			wait.For(e, what, func() bool {
				d, err := entity.Get[webhook.WebhookDelivery](e.Context(), e.store, d.ID)
				return err == nil && cond(&d.Status)
			})
		}
		busy := test(http.StatusTooManyRequests)
		got(busy, "it comes again an hour later", func(st *webhook.WebhookDeliveryStatus) bool {
			return st.Attempts == 1 && st.HTTPStatus != nil && *st.HTTPStatus == 429 && time.Until(*st.NextAttempt) > 59*time.Minute
		})
		if _, err := e.service.Replay(e.Context(), "", w.Name, string(busy.ID)); !errs.Is(err, errs.FailedPrecondition) {
			e.Errorf("replay of one that waits: %v", err)
		}
		moved := test(http.StatusFound)
		got(moved, "redirects are failures, and it is dead at last", func(st *webhook.WebhookDeliveryStatus) bool {
			return st.Phase == webhook.DeliveryPhaseDead && st.Attempts == webhook.MaxAttempts && strings.Contains(st.Message, "redirects")
		})
		e.mu.Lock()
		e.answer = nil
		e.mu.Unlock()
		replayed, err := e.service.Replay(e.Context(), "", w.Name, "")
		if err != nil || len(replayed) != 1 {
			e.Fatalf("%v, %v", replayed, err)
		}
		got(moved, "the replay", func(st *webhook.WebhookDeliveryStatus) bool {
			return st.Phase == webhook.DeliveryPhaseDelivered && st.Attempts == 1 && st.Replays == 1
		})
		gone := test(http.StatusGone)
		got(gone, "it is dead", func(st *webhook.WebhookDeliveryStatus) bool { return st.Phase == webhook.DeliveryPhaseDead })
		wait.For(e, "the webhook is disabled", func() bool {
			w, err := entity.Get[webhook.Webhook](e.Context(), e.store, w.ID)
			return err == nil && w.Spec.Disabled && w.Status.LastOutcome == "410 Gone"
		})
		if _, err := e.service.Test(e.Context(), "", w.Name); !errs.Is(err, errs.FailedPrecondition) {
			e.Errorf("a test of a disabled webhook: %v", err)
		}
		e.check(1)
	})
}

// A receiver that is gone disables a webhook, but not one that has got another
// receiver while the request was under way.
func TestGoneReceiverThatWasReplaced(t *testing.T) {
	stores(t, func(e *env) {
		e.start(nil)
		e.begun()
		w := e.hook("hook", "webhook.test")
		url := e.receiver.URL + "/new"
		e.mu.Lock()
		e.answer = func(string, int) int {
			if _, err := e.service.Update(e.Context(), "", w.Name, webhooks.Change{URL: &url}); err != nil {
				e.Error(err)
			}
			return http.StatusGone
		}
		e.mu.Unlock()
		if _, err := e.service.Test(e.Context(), "", w.Name); err != nil {
			e.Fatal(err)
		}
		e.settled(w, 1, webhook.DeliveryPhaseDead)
		e.mu.Lock()
		e.answer = nil
		e.mu.Unlock()
		if _, err := e.service.Replay(e.Context(), "", w.Name, ""); err != nil {
			e.Fatal(err)
		}
		e.settled(w, 1, webhook.DeliveryPhaseDelivered)
	})
}

// A disabled webhook gets nothing, not even later; one that is enabled again gets
// what happens from then on.
func TestDisabled(t *testing.T) {
	stores(t, func(e *env) {
		e.start(nil)
		e.begun()
		w, all := e.hook("hook"), e.hook("all")
		e.mu.Lock()
		e.answer = func(string, int) int { return http.StatusNoContent }
		e.mu.Unlock()
		set := func(disabled bool) {
			if _, err := e.service.Update(e.Context(), "", w.Name, webhooks.Change{Disabled: &disabled}); err != nil {
				e.Fatal(err)
			}
		}
		set(true)
		e.sandbox(sandbox.SandboxPhaseStopped)
		e.settled(all, 1, webhook.DeliveryPhaseDelivered)
		set(false)
		e.sandbox(sandbox.SandboxPhaseStopped)
		e.settled(all, 2, webhook.DeliveryPhaseDelivered)
		e.settled(w, 1, webhook.DeliveryPhaseDelivered)
	})
}

// Receivers at addresses that are not public are refused when they are connected to,
// whatever their name is.
func TestPrivateReceivers(t *testing.T) {
	stores(t, func(e *env) {
		e.start(nil, func(s *Sender) { s.Allow = nil })
		e.begun()
		w := e.hook("hook")
		url := strings.Replace(e.receiver.URL, "127.0.0.1", "localhost", 1)
		if _, err := e.service.Update(e.Context(), "", w.Name, webhooks.Change{URL: &url}); err != nil {
			e.Fatal(err)
		}
		if _, err := e.service.Test(e.Context(), "", w.Name); err != nil {
			e.Fatal(err)
		}
		all := e.settled(w, 1, webhook.DeliveryPhaseDead)
		if !strings.Contains(all[0].Status.Message, "webhooks may not reach") || strings.Contains(all[0].Status.Message, "127.0.0.1") || len(e.requests) > 0 {
			e.Errorf("%+v, %d requests", all[0].Status, len(e.requests))
		}
	})
}

func TestPermit(t *testing.T) {
	for _, a := range []string{
		"127.0.0.1:80", "10.0.0.1:80", "172.17.0.1:443", "192.168.1.1:443", "100.64.0.1:443", "169.254.169.254:80", "100.100.100.200:80", "168.63.129.16:80",
		"0.0.0.0:80", "224.0.0.1:80", "255.255.255.255:80", "[::]:80", "[::1]:80", "[fe80::1]:80", "[fd00:ec2::254]:80", "[fc00::1]:80", "[::ffff:127.0.0.1]:80",
		"[64:ff9b::a9fe:a9fe]:80", "[2002:7f00:1::]:80", "[2001::1]:80", "[ff02::1]:80",
	} {
		if err := permit(a, nil); !errs.Is(err, errs.PermissionDenied) {
			t.Errorf("%s: %v", a, err)
		}
	}
	for _, a := range []string{"93.184.215.14:443", "[2606:4700::1111]:443", "203.0.113.200:80"} {
		if err := permit(a, nil); err != nil {
			t.Errorf("%s: %v", a, err)
		}
	}
}

// The oldest deliveries that have ended go when there are too many.
func TestRetention(t *testing.T) {
	stores(t, func(e *env) {
		w := e.hook("hook")
		var ops []entity.Op
		at := timestamp(time.Now().Add(-time.Hour))
		old := timestamp(time.Now().Add(-webhook.KeepFor - time.Hour))
		var first *webhook.WebhookDelivery
		for i := range webhook.KeepDeliveries + 2 {
			d := webhook.NewWebhookDelivery()
			d.Project = e.project
			d.Spec = webhook.WebhookDeliverySpec{Webhook: w.GetID(), Key: fmt.Sprint(i), Event: fmt.Sprint(i), Type: "sandbox.ended", OccurredAt: at, Payload: "{}"}
			ended := at.Add(time.Duration(i) * time.Millisecond)
			d.Status.Phase, d.Status.EndedAt = webhook.DeliveryPhaseDelivered, &ended
			if i == 0 {
				first = d
			}
			if i == 500 {
				d.Status.EndedAt = &old
			}
			op, err := entity.CreateOp(d)
			if err != nil {
				e.Fatal(err)
			}
			ops = append(ops, op)
		}
		for chunk := range slices.Chunk(ops, 200) {
			if _, err := e.store.Txn(e.Context(), entity.TxnRequest{Ops: chunk}); err != nil {
				e.Fatal(err)
			}
		}
		e.start(nil)
		wait.For(e, "the old one, and the oldest, are gone", func() bool { return len(e.deliveries(w)) == webhook.KeepDeliveries })
		if _, err := entity.Get[webhook.WebhookDelivery](e.Context(), e.store, first.ID); !errs.Is(err, errs.NotFound) {
			e.Errorf("the oldest: %v", err)
		}
	})
}
