package sandbox_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	api_sandbox "miren.dev/runtime/api/sandbox"
)

var errStands = errors.New("port 80 takes connections, but no process accepts them")

// withLive gives a sandbox a probe and a liveness check with the defaults.
func withLive(sb *Sandbox) {
	withProbe(sb)
	sb.Spec.Template.Live = &api_sandbox.Liveness{}
	sb.Spec.Template.Live.SetDefaults()
	sb.Spec.Template.Live.Port = 80
}

// liveness makes the outcome of liveness checks that of the returned pointer, for which each failure takes as long
// as its time-out.
func (e *env) liveness() *error {
	verdict := new(error)
	e.rec.Live = func(_ context.Context, _ string, l api_sandbox.Liveness) error {
		if *verdict != nil {
			e.advance(l.Timeout)
		}
		return *verdict
	}
	return verdict
}

// TestHungWithinAMinute: a sandbox whose process stands still is taken out of routing within 45 s, whenever that
// begins, and after less than 20 s of it never.
func TestHungWithinAMinute(t *testing.T) {
	e := newEnv(t)
	verdict := e.liveness()
	for _, phase := range []time.Duration{0, time.Second, 4 * time.Second, 9 * time.Second} {
		sb := e.add(withLive, "sleep")
		got, again := e.step(sb)
		if !got.Status.Ready || got.Status.LiveAt == nil || got.Status.HungAt != nil {
			t.Fatalf("%+v", got.Status)
		}
		until := func(end time.Time) {
			for e.now().Add(again).Before(end) {
				e.advance(again)
				if got, again = e.step(sb); got.Status.HungAt != nil {
					return
				}
			}
			e.advance(max(0, end.Sub(e.now())))
			again = time.Millisecond
		}
		until(e.now().Add(30*time.Second + phase))
		for range 5 { // short stalls
			*verdict = errStands
			until(e.now().Add(19 * time.Second))
			*verdict = nil
			until(e.now().Add(25 * time.Second))
			if got.Status.HungAt != nil || !got.Status.Ready {
				t.Fatalf("phase %s: a stall of 19 s counts: %+v", phase, got.Status)
			}
		}
		began := e.now()
		*verdict = errStands
		until(began.Add(time.Minute))
		if st := got.Status; st.HungAt == nil || st.Ready || !strings.Contains(st.Message, "it hangs: 3 liveness checks in a row failed: port 80") {
			t.Fatalf("phase %s: %+v", phase, st)
		}
		if took := got.Status.HungAt.Sub(began); took > 45*time.Second || took < 20*time.Second {
			t.Errorf("phase %s: hung after %s", phase, took)
		}
		// The kernel in it still takes connections: its probe does not make it ready.
		for range 5 {
			e.advance(again)
			if got, again = e.step(sb); got.Status.Ready || got.Status.HungAt == nil {
				t.Fatalf("%+v", got.Status)
			}
		}
		*verdict = nil
		for range 2 {
			e.advance(again)
			got, again = e.step(sb)
		}
		if st := got.Status; !st.Ready || st.HungAt != nil || st.Message != "" {
			t.Errorf("it answers again: %+v", st)
		}
	}
}

// TestLivenessCountsFromItsFirstSuccess: a sandbox that is not ready yet is not checked, and one whose process
// answers no such check is never hung.
func TestLivenessCountsFromItsFirstSuccess(t *testing.T) {
	e := newEnv(t)
	verdict, checks := e.liveness(), 0
	inner := e.rec.Live
	e.rec.Live = func(ctx context.Context, a string, l api_sandbox.Liveness) error {
		checks++
		return inner(ctx, a, l)
	}
	*verdict = errStands
	e.answer(errHung)
	sb := e.add(withLive, "sleep")
	for range 20 {
		_, again := e.step(sb)
		e.advance(max(again, time.Second))
	}
	if checks != 0 {
		t.Errorf("%d checks before it was ready", checks)
	}
	e.answer(nil)
	for range 20 {
		_, again := e.step(sb)
		e.advance(again)
	}
	got := e.get(sb)
	if st := got.Status; !st.Ready || st.HungAt != nil || st.LiveAt != nil || !strings.Contains(st.Message, "never passed") {
		t.Errorf("%+v", st)
	}
	*verdict = nil
	for range 8 {
		_, again := e.step(sb)
		e.advance(again)
	}
	if st := e.get(sb).Status; !st.Ready || st.LiveAt == nil || st.Message != "" {
		t.Errorf("it passes: %+v", st)
	}
}

// TestHungAcrossRestart: a server that was started again counts from the beginning, and needs no success for that.
func TestHungAcrossRestart(t *testing.T) {
	e := newEnv(t)
	verdict := e.liveness()
	sb := e.add(withLive, "sleep")
	_, again := e.step(sb)
	*verdict = errStands
	e.advance(again)
	_, again = e.step(sb)
	e.advance(again)
	e.step(sb)
	check := e.rec.Live
	e.rec = e.reconciler(e.store)
	e.rec.Live = check
	for n := 1; n <= 3; n++ {
		got, again := e.step(sb)
		if (got.Status.HungAt != nil) != (n == 3) {
			t.Errorf("check %d: %+v", n, got.Status)
		}
		e.advance(again)
	}
	// Its pool has it replaced; why it ended stays.
	e.machine.Print(string(sb.ID), "the last line")
	e.spec(sb, func(s *api_sandbox.SandboxSpec) {
		s.Desired, s.StopReason = api_sandbox.DesiredStateStopped, api_sandbox.EndReasonHung
	})
	got, _ := e.step(sb)
	if st := got.Status; st.Phase != api_sandbox.SandboxPhaseStopped || st.Reason != api_sandbox.EndReasonHung ||
		!strings.Contains(st.Message, "it hangs") || len(st.LogTail) == 0 {
		t.Errorf("%+v", st)
	}
}
