package sandbox_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	api_sandbox "miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/egress"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

func TestSetUp(t *testing.T) {
	e := newEnv(t)
	secret, err := e.sealer.Seal("hidden")
	e.must(err)
	sb := e.add(func(sb *Sandbox) {
		sb.Spec.Template.Env = map[string]string{"A": "1", "B": "shadowed"}
		sb.Spec.Template.Secrets = map[string]schema.Secret{"B": secret}
		sb.Spec.Template.Resources.MemoryBytes = 64 << 20
	}, "sleep")
	got, again := e.step(sb)
	if got.Status.Phase != api_sandbox.SandboxPhaseRunning || !got.Status.Ready || got.Status.ReadyAt == nil ||
		got.Status.Address == "" || got.Status.StartedAt == nil || got.Status.Message != "" || again != 0 {
		t.Errorf("again after %s: %+v", again, got.Status)
	}
	spec, _ := e.machine.Spec(string(sb.ID))
	if !slices.Equal(spec.Env, []string{"A=1", "B=hidden"}) || spec.MemoryBytes != 64<<20 || spec.Network != execution.NetworkBridge {
		t.Errorf("spec %+v", spec)
	}
	// At rest the controller writes nothing any more.
	before := got.Revision
	for range 3 {
		if got, again = e.step(sb); again != 0 || got.Revision != before {
			t.Errorf("again after %s, revision %d, was %d", again, got.Revision, before)
		}
	}
}

// TestPolicyOfARunningSandbox: the node gets a network policy that was stored
// while it set the sandbox up, or by a server that ended then.
func TestPolicyOfARunningSandbox(t *testing.T) {
	e := newEnv(t)
	sb := e.add(func(sb *Sandbox) { sb.Spec.Template.Egress = &api_sandbox.Egress{Mode: api_sandbox.EgressModeAll} }, "sleep")
	store := func(mode api_sandbox.EgressMode) {
		_, err := entity.ModifySpec(t.Context(), e.store, sb.ID, func(sb *Sandbox) error {
			sb.Spec.Template.Egress = &api_sandbox.Egress{Mode: mode}
			return nil
		})
		e.must(err)
	}
	e.machine.SetHook(func(op, _ string, after bool) error {
		if op == "Ensure" && after {
			store(api_sandbox.EgressModeNone)
		}
		return nil
	})
	e.step(sb)
	e.machine.SetHook(nil)
	applied := func(want egress.Mode) {
		t.Helper()
		e.step(sb)
		if spec, _ := e.machine.Spec(string(sb.ID)); spec.Egress.Mode != want {
			t.Errorf("the node applies %s, want %s", spec.Egress.Mode, want)
		}
	}
	applied(egress.None)
	store(api_sandbox.EgressModeAll)
	applied(egress.All)
}

func TestSetUpFails(t *testing.T) {
	for _, tc := range []struct {
		name    string
		change  func(*env, *Sandbox)
		message string
	}{
		{"image", func(_ *env, sb *Sandbox) { sb.Spec.Template.Image = "none" }, "image none does not exist (build it)"},
		{"secret", func(_ *env, sb *Sandbox) {
			sec, err := schema.NewSealer(t.TempDir() + "/other").Seal("x")
			if err != nil {
				t.Fatal(err)
			}
			sb.Spec.Template.Secrets = map[string]schema.Secret{"KEY": sec}
		}, "secret KEY"},
		{"hostile", func(e *env, _ *Sandbox) {
			e.machine.SetHook(func(op, _ string, _ bool) error {
				if op == "Ensure" {
					return errs.New(errs.Internal, "bad\x00\xff\n%s", strings.Repeat("ä", 2000))
				}
				return nil
			})
		}, "bad"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := newEnv(t)
			sb := e.add(func(sb *Sandbox) { tc.change(e, sb) }, "sleep")
			got, again := e.step(sb)
			if st := got.Status; st.Phase != api_sandbox.SandboxPhaseFailed || st.Reason != api_sandbox.EndReasonSetup || st.EndedAt == nil ||
				!strings.Contains(st.Message, tc.message) || len(st.Message) > 1000 || strings.ContainsAny(st.Message, "\x00\n") || again != 0 {
				t.Errorf("again after %s: %+v", again, st)
			}
			if ids := e.machine.IDs(); len(ids) != 0 {
				t.Errorf("left: %v", ids)
			}
		})
	}
}

// While a part of the machine does not answer, the set-up continues, for a
// time.
func TestSetUpUnavailable(t *testing.T) {
	e := newEnv(t)
	away := func(op, _ string, _ bool) error {
		if op == "Ensure" {
			return errAway
		}
		return nil
	}
	e.machine.SetHook(away)
	e.advance(time.Hour) // however long the sandbox waited for a node
	sb, other := e.add(nil, "sleep"), e.add(nil, "sleep")
	for range 90 { // the seconds that the set-up takes here: less than setupTimeout
		for _, s := range []*Sandbox{sb, other} {
			if _, err := e.rec.Reconcile(t.Context(), s.ID); !errs.Is(err, errs.Unavailable) {
				t.Fatal(err)
			}
		}
		e.advance(time.Second)
	}
	if got := e.get(sb); got.Status.Phase != api_sandbox.SandboxPhaseCreating || got.Status.Message != "away" {
		t.Errorf("%+v", got.Status)
	}
	if n := e.store.writes.Load(); n > 6 {
		t.Errorf("%d writes", n)
	}
	e.machine.SetHook(nil)
	if got, _ := e.step(sb); got.Status.Phase != api_sandbox.SandboxPhaseRunning || got.Status.Message != "" {
		t.Errorf("%+v", got.Status)
	}
	e.machine.SetHook(away)
	e.advance(time.Minute)
	if got, _ := e.step(other); got.Status.Phase != api_sandbox.SandboxPhaseFailed || got.Status.Message != "away" {
		t.Errorf("%+v", got.Status)
	}
}

func TestReadiness(t *testing.T) {
	e := newEnv(t)
	sb := e.add(withProbe, "serve", "3000")
	e.answer(errHung)
	got, again := e.step(sb)
	if got.Status.Phase != api_sandbox.SandboxPhaseRunning || got.Status.Ready || again != 250*time.Millisecond {
		t.Fatalf("again after %s: %+v", again, got.Status)
	}
	e.eventually("it listens", func() bool {
		ports, err := e.machine.Driver().Listening(t.Context(), string(sb.ID))
		return err == nil && len(ports) == 1
	})
	e.advance(2 * time.Second)
	got, _ = e.step(sb)
	if st := got.Status; st.Message != errHung.Error() || !slices.Equal(st.Listening, []int64{3000}) || st.Overdue {
		t.Errorf("after 2 s: %+v", st)
	}
	e.advance(time.Minute)
	e.machine.Print(string(sb.ID), "cannot bind")
	got, _ = e.step(sb)
	if st := got.Status; !st.Overdue || st.Ready || st.Phase != api_sandbox.SandboxPhaseRunning || !slices.Contains(st.LogTail, "cannot bind") {
		t.Errorf("after a minute: %+v", st)
	}
	e.answer(nil)
	e.advance(10 * time.Second)
	got, again = e.step(sb)
	if st := got.Status; !st.Ready || st.ReadyAt == nil || st.Overdue || st.Message != "" || st.Listening != nil || st.LogTail != nil {
		t.Errorf("late, but there: %+v", st)
	}
	if again < 8*time.Second || again > 10*time.Second {
		t.Errorf("a ready one is probed again after %s", again)
	}
	// Another event that wakes the controller causes no earlier probe.
	if _, sooner := e.step(sb); sooner > again || sooner < again-5*time.Second {
		t.Errorf("%s instead of %s", sooner, again)
	}
	first, rev := *got.Status.ReadyAt, got.Revision
	for round := range 3 {
		e.answer(errHung)
		for miss := 1; miss <= 3; miss++ {
			e.advance(again)
			got, again = e.step(sb)
			if got.Status.Ready != (miss < 3) || miss < 3 && got.Revision != rev {
				t.Fatalf("round %d, miss %d: %+v", round, miss, got.Status)
			}
		}
		if st := got.Status; st.Overdue || !strings.HasSuffix(st.Message, errHung.Error()) || st.Phase != api_sandbox.SandboxPhaseRunning || again > 5*time.Second {
			t.Errorf("round %d: again after %s: %+v", round, again, st)
		}
		e.answer(nil)
		e.advance(again)
		got, again = e.step(sb)
		if st := got.Status; !st.Ready || st.Message != "" || !st.ReadyAt.Equal(first) {
			t.Errorf("round %d: does not recover: %+v", round, st)
		}
		// Misses that are not in a row do not add up.
		for range 4 {
			for _, err := range []error{errHung, errHung, nil} {
				e.answer(err)
				e.advance(again)
				got, again = e.step(sb)
				if !got.Status.Ready {
					t.Fatal("two misses are too few")
				}
			}
		}
		rev = got.Revision
	}
}

// The status of a sandbox that never becomes ready, with a different message
// each time, is not written all the time.
func TestReportsAreBounded(t *testing.T) {
	e := newEnv(t)
	sb := e.add(withProbe, "sleep")
	e.step(sb)
	before := e.store.writes.Load()
	looks := 0
	for start := e.now(); e.now().Sub(start) < 10*time.Minute; looks++ {
		e.answer(fmt.Errorf("failure %d", looks))
		_, again := e.step(sb)
		e.advance(again)
	}
	if n := e.store.writes.Load() - before; n < 10 || n > 45 || looks > 700 {
		t.Errorf("%d writes in %d looks of 10 minutes", n, looks)
	}
}

// A probe of a port that only a loopback address has cannot pass, which is
// known before its deadline. Another port says nothing: it may be that of a
// program that starts slowly.
func TestUnreachablePort(t *testing.T) {
	e := newEnv(t)
	local, other := e.add(withProbe, "serve", "80", "127.0.0.1"), e.add(withProbe, "serve", "3000")
	e.answer(errHung)
	for _, sb := range []*Sandbox{local, other} {
		e.step(sb)
		e.eventually("it listens", func() bool {
			ports, err := e.machine.Driver().Listening(t.Context(), string(sb.ID))
			return err == nil && len(ports) == 1
		})
	}
	e.advance(2 * time.Second)
	if got, _ := e.step(local); got.Status.Overdue || !slices.Equal(got.Status.Unreachable, []int64{80}) {
		t.Errorf("after 2 s: %+v", got.Status)
	}
	e.step(other)
	e.advance(11 * time.Second)
	if got, _ := e.step(local); !got.Status.Overdue || got.Status.LogTail == nil || got.Status.Ready {
		t.Errorf("its loopback address alone for 11 s: %+v", got.Status)
	}
	if got, _ := e.step(other); got.Status.Overdue || !slices.Equal(got.Status.Listening, []int64{3000}) {
		t.Errorf("another port for 11 s: %+v", got.Status)
	}
	e.answer(nil)
	e.advance(10 * time.Second)
	if got, _ := e.step(local); !got.Status.Ready || got.Status.Overdue || got.Status.Unreachable != nil {
		t.Errorf("late, but there: %+v", got.Status)
	}
}

// A sandbox without network is probed from inside, never through the host.
func TestProbeWithoutNetwork(t *testing.T) {
	e := newEnv(t)
	none := func(sb *Sandbox) {
		withProbe(sb)
		sb.Spec.Template.Network = api_sandbox.NetworkModeNone
	}
	silent, sb := e.add(none, "sleep"), e.add(none, "serve", "80")
	e.step(silent)
	e.eventually("it is ready", func() bool {
		e.advance(time.Second)
		got, _ := e.step(sb)
		return got.Status.Ready
	})
	e.advance(10 * time.Second)
	if got, _ := e.step(silent); got.Status.Ready || got.Status.Message != "nothing listens on port 80" {
		t.Errorf("%+v", got.Status)
	}
}

func TestEnds(t *testing.T) {
	for _, tc := range []struct {
		name    string
		command []string
		act     func(e *env, sid string)
		reason  api_sandbox.EndReason
		code    int64 // -1: none
		message string
		tail    bool
	}{
		{"exit", []string{"exit", "3"}, nil, api_sandbox.EndReasonExit, 3, "", true},
		{"later", []string{"sleep"}, func(e *env, sid string) { e.machine.Exit(sid, 0) }, api_sandbox.EndReasonExit, 0, "", true},
		{"oom", []string{"memory", "4096"}, nil, api_sandbox.EndReasonOOM, 137, "limit", true},
		{"crash", []string{"sleep"}, func(e *env, sid string) { e.machine.Crash(sid) }, api_sandbox.EndReasonCrash, -1, "kernel died", true},
		{"vanished", []string{"sleep"}, func(e *env, sid string) { e.machine.Vanish(sid) }, api_sandbox.EndReasonCrash, -1, "nothing", true},
		{"reboot", []string{"sleep"}, func(e *env, sid string) {
			e.rec.Booted = func() time.Time { return time.Now().Add(time.Minute) }
			e.machine.Vanish(sid)
		}, api_sandbox.EndReasonNode, -1, "machine was restarted", false},
		{"reboot with remains", []string{"sleep"}, func(e *env, sid string) {
			e.rec.Booted = func() time.Time { return time.Now().Add(time.Minute) }
			e.machine.Crash(sid)
		}, api_sandbox.EndReasonNode, -1, "machine was restarted", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := newEnv(t)
			sb := e.add(nil, tc.command...)
			got, _ := e.step(sb)
			e.machine.Print(string(sb.ID), "last\xffwords")
			if tc.act != nil {
				tc.act(e, string(sb.ID))
			}
			e.eventually("it ends", func() bool {
				got, _ = e.step(sb)
				return got.Status.Phase == api_sandbox.SandboxPhaseStopped
			})
			st := got.Status
			code := int64(-1)
			if st.ExitCode != nil {
				code = *st.ExitCode
			}
			if st.Reason != tc.reason || code != tc.code || !strings.Contains(st.Message, tc.message) || st.Ready || st.Address != "" ||
				st.EndedAt == nil || st.StartedAt == nil {
				t.Errorf("code %d: %+v", code, st)
			}
			if tc.tail && tc.act != nil && !slices.Contains(st.LogTail, "last\xffwords") {
				t.Errorf("log tail %q", st.LogTail)
			}
			if ids := e.machine.IDs(); len(ids) != 0 {
				t.Errorf("left: %v", ids)
			}
			if ids, _ := e.machine.Driver().LogIDs(t.Context()); len(ids) != 1 {
				t.Errorf("logs of %v", ids)
			}
			rev := got.Revision
			if got, again := e.step(sb); again != 0 || got.Revision != rev {
				t.Error("it does not come to rest")
			}
		})
	}
}

func TestTTL(t *testing.T) {
	e := newEnv(t)
	ttl := time.Minute
	sb := e.add(func(sb *Sandbox) { sb.Spec.TTL = &ttl }, "sleep")
	got, again := e.step(sb)
	if !got.Status.Ready || again <= 0 || again > ttl {
		t.Fatalf("again after %s: %+v", again, got.Status)
	}
	e.advance(again + time.Millisecond)
	got, _ = e.step(sb)
	if st := got.Status; st.Phase != api_sandbox.SandboxPhaseStopped || st.Reason != api_sandbox.EndReasonTTL || st.ExitCode == nil || *st.ExitCode != 0 {
		t.Errorf("%+v", st)
	}
}

func TestStop(t *testing.T) {
	t.Run("running", func(t *testing.T) {
		e := newEnv(t)
		sb := e.add(nil, "sleep")
		e.step(sb)
		e.spec(sb, func(s *api_sandbox.SandboxSpec) {
			s.Desired, s.StopReason = api_sandbox.DesiredStateStopped, api_sandbox.EndReasonIdle
		})
		got, _ := e.step(sb)
		if st := got.Status; st.Phase != api_sandbox.SandboxPhaseStopped || st.Reason != api_sandbox.EndReasonIdle || *st.ExitCode != 0 || st.Ready {
			t.Errorf("%+v", st)
		}
	})
	t.Run("never set up", func(t *testing.T) {
		e := newEnv(t)
		sb := e.add(nil, "sleep")
		e.tellStop(sb)
		got, _ := e.step(sb)
		if st := got.Status; st.Phase != api_sandbox.SandboxPhaseStopped || st.Reason != api_sandbox.EndReasonUser || st.ExitCode != nil {
			t.Errorf("%+v", st)
		}
	})
	t.Run("ended before", func(t *testing.T) {
		e := newEnv(t)
		sb := e.add(nil, "sleep")
		e.step(sb)
		e.machine.Exit(string(sb.ID), 7)
		e.tellStop(sb)
		got, _ := e.step(sb)
		if st := got.Status; st.Reason != api_sandbox.EndReasonExit || *st.ExitCode != 7 {
			t.Errorf("%+v", st)
		}
	})
	t.Run("driver away", func(t *testing.T) {
		e := newEnv(t)
		sb := e.add(nil, "sleep")
		e.step(sb)
		e.tellStop(sb)
		e.machine.SetHook(func(string, string, bool) error { return errAway })
		for range 5 {
			if _, err := e.rec.Reconcile(t.Context(), sb.ID); !errs.Is(err, errs.Unavailable) {
				t.Fatal(err)
			}
		}
		if got := e.get(sb); got.Status.Phase != api_sandbox.SandboxPhaseRunning {
			t.Errorf("%+v", got.Status)
		}
		e.machine.SetHook(nil)
		if got, _ := e.step(sb); got.Status.Phase != api_sandbox.SandboxPhaseStopped {
			t.Errorf("%+v", got.Status)
		}
	})
	// A stop under way is finished for the reason that was written first.
	t.Run("changed mind", func(t *testing.T) {
		e := newEnv(t)
		sb := e.add(nil, "sleep")
		e.step(sb)
		e.tellStop(sb)
		e.machine.SetHook(func(op, _ string, _ bool) error {
			if op == "Stop" {
				return errAway
			}
			return nil
		})
		if _, err := e.rec.Reconcile(t.Context(), sb.ID); !errs.Is(err, errs.Unavailable) {
			t.Fatal(err)
		}
		e.spec(sb, func(s *api_sandbox.SandboxSpec) { s.Desired = api_sandbox.DesiredStateRunning })
		e.machine.SetHook(nil)
		if got, _ := e.step(sb); got.Status.Phase != api_sandbox.SandboxPhaseStopped || got.Status.Reason != api_sandbox.EndReasonUser {
			t.Errorf("%+v", got.Status)
		}
	})
}

// While the driver cannot be asked, no sandbox ends.
func TestUnknownIsNotGone(t *testing.T) {
	e := newEnv(t)
	sb := e.add(withProbe, "sleep")
	got, _ := e.step(sb)
	rev := got.Revision
	e.machine.SetHook(func(string, string, bool) error { return errAway })
	for range 5 {
		e.advance(time.Hour)
		if _, err := e.rec.Reconcile(t.Context(), sb.ID); !errs.Is(err, errs.Unavailable) {
			t.Fatal(err)
		}
	}
	if got := e.get(sb); got.Revision != rev || len(e.machine.IDs()) != 1 {
		t.Errorf("%+v", got.Status)
	}
}

// Another node's sandboxes are not touched.
func TestOtherNode(t *testing.T) {
	e := newEnv(t)
	sb := e.add(func(sb *Sandbox) { sb.Spec.Node = "" }, "sleep")
	got, _ := e.step(sb)
	if got.Revision != sb.Revision || len(e.machine.IDs()) != 0 {
		t.Errorf("%+v", got.Status)
	}
	if e.rec.Mine(got) {
		t.Error("a sandbox without a node is not mine")
	}
}

func TestConflict(t *testing.T) {
	e := newEnv(t)
	sb := e.add(nil, "sleep")
	e.machine.SetHook(func(op, _ string, after bool) error {
		if op != "Ensure" || after {
			return nil
		}
		_, err := entity.ModifyStatus(t.Context(), e.store.Store, sb.ID, func(sb *Sandbox) error {
			sb.Status.Phase, sb.Status.Reason = api_sandbox.SandboxPhaseStopped, api_sandbox.EndReasonNode
			return nil
		})
		return err
	})
	if _, err := e.rec.Reconcile(t.Context(), sb.ID); !errs.Is(err, errs.Conflict) {
		t.Fatal(err)
	}
	e.machine.SetHook(nil)
	got, _ := e.step(sb)
	if got.Status.Reason != api_sandbox.EndReasonNode || len(e.machine.IDs()) != 0 {
		t.Errorf("%+v, %v", got.Status, e.machine.IDs())
	}
}
