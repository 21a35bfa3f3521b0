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

// An entity that is deleted takes everything with it, whatever was going on.
func TestDeleted(t *testing.T) {
	for _, when := range []string{"before", "creating", "running", "stopping", "ended", "controller down"} {
		t.Run(when, func(t *testing.T) {
			w := newWorld(t)
			sb := w.add(nil, "sleep")
			var once sync.Once
			dropping := func() {} // waits for the drop to return, which may be after its event
			during := func(call string) {
				dropped := make(chan struct{})
				dropping = func() { <-dropped }
				w.machine.SetHook(func(op, _ string, after bool) error {
					if op == call && !after {
						once.Do(func() {
							defer close(dropped)
							w.drop(sb)
						})
					}
					return nil
				})
			}
			switch when {
			case "before":
				w.drop(sb)
				w.control(w.store)
			case "creating":
				during("Ensure")
				w.control(w.store)
			case "running":
				w.control(w.store)
				w.phase(sb, api_sandbox.SandboxPhaseRunning)
				w.drop(sb)
			case "stopping":
				w.control(w.store)
				w.phase(sb, api_sandbox.SandboxPhaseRunning)
				during("Stop")
				w.tellStop(sb)
			case "ended":
				w.control(w.store)
				w.phase(sb, api_sandbox.SandboxPhaseRunning)
				w.tellStop(sb)
				w.phase(sb, api_sandbox.SandboxPhaseStopped)
				w.drop(sb)
			case "controller down":
				stop := w.control(w.store)
				w.phase(sb, api_sandbox.SandboxPhaseRunning)
				stop()
				w.drop(sb)
				w.control(w.store)
			}
			w.eventually("the entity is gone", func() bool {
				_, err := entity.Get[Sandbox](t.Context(), w.store.Store, sb.ID)
				return errs.Is(err, errs.NotFound)
			})
			dropping()
			w.empty()
			w.unlogged()
		})
	}
}

// What the machine has without an entity goes; what it has with one stays, and
// nothing goes while the store cannot be asked.
func TestSweep(t *testing.T) {
	w := newWorld(t)
	kept := w.add(nil, "sleep")
	w.step(kept)
	left := w.add(nil, "sleep")
	w.step(left)
	logged := w.add(nil, "exit", "0")
	w.eventually("it ends", func() bool {
		got, _ := w.step(logged)
		return got.Status.Phase == api_sandbox.SandboxPhaseStopped
	})
	w.drop(left)
	w.drop(logged)
	var asked atomic.Int64
	w.store.set(func(op string) error {
		if op == "Get" {
			asked.Add(1)
			return errAway
		}
		return nil
	}, nil)
	w.control(w.store)
	w.eventually("the store is asked", func() bool { return asked.Load() > 20 })
	if ids := w.machine.IDs(); len(ids) != 2 {
		t.Errorf("while the store is away %v is left", ids)
	}
	w.store.set(nil, nil)
	w.eventually("what has no entity goes", func() bool { return slices.Equal(w.machine.IDs(), []string{string(kept.ID)}) })
	w.eventually("so do its logs", func() bool {
		ids, err := w.machine.Driver().LogIDs(t.Context())
		return err == nil && slices.Equal(ids, []string{string(kept.ID)})
	})
	if got := w.get(kept); got.Status.Phase != api_sandbox.SandboxPhaseRunning {
		t.Errorf("%+v", got.Status)
	}
}

// killer ends a server at its n-th step: from then on nothing it does has an
// effect.
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
	w := newWorld(t)
	for n := int64(0); ; n++ {
		k := newKiller(n)
		made := map[string]int{}
		var mu sync.Mutex
		before := map[string]bool{}
		w.machine.SetHook(func(op, sid string, after bool) error {
			switch op {
			case "Get", "List", "Logs", "Watch", "Listening":
				if k.dead.Load() {
					return errKilled
				}
				return nil
			}
			if op == "Ensure" {
				mu.Lock()
				_, there := w.machine.Spec(sid)
				if !after {
					before[sid] = there
				} else if !before[sid] {
					made[sid]++
				}
				mu.Unlock()
			}
			return k.step()
		})
		w.store.set(func(op string) error {
			if op == "Txn" {
				return k.step()
			}
			if k.dead.Load() {
				return errKilled
			}
			return nil
		}, func(string) error { return k.step() })

		exits, stays, goes := w.add(nil, "exit", "4"), w.add(withProbe, "sleep"), w.add(nil, "sleep")
		stop := w.control(w.store)
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
			stop = w.control(w.store)
		}
		until := func(what string, cond func() bool) {
			w.eventually(fmt.Sprintf("killed at step %d: %s", n, what), func() bool {
				restart()
				return cond()
			})
		}
		until("runs", func() bool { return w.get(stays).Status.Ready && w.get(goes).Status.StartedAt != nil })
		w.tellStop(stays)
		w.drop(goes)
		until("ends", func() bool {
			a, b := w.get(exits).Status, w.get(stays).Status
			return a.Phase == api_sandbox.SandboxPhaseStopped && b.Phase == api_sandbox.SandboxPhaseStopped && len(w.machine.IDs()) == 0
		})
		if st := w.get(exits).Status; st.Reason != api_sandbox.EndReasonExit || st.ExitCode == nil || *st.ExitCode != 4 {
			t.Errorf("killed at step %d: %+v", n, st)
		}
		if st := w.get(stays).Status; st.Reason != api_sandbox.EndReasonUser || st.ExitCode == nil || *st.ExitCode != 0 {
			t.Errorf("killed at step %d: %+v", n, st)
		}
		w.drop(exits)
		w.drop(stays)
		until("logs go", func() bool {
			ids, err := w.machine.Driver().LogIDs(context.Background())
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

// At rest nothing is reconciled.
func TestIdle(t *testing.T) {
	w := newWorld(t)
	w.control(w.store)
	var all []*Sandbox
	for i := range 20 {
		change := withProbe
		if i%2 == 0 {
			change = nil
		}
		all = append(all, w.add(change, "sleep"))
	}
	all = append(all, w.add(nil, "exit", "1"))
	settled := func() {
		for _, sb := range all[:20] {
			w.eventually("ready", func() bool { return w.get(sb).Status.Ready })
		}
		w.phase(all[20], api_sandbox.SandboxPhaseStopped)
	}
	settled()
	probed := func(i int) bool { return i < 20 && i%2 == 1 }
	counts := func() (c [21]int) {
		for i, sb := range all {
			c[i] = w.count(sb)
		}
		return c
	}
	var began time.Time
	var before [21]int
	w.eventually("what they wrote themselves was looked at", func() bool {
		began, before = time.Now(), counts()
		for range 10 { // what takes a while
			sb := w.add(nil, "sleep")
			w.phase(sb, api_sandbox.SandboxPhaseRunning)
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
		sb := w.add(nil, "sleep")
		w.phase(sb, api_sandbox.SandboxPhaseRunning)
		w.tellStop(sb)
		w.phase(sb, api_sandbox.SandboxPhaseStopped)
	}
	for i, n := range counts() {
		allowed := 0
		if probed(i) { // the next one may have been due at once
			allowed = 1 + int(time.Since(began)/(8*time.Second))
		}
		if n -= before[i]; n > allowed {
			t.Errorf("%s, number %d, was reconciled %d times at rest in %s", all[i].ID, i, n, time.Since(began))
		}
	}
}

// However many sandboxes take long to stop, the end of another is noticed.
func TestSlowStops(t *testing.T) {
	w := newWorld(t)
	w.control(w.store)
	quick := w.add(nil, "sleep")
	var slow []*Sandbox
	for range 120 {
		slow = append(slow, w.add(func(sb *Sandbox) { sb.Spec.Template.StopTimeout = 10 * time.Minute }, "stub"))
	}
	for _, sb := range append(slow, quick) {
		w.eventually("runs", func() bool { return w.get(sb).Status.Ready })
	}
	for _, sb := range slow {
		w.tellStop(sb)
	}
	stopping := func() int {
		n := 0
		for _, sb := range slow {
			if w.get(sb).Status.Phase == api_sandbox.SandboxPhaseStopping {
				n++
			}
		}
		return n
	}
	w.eventually("as many as may are stopping", func() bool { return stopping() == 96 })
	w.machine.Exit(string(quick.ID), 5)
	if st := w.phase(quick, api_sandbox.SandboxPhaseStopped).Status; st.Reason != api_sandbox.EndReasonExit {
		t.Errorf("%+v", st)
	}
	also := w.add(nil, "sleep")
	w.eventually("another one starts", func() bool { return w.get(also).Status.Ready })
	if n := stopping(); n != 96 {
		t.Errorf("%d are stopping", n)
	}
	for _, sb := range slow {
		w.machine.Exit(string(sb.ID), 0)
	}
	for _, sb := range slow {
		w.phase(sb, api_sandbox.SandboxPhaseStopped)
	}
}
