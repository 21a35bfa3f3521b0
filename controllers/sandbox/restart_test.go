package sandbox_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	api_sandbox "miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
)

// A deleted entity's sandbox is removed completely, whatever was under way.
func TestDeleted(t *testing.T) {
	for _, when := range []string{"before", "creating", "running", "stopping", "ended", "controller down"} {
		t.Run(when, func(t *testing.T) {
			e := newEnv(t)
			sb := e.add(nil, "sleep")
			var once sync.Once
			dropping := func() {} // waits for the drop to return, which may be after its event
			during := func(call string) {
				dropped := make(chan struct{})
				dropping = func() { <-dropped }
				e.machine.SetHook(func(op, _ string, after bool) error {
					if op == call && !after {
						once.Do(func() {
							defer close(dropped)
							e.drop(sb)
						})
					}
					return nil
				})
			}
			switch when {
			case "before":
				e.drop(sb)
				e.control(e.store)
			case "creating":
				during("Ensure")
				e.control(e.store)
			case "running":
				e.control(e.store)
				e.phase(sb, api_sandbox.SandboxPhaseRunning)
				e.drop(sb)
			case "stopping":
				e.control(e.store)
				e.phase(sb, api_sandbox.SandboxPhaseRunning)
				during("Stop")
				e.tellStop(sb)
			case "ended":
				e.control(e.store)
				e.phase(sb, api_sandbox.SandboxPhaseRunning)
				e.tellStop(sb)
				e.phase(sb, api_sandbox.SandboxPhaseStopped)
				e.drop(sb)
			case "controller down":
				stop := e.control(e.store)
				e.phase(sb, api_sandbox.SandboxPhaseRunning)
				stop()
				e.drop(sb)
				e.control(e.store)
			}
			e.eventually("the entity is gone", func() bool {
				_, err := entity.Get[Sandbox](t.Context(), e.store.Store, sb.ID)
				return errs.Is(err, errs.NotFound)
			})
			dropping()
			e.empty()
			e.unlogged()
		})
	}
}

// An instance without an entity is removed; one with an entity stays, and
// nothing is removed while the store cannot be asked.
func TestSweep(t *testing.T) {
	e := newEnv(t)
	kept := e.add(nil, "sleep")
	e.step(kept)
	left := e.add(nil, "sleep")
	e.step(left)
	logged := e.add(nil, "exit", "0")
	e.eventually("it ends", func() bool {
		got, _ := e.step(logged)
		return got.Status.Phase == api_sandbox.SandboxPhaseStopped
	})
	e.drop(left)
	e.drop(logged)
	var asked atomic.Int64
	e.store.set(func(op string) error {
		if op == "Get" {
			asked.Add(1)
			return errAway
		}
		return nil
	}, nil)
	e.control(e.store)
	e.eventually("the store is asked", func() bool { return asked.Load() > 20 })
	if ids := e.machine.IDs(); len(ids) != 2 {
		t.Errorf("while the store is away %v is left", ids)
	}
	e.store.set(nil, nil)
	e.eventually("what has no entity goes", func() bool { return slices.Equal(e.machine.IDs(), []string{string(kept.ID)}) })
	e.eventually("so do its logs", func() bool {
		ids, err := e.machine.Driver().LogIDs(t.Context())
		return err == nil && slices.Equal(ids, []string{string(kept.ID)})
	})
	if got := e.get(kept); got.Status.Phase != api_sandbox.SandboxPhaseRunning {
		t.Errorf("%+v", got.Status)
	}
}

// killer ends a server at its n-th step: from then on the server's calls have
// no effect.
type killer struct {
	left atomic.Int64
	dead atomic.Bool
	died chan struct{}
	once sync.Once
}

var errKilled = errs.New(errs.Unavailable, "the server was killed")

func newKiller(n int64) *killer {
	k := &killer{died: make(chan struct{})}
	k.left.Store(n)
	return k
}

func (k *killer) step() error {
	if k.dead.Load() || k.left.Add(-1) < 0 {
		k.dead.Store(true)
		k.once.Do(func() { close(k.died) })
		return errKilled
	}
	return nil
}

// A server that is killed before or after any driver call or write, and started
// again, brings each sandbox to the same end, and starts it only once.
func TestKilledAtEveryStep(t *testing.T) {
	e := newEnv(t)
	for n := int64(0); ; n++ {
		k := newKiller(n)
		made := map[string]int{}
		var mu sync.Mutex
		before := map[string]bool{}
		e.machine.SetHook(func(op, sid string, after bool) error {
			switch op {
			case "Get", "List", "Logs", "Watch", "Listening":
				if k.dead.Load() {
					return errKilled
				}
				return nil
			}
			if op == "Ensure" {
				mu.Lock()
				_, there := e.machine.Spec(sid)
				if !after {
					before[sid] = there
				} else if !before[sid] {
					made[sid]++
				}
				mu.Unlock()
			}
			return k.step()
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

		exits, stays, goes := e.add(nil, "exit", "4"), e.add(withProbe, "sleep"), e.add(nil, "sleep")
		stop := e.control(e.store)
		restarted := false
		restart := func() {
			select {
			case <-k.died:
			default:
				return
			}
			if restarted {
				return
			}
			restarted = true
			stop()
			k.left.Store(1 << 40)
			k.dead.Store(false)
			stop = e.control(e.store)
		}
		until := func(what string, cond func() bool) {
			e.eventually(fmt.Sprintf("killed at step %d: %s", n, what), func() bool {
				restart()
				return cond()
			})
		}
		until("runs", func() bool { return e.get(stays).Status.Ready && e.get(goes).Status.StartedAt != nil })
		e.tellStop(stays)
		e.drop(goes)
		until("ends", func() bool {
			a, b := e.get(exits).Status, e.get(stays).Status
			return a.Phase == api_sandbox.SandboxPhaseStopped && b.Phase == api_sandbox.SandboxPhaseStopped && len(e.machine.IDs()) == 0
		})
		if st := e.get(exits).Status; st.Reason != api_sandbox.EndReasonExit || st.ExitCode == nil || *st.ExitCode != 4 {
			t.Errorf("killed at step %d: %+v", n, st)
		}
		if st := e.get(stays).Status; st.Reason != api_sandbox.EndReasonUser || st.ExitCode == nil || *st.ExitCode != 0 {
			t.Errorf("killed at step %d: %+v", n, st)
		}
		e.drop(exits)
		e.drop(stays)
		until("logs go", func() bool {
			ids, err := e.machine.Driver().LogIDs(context.Background())
			return err == nil && len(ids) == 0
		})
		stop()
		mu.Lock()
		for sid, times := range made {
			if times != 1 {
				t.Errorf("killed at step %d: %s was started %d times", n, sid, times)
			}
		}
		mu.Unlock()
		if !restarted {
			if n < 20 {
				t.Errorf("only %d steps", n)
			}
			return
		}
	}
}

// At rest the controller reconciles nothing.
func TestIdle(t *testing.T) {
	e := newEnv(t)
	e.control(e.store)
	var all []*Sandbox
	for i := range 20 {
		change := withProbe
		if i%2 == 0 {
			change = nil
		}
		all = append(all, e.add(change, "sleep"))
	}
	all = append(all, e.add(nil, "exit", "1"))
	settled := func() {
		for _, sb := range all[:20] {
			e.eventually("ready", func() bool { return e.get(sb).Status.Ready })
		}
		e.phase(all[20], api_sandbox.SandboxPhaseStopped)
	}
	settled()
	probed := func(i int) bool { return i < 20 && i%2 == 1 }
	counts := func() (c [21]int) {
		for i, sb := range all {
			c[i] = e.count(sb)
		}
		return c
	}
	var began time.Time
	var before [21]int
	e.eventually("what they wrote themselves was looked at", func() bool {
		began, before = time.Now(), counts()
		for range 10 { // work that takes a while
			sb := e.add(nil, "sleep")
			e.phase(sb, api_sandbox.SandboxPhaseRunning)
		}
		after := counts()
		for i := range all {
			if !probed(i) && after[i] != before[i] {
				return false
			}
		}
		return true
	})
	for i, n := range before {
		allowed := 12
		if probed(i) { // every 8 to 10 s
			allowed += int(time.Since(all[i].CreatedAt) / (8 * time.Second))
		}
		if n > allowed {
			t.Errorf("%s was reconciled %d times", all[i].ID, n)
		}
	}
	for range 10 {
		sb := e.add(nil, "sleep")
		e.phase(sb, api_sandbox.SandboxPhaseRunning)
		e.tellStop(sb)
		e.phase(sb, api_sandbox.SandboxPhaseStopped)
	}
	for i, n := range counts() {
		allowed := 0
		if probed(i) { // the next probe may have been due at once
			allowed = 1 + int(time.Since(began)/(8*time.Second))
		}
		if n -= before[i]; n > allowed {
			t.Errorf("%s, number %d, was reconciled %d times at rest in %s", all[i].ID, i, n, time.Since(began))
		}
	}
}

// However many sandboxes take long to stop, the controller records the end of
// another.
func TestSlowStops(t *testing.T) {
	e := newEnv(t)
	e.control(e.store)
	quick := e.add(nil, "sleep")
	var slow []*Sandbox
	for range 120 {
		slow = append(slow, e.add(func(sb *Sandbox) { sb.Spec.Template.StopTimeout = 10 * time.Minute }, "stub"))
	}
	for _, sb := range append(slow, quick) {
		e.eventually("runs", func() bool { return e.get(sb).Status.Ready })
	}
	for _, sb := range slow {
		e.tellStop(sb)
	}
	stopping := func() int {
		n := 0
		for _, sb := range slow {
			if e.get(sb).Status.Phase == api_sandbox.SandboxPhaseStopping {
				n++
			}
		}
		return n
	}
	e.eventually("as many as may are stopping", func() bool { return stopping() == 96 })
	e.machine.Exit(string(quick.ID), 5)
	if st := e.phase(quick, api_sandbox.SandboxPhaseStopped).Status; st.Reason != api_sandbox.EndReasonExit {
		t.Errorf("%+v", st)
	}
	also := e.add(nil, "sleep")
	e.eventually("another one starts", func() bool { return e.get(also).Status.Ready })
	if n := stopping(); n != 96 {
		t.Errorf("%d are stopping", n)
	}
	for _, sb := range slow {
		e.machine.Exit(string(sb.ID), 0)
	}
	for _, sb := range slow {
		e.phase(sb, api_sandbox.SandboxPhaseStopped)
	}
}
