package sandbox_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	api_sandbox "miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
)

// refuseSnapshots makes every snapshot fail with err, and counts them.
func (e *env) refuseSnapshots(err error) *atomic.Int64 {
	var asked atomic.Int64
	e.machine.SetHook(func(op, _ string, after bool) error {
		if op == "Snapshot" && !after {
			asked.Add(1)
			return err
		}
		return nil
	})
	return &asked
}

func (e *env) wantPaused(sb *Sandbox) {
	e.Helper()
	e.spec(sb, func(s *api_sandbox.SandboxSpec) { s.Desired = api_sandbox.DesiredStatePaused })
}

// putBack reports whether a sandbox runs, is wanted so, and says why it is not paused.
func putBack(sb *Sandbox) bool {
	return sb.Status.Phase == api_sandbox.SandboxPhaseRunning && sb.Spec.Desired == api_sandbox.DesiredStateRunning &&
		sb.Status.Saved == "" && strings.Contains(sb.Status.PauseRefused, "no snapshots here") && strings.Contains(sb.Status.PauseRefused, "use another node")
}

var errNoSnapshots = errs.New(errs.Unimplemented, "no snapshots here").WithHint("use another node")

// A pause that the driver will never do is asked for once; the sandbox goes on.
func TestRefusedPause(t *testing.T) {
	for _, class := range []errs.Class{errs.Unimplemented, errs.InvalidArgument, errs.FailedPrecondition} {
		t.Run(string(class), func(t *testing.T) {
			e := newEnv(t)
			asked := e.refuseSnapshots(errs.New(class, "no snapshots here").WithHint("use another node"))
			e.control(e.store)
			sb := e.add(nil, "sleep")
			e.phase(sb, api_sandbox.SandboxPhaseRunning)
			for n := int64(1); n < 3; n++ { // what was refused can be asked for again
				e.wantPaused(sb)
				e.eventually("it is put back", func() bool { return asked.Load() == n && putBack(e.get(sb)) })
			}
			if got := e.get(sb); got.Status.Pauses != 2 || !got.Status.Ready {
				t.Errorf("%+v", got.Status)
			}
			e.machine.SetHook(nil)
			e.wantPaused(sb)
			if got := e.phase(sb, api_sandbox.SandboxPhasePaused); got.Status.PauseRefused != "" {
				t.Errorf("a paused one has %q", got.Status.PauseRefused)
			}
		})
	}
}

// What may succeed later is tried again.
func TestFailedPauseIsTriedAgain(t *testing.T) {
	e := newEnv(t)
	asked := e.refuseSnapshots(errs.New(errs.Unavailable, "away"))
	e.control(e.store)
	sb := e.add(nil, "sleep")
	e.phase(sb, api_sandbox.SandboxPhaseRunning)
	e.wantPaused(sb)
	e.eventually("it is asked for again", func() bool { return asked.Load() > 2 })
	if got := e.get(sb); got.Spec.Desired != api_sandbox.DesiredStatePaused || got.Status.PauseRefused != "" {
		t.Errorf("%s, %+v", got.Spec.Desired, got.Status)
	}
	e.machine.SetHook(nil)
	e.phase(sb, api_sandbox.SandboxPhasePaused)
}

// An idle sandbox that cannot be paused is not asked to be again and again.
func TestRefusedIdlePause(t *testing.T) {
	e := newEnv(t)
	asked := e.refuseSnapshots(errNoSnapshots)
	limit := time.Second
	sb := e.add(func(sb *Sandbox) { sb.Spec.IdleTimeout, sb.Spec.OnIdle = &limit, api_sandbox.IdleActionPause }, "sleep")
	e.step(sb)
	e.eventually("it is put back", func() bool {
		got, _ := e.step(sb)
		return putBack(got)
	})
	e.advance(time.Hour)
	for range 5 {
		e.step(sb)
	}
	if got := e.get(sb); asked.Load() != 1 || !putBack(got) {
		t.Errorf("asked %d times: %+v", asked.Load(), got.Status)
	}
}

// A sandbox that cannot be paused at the end of its time has time again, and no
// more than it would have after a resume.
func TestRefusedPauseAtTheEnd(t *testing.T) {
	e := newEnv(t)
	asked := e.refuseSnapshots(errNoSnapshots)
	ttl := time.Minute
	sb := e.add(func(sb *Sandbox) { sb.Spec.TTL, sb.Spec.ResumeTTL = &ttl, &ttl }, "sleep")
	e.step(sb)
	for n := int64(1); n < 3; n++ {
		e.advance(2 * time.Minute)
		e.eventually("it is put back", func() bool {
			got, _ := e.step(sb)
			return asked.Load() == n && putBack(got)
		})
		got := e.get(sb)
		if got.Spec.TTL == nil {
			t.Fatal("it has no end")
		}
		if left := got.Status.StartedAt.Add(*got.Spec.TTL).Sub(e.now()); left <= 0 || left > ttl {
			t.Fatalf("it is paused in %s", left)
		}
	}
}

// A server that is killed before or after any step of a refused pause, and started
// again, leaves the sandbox running and wanted so.
func TestKilledInRefusedPause(t *testing.T) {
	e := newEnv(t)
	for n := int64(0); ; n++ {
		stop := e.control(e.store)
		sb := e.add(nil, "sleep")
		e.phase(sb, api_sandbox.SandboxPhaseRunning)
		stop()
		e.wantPaused(sb)
		k := newKiller(n)
		e.machine.SetHook(func(op, _ string, after bool) error {
			switch {
			case op != "Snapshot":
				if k.dead.Load() {
					return errKilled
				}
				return nil
			case after:
				return nil
			}
			if err := k.step(); err != nil {
				return err
			}
			return errNoSnapshots
		})
		e.store.set(func(op string) error {
			if op == "Txn" {
				return k.step()
			}
			if k.dead.Load() {
				return errKilled
			}
			return nil
		}, func(string) error { return k.step() })
		stop = e.control(e.store)
		e.eventually(fmt.Sprintf("killed at step %d, or done", n), func() bool { return k.dead.Load() || putBack(e.get(sb)) })
		killed := k.dead.Load()
		stop()
		e.store.set(nil, nil)
		e.refuseSnapshots(errNoSnapshots)
		stop = e.control(e.store)
		e.eventually(fmt.Sprintf("killed at step %d, it is put back", n), func() bool { return putBack(e.get(sb)) })
		if _, there := e.machine.Spec(string(sb.ID)); !there {
			t.Errorf("killed at step %d: it does not run", n)
		}
		stop()
		e.machine.SetHook(nil)
		e.machine.Vanish(string(sb.ID))
		e.must(entity.Remove[Sandbox](t.Context(), e.store.Store, sb.ID))
		if !killed {
			if n < 5 {
				t.Errorf("only %d steps", n)
			}
			return
		}
	}
}

// TestResumeForAPool: a sandbox of a pool that cannot be resumed fails, and the pool makes another one; while a part of the
// machine is away, it is tried again.
func TestResumeForAPool(t *testing.T) {
	for class, end := range map[errs.Class]api_sandbox.SandboxPhase{
		errs.FailedPrecondition: api_sandbox.SandboxPhaseFailed, errs.Unavailable: api_sandbox.SandboxPhaseRunning,
	} {
		t.Run(string(class), func(t *testing.T) {
			e := newEnv(t)
			e.control(e.store)
			p := api_sandbox.NewSandboxPool()
			p.Project, p.Spec.Template.Image = e.project, "image"
			e.must(entity.Create(t.Context(), e.store.Store, p))
			sb := e.add(func(sb *Sandbox) { sb.Spec.Pool = p.GetID() }, "sleep")
			e.phase(sb, api_sandbox.SandboxPhaseRunning)
			e.wantPaused(sb)
			e.phase(sb, api_sandbox.SandboxPhasePaused)
			var asked atomic.Int64
			e.machine.SetHook(func(op, _ string, after bool) error {
				if op == "Ensure" && !after && asked.Add(1) == 1 {
					return errs.New(class, "no kernel")
				}
				return nil
			})
			e.spec(sb, func(s *api_sandbox.SandboxSpec) { s.Desired = api_sandbox.DesiredStateRunning })
			if got := e.phase(sb, end); end == api_sandbox.SandboxPhaseFailed && !strings.Contains(got.Status.Message, "could not be resumed: no kernel") {
				t.Errorf("message %q", got.Status.Message)
			}
		})
	}
}
