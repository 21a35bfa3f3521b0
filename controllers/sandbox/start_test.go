package sandbox_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	api_sandbox "miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
)

// withStart makes a sandbox one without a main process, with a start command.
// ready describes when that is ready; nil: at once.
func withStart(ready *api_sandbox.Probe, command ...string) func(*Sandbox) {
	return func(sb *Sandbox) {
		t := &sb.Spec.Template
		t.Idle, t.Command, t.Start, t.Probe = true, nil, append([]string{"/bin/guest"}, command...), ready
	}
}

func readyWhen(change func(*api_sandbox.Probe)) *api_sandbox.Probe {
	p := new(api_sandbox.Probe)
	p.SetDefaults()
	p.Interval = 50 * time.Millisecond
	change(p)
	return p
}

func port(p *api_sandbox.Probe) { p.Port = 8080 }

func (e *env) starts(sb *Sandbox) (n int) {
	e.Helper()
	list, err := e.machine.Driver().Processes(e.Context(), string(sb.ID))
	e.must(err)
	for _, p := range list {
		if strings.HasSuffix(p.Tag, "start") {
			n++
		}
	}
	return n
}

// A sandbox is ready when its start command is.
func TestStartCommand(t *testing.T) {
	for name, ready := range map[string]*api_sandbox.Probe{
		"port": readyWhen(port),
		"path": readyWhen(func(p *api_sandbox.Probe) { p.Kind, p.Port, p.Path = api_sandbox.ProbeKindHTTP, 8080, "/health" }),
		"command": readyWhen(func(p *api_sandbox.Probe) {
			p.Kind, p.Command = api_sandbox.ProbeKindExec, []string{"/bin/guest", "exit", "0"}
		}),
		"at once": nil,
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t)
			e.control(e.store)
			sb := e.add(withStart(ready, "serve", "8080"))
			e.eventually("it is ready", func() bool { return e.get(sb).Status.Ready })
			if n := e.starts(sb); n != 1 {
				t.Errorf("the start command runs %d times", n)
			}
			if st := e.get(sb).Status; st.ReadyAt == nil || st.Message != "" {
				t.Errorf("%+v", st)
			}
		})
	}
}

// A sandbox whose start command is not ready yet is not ready, and ends when
// the command cannot become ready.
func TestStartCommandNotReady(t *testing.T) {
	for name, c := range map[string]struct {
		ready   *api_sandbox.Probe
		command []string
		message string
		late    bool
	}{
		"deadline":         {readyWhen(port), []string{"sleep"}, "was not ready within 1m0s: nothing listens on port 8080", true},
		"deadline of path": {readyWhen(func(p *api_sandbox.Probe) { p.Kind, p.Port = api_sandbox.ProbeKindHTTP, 8080 }), []string{"sleep"}, "was not ready within 1m0s: nothing listens on port 8080", true},
		"deadline of command": {
			readyWhen(func(p *api_sandbox.Probe) {
				p.Kind, p.Command = api_sandbox.ProbeKindExec, []string{"/bin/guest", "exit", "4"}
			}),
			[]string{"sleep"}, "was not ready within 1m0s: /bin/guest exits with 4", true,
		},
		"it fails":        {readyWhen(port), []string{"read", "/nowhere"}, "ended with exit code 1", false},
		"no such program": {readyWhen(port), nil, "cannot be run", false},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t)
			sb := e.add(withStart(c.ready, c.command...))
			if c.command == nil {
				e.spec(sb, func(s *api_sandbox.SandboxSpec) { s.Template.Start = []string{"/nowhere"} })
			}
			var st Status
			e.eventually("it is failed", func() bool {
				got, _ := e.step(sb)
				st = got.Status
				if st.Ready {
					t.Fatalf("ready: %+v", st)
				}
				if c.late && st.StartedAt != nil {
					e.advance(time.Second)
				}
				return st.Phase == api_sandbox.SandboxPhaseFailed
			})
			if st.Reason != api_sandbox.EndReasonSetup || !strings.Contains(st.Message, c.message) {
				t.Errorf("%+v", st)
			}
			if c.command != nil && len(st.LogTail) == 0 {
				t.Errorf("nothing of what it printed is recorded: %+v", st)
			}
			e.empty()
		})
	}
}

// A server that is killed at any step, and started again, starts the command
// only once.
func TestStartCommandKilledAtEveryStep(t *testing.T) {
	e := newEnv(t)
	for n := int64(0); ; n++ {
		k := newKiller(n)
		var starts atomic.Int64
		e.machine.SetHook(func(op, _ string, after bool) error {
			if op == "Exec" && after {
				starts.Add(1)
			}
			if op != "Ensure" && op != "Exec" {
				if k.dead.Load() {
					return errKilled
				}
				return nil
			}
			return k.step()
		})
		e.store.set(func(op string) error {
			if op == "Txn" {
				return k.step()
			}
			return nil
		}, func(string) error { return k.step() })
		sb := e.add(withStart(readyWhen(port), "serve", "8080"))
		stop := e.control(e.store)
		restarted := false
		e.eventually("it is ready", func() bool {
			select {
			case <-k.died:
				if !restarted {
					restarted = true
					stop()
					k.left.Store(1 << 40)
					k.dead.Store(false)
					stop = e.control(e.store)
				}
			default:
			}
			return e.get(sb).Status.Ready
		})
		if starts.Load() != 1 {
			t.Errorf("killed at step %d: the command was started %d times", n, starts.Load())
		}
		stop()
		e.machine.SetHook(nil)
		e.store.set(nil, nil)
		e.drop(sb)
		e.machine.Vanish(string(sb.ID))
		if !restarted {
			if n < 5 {
				t.Errorf("only %d steps", n)
			}
			return
		}
	}
}

// The start command is no use of a sandbox: without any other process it is
// idle.
func TestStartCommandIsNoUse(t *testing.T) {
	e := newEnv(t)
	limit := time.Second
	sb := e.add(func(sb *Sandbox) {
		withStart(readyWhen(port), "serve", "8080")(sb)
		sb.Spec.IdleTimeout = &limit
	})
	e.eventually("it is ready", func() bool {
		got, _ := e.step(sb)
		return got.Status.Ready
	})
	p, err := e.machine.Driver().Exec(t.Context(), string(sb.ID), execution.ExecSpec{Command: []string{"/bin/guest", "sleep"}})
	e.must(err)
	e.advance(time.Hour)
	if got, _ := e.step(sb); got.Status.Phase != api_sandbox.SandboxPhaseRunning {
		t.Fatalf("%s while a process runs", got.Status.Phase)
	}
	p.Close()
	e.eventually("it is idle", func() bool {
		got, _ := e.step(sb)
		return got.Status.Reason == api_sandbox.EndReasonIdle
	})
}

// Nobody waits for the sandboxes of a pool: they are warmed up, and no others.
func TestPoolIsWarmedUp(t *testing.T) {
	for _, pooled := range []bool{false, true} {
		e := newEnv(t)
		sb := e.add(func(sb *Sandbox) { sb.Spec.Template.Idle, sb.Spec.Template.Command = true, nil })
		if pooled {
			e.join(sb)
		}
		e.eventually("it is ready", func() bool {
			got, _ := e.step(sb)
			return got.Status.Ready
		})
		if s, found := e.machine.Spec(string(sb.ID)); !found || s.Warm != pooled {
			t.Errorf("in a pool: %v; made with %+v", pooled, s)
		}
	}
}

// The server that claims a sandbox configures it; the node does so only if that takes too long.
func TestNodeGivesAClaimTime(t *testing.T) {
	e := newEnv(t)
	sb := e.add(func(sb *Sandbox) { sb.Spec.Template.Idle, sb.Spec.Template.Command = true, nil })
	e.join(sb)
	e.eventually("it is ready", func() bool {
		got, _ := e.step(sb)
		return got.Status.Ready
	})
	now := e.now()
	e.spec(sb, func(s *api_sandbox.SandboxSpec) { s.WarmPool, s.Claim, s.ClaimedAt = "", "claim-1", &now })
	if _, again := e.step(sb); e.machine.Claim(string(sb.ID)).Claim != "" || again <= 0 || again > 3*time.Second {
		t.Errorf("claimed as %+v, again after %s", e.machine.Claim(string(sb.ID)), again)
	}
	e.advance(3 * time.Second)
	if e.step(sb); e.machine.Claim(string(sb.ID)).Claim != "claim-1" {
		t.Error("the node does not complete the claim")
	}
}

// join makes a sandbox one of a warm pool.
func (e *env) join(sb *Sandbox) {
	e.Helper()
	tpl := api_sandbox.NewTemplate()
	tpl.Project, tpl.Name = e.project, "t"
	e.must(entity.Create(e.Context(), e.store, tpl))
	pool := api_sandbox.NewWarmPool()
	pool.Project, pool.Name, pool.Spec.Template = e.project, "p", tpl.GetID()
	e.must(entity.Create(e.Context(), e.store, pool))
	e.spec(sb, func(s *api_sandbox.SandboxSpec) { s.WarmPool = pool.GetID() })
}

// The server of a warm sandbox is watched until a claim; a dead one ends the
// sandbox, so that the pool replaces it.
func TestStartCommandDiesInAPool(t *testing.T) {
	for name, claimed := range map[string]bool{"warm": false, "claimed": true} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t)
			sb := e.add(withStart(readyWhen(port), "serve", "8080"))
			e.join(sb)
			e.eventually("it is ready", func() bool {
				got, _ := e.step(sb)
				return got.Status.Ready
			})
			if claimed {
				e.spec(sb, func(s *api_sandbox.SandboxSpec) { s.WarmPool, s.Claim = "", "claim-1" })
			}
			var dials atomic.Int64
			e.machine.SetHook(func(op, _ string, after bool) error {
				if op == "Dial" && !after {
					dials.Add(1)
					return errs.New(errs.FailedPrecondition, "nothing listens")
				}
				return nil
			})
			for range 5 {
				e.advance(11 * time.Second)
				if got, _ := e.step(sb); got.Status.Phase.Ended() {
					break
				}
			}
			st := e.get(sb).Status
			if claimed {
				if dials.Load() != 0 || !st.Ready {
					t.Errorf("%d probes of a claimed sandbox; %+v", dials.Load(), st)
				}
				return
			}
			if st.Phase != api_sandbox.SandboxPhaseFailed || !strings.Contains(st.Message, "no longer answers: nothing listens on port 8080") {
				t.Errorf("%+v", st)
			}
		})
	}
}

// A sandbox that was paused goes on with the process of its start command.
func TestStartCommandAfterAPause(t *testing.T) {
	for name, ready := range map[string]*api_sandbox.Probe{
		"probed": readyWhen(func(p *api_sandbox.Probe) {
			p.Kind, p.Command = api_sandbox.ProbeKindExec, []string{"/bin/guest", "exit", "0"}
		}),
		"at once": nil,
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t)
			e.control(e.store)
			sb := e.add(withStart(ready, "serve", "8080"))
			e.eventually("it is ready", func() bool { return e.get(sb).Status.Ready })
			e.spec(sb, func(s *api_sandbox.SandboxSpec) { s.Desired = api_sandbox.DesiredStatePaused })
			e.phase(sb, api_sandbox.SandboxPhasePaused)
			e.spec(sb, func(s *api_sandbox.SandboxSpec) { s.Desired = api_sandbox.DesiredStateRunning })
			e.eventually("it is ready again", func() bool { return e.get(sb).Status.Ready })
			if n := e.starts(sb); n != 1 {
				t.Errorf("the start command runs %d times", n)
			}
		})
	}
}
