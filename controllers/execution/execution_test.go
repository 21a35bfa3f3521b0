package execution

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/execution"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/wait"
)

func TestRunsToItsEnd(t *testing.T) {
	e := newEnv(t)
	s := e.start(4, nil)
	for code, want := range map[string]execution.Outcome{"exit 0": execution.OutcomeSucceeded, "exit 3": execution.OutcomeFailed} {
		x := s.submit(code, func(r *execution.SubmitRequest) { r.Args = []string{"printed"} })
		ended := s.wait(x)
		st := ended.Status
		if st.Outcome != want || st.ExitCode == nil || fmt.Sprintf("exit %d", *st.ExitCode) != code || st.Attempt != 1 || len(st.Attempts) != 1 {
			t.Errorf("%s: %+v", code, st)
		}
		if st.Metrics == nil || st.Metrics.CPU == nil || st.Metrics.MemoryBytes == nil || *st.Metrics.MemoryBytes != 1<<20 {
			t.Errorf("%s: metrics %+v", code, st.Metrics)
		}
		if _, out, err := s.executions.Result(t.Context(), "", x.GetID(), 0); err != nil || string(out.Stdout) != "printed" {
			t.Errorf("%s: output %+v, %v", code, out, err)
		}
	}
	e.clean()
}

// A command runs in a new sandbox, or in one that stays. Its result is that of the
// file that it wrote.
func TestCommandsRunToTheirEnd(t *testing.T) {
	e := newEnv(t)
	e.result = "42"
	s := e.start(4, nil)
	stays := sandbox.NewSandbox()
	stays.Project, stays.Spec.Template.Image, stays.Spec.Node, stays.Status.Phase = e.project, "image", e.node, sandbox.SandboxPhaseRunning
	if err := entity.Create(t.Context(), e.store, stays); err != nil {
		t.Fatal(err)
	}
	for where, in := range map[string]id.Sandbox{"a new sandbox": "", "one that stays": stays.GetID()} {
		x := s.submit("", func(r *execution.SubmitRequest) {
			r.Language, r.Code, r.Command, r.Sandbox = "", nil, []string{"exit 3", "printed"}, in
			if in == "" {
				r.Template = "python"
			}
		})
		st := s.wait(x).Status
		if st.Outcome != execution.OutcomeFailed || st.ExitCode == nil || *st.ExitCode != 3 || len(st.Attempts) != 1 {
			t.Errorf("in %s: %+v", where, st)
		}
		if _, out, err := s.executions.Result(t.Context(), "", x.GetID(), 0); err != nil || string(out.Stdout) != "printed" || string(out.Result) != "42" {
			t.Errorf("in %s: output %+v, %v", where, out, err)
		}
	}
	if err := entity.Remove[sandbox.Sandbox](t.Context(), e.store, stays.GetID()); err != nil {
		t.Errorf("the sandbox that stays: %v", err)
	}
	e.clean()
}

func TestOrderIsPriorityThenTime(t *testing.T) {
	e := newEnv(t)
	s := e.start(1, nil)
	first := s.submit("hang", func(r *execution.SubmitRequest) { r.Args = []string{"first"} })
	s.phase(first, execution.PhaseRunning)
	var all []*execution.Execution
	for i, p := range []int64{0, 5, 0, 5, -1} {
		all = append(all, s.submit("exit 0", func(r *execution.SubmitRequest) {
			r.Args, r.Priority = []string{fmt.Sprint(i)}, &p
		}))
	}
	if _, err := s.executions.Cancel(t.Context(), "", first.GetID()); err != nil {
		t.Fatal(err)
	}
	for _, x := range all {
		s.wait(x)
	}
	if want := []string{"first", "1", "3", "0", "2", "4"}; !slices.Equal(e.order, want) {
		t.Errorf("order %v, want %v", e.order, want)
	}
	e.clean()
}

func TestWaitsForItsTime(t *testing.T) {
	e := newEnv(t)
	s := e.start(1, nil)
	at := time.Now().Add(300 * time.Millisecond)
	x := s.submit("exit 0", func(r *execution.SubmitRequest) { r.NotBefore = &at })
	if ended := s.wait(x); ended.Status.StartedAt.Before(at) {
		t.Errorf("started %v before its time", at.Sub(*ended.Status.StartedAt))
	}
}

func TestRetryPolicy(t *testing.T) {
	e := newEnv(t)
	s := e.start(4, nil)
	for _, c := range []struct {
		code     string
		on       []execution.Outcome
		outcome  execution.Outcome
		attempts int64
	}{
		{"broken", nil, execution.OutcomeSetup, 3},
		{"exit 1", nil, execution.OutcomeFailed, 1},
		{"exit 1", []execution.Outcome{execution.OutcomeFailed}, execution.OutcomeFailed, 3},
		{"broken", []execution.Outcome{execution.OutcomeFailed}, execution.OutcomeSetup, 1},
	} {
		ended := s.wait(s.submit(c.code, func(r *execution.SubmitRequest) { r.Retry.On, r.Args = c.on, []string{"printed"} }))
		if ended.Status.Outcome != c.outcome || ended.Status.Attempt != c.attempts || int64(len(ended.Status.Attempts)) != c.attempts {
			t.Errorf("%s, again on %v: %s after %d attempts, want %s after %d", c.code, c.on, ended.Status.Outcome, ended.Status.Attempt, c.outcome, c.attempts)
		}
		for n := range ended.Status.Attempt {
			_, out, err := s.executions.Result(t.Context(), "", ended.GetID(), n+1)
			if err != nil || string(out.Stdout) == "printed" != (c.outcome == execution.OutcomeFailed) {
				t.Errorf("%s: attempt %d printed %+v, %v", c.code, n+1, out, err)
			}
		}
	}
	e.clean()
}

// What a sandbox says does not keep the end of an execution from being recorded.
func TestMessagesAreBoundedText(t *testing.T) {
	e := newEnv(t)
	s := e.start(1, nil)
	ended := s.wait(s.submit("broken \xff"+strings.Repeat("\xc3\xa4", 1000), nil))
	if m := ended.Status.Message; !utf8.ValidString(m) || !strings.HasPrefix(m, "no room \uFFFD") || len(m) > maxMessage {
		t.Errorf("%d bytes: %.100q", len(m), m)
	}
}

// An attempt of another node's server is over when that node is down, not before.
func TestAttemptOfANodeThatIsDown(t *testing.T) {
	e := newEnv(t)
	other := core.NewNode()
	other.Name, other.Spec.Arch, other.Spec.CPUMillis, other.Spec.MemoryBytes, other.Status.Phase = "other", "amd64", 1000, 4<<30, core.NodePhaseReady
	if err := entity.Create(t.Context(), e.store, other); err != nil {
		t.Fatal(err)
	}
	x := e.service(e.store, e.store, informer.New(informer.Config{Reader: e.store})).submit("exit 0", nil)
	if _, err := entity.ModifyStatus(t.Context(), e.store, x.GetID(), func(x *execution.Execution) error {
		x.Status.Phase, x.Status.Attempt, x.Status.Node, x.Status.Server = execution.PhaseRunning, 1, other.GetID(), "server-of-other"
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	s := e.start(1, nil)
	s.wait(s.submit("exit 0", nil)) // the server has seen x before
	if got, err := entity.Get[execution.Execution](t.Context(), e.store, x.GetID()); err != nil || got.Status.Server != "server-of-other" {
		t.Errorf("the node is up: %+v, %v", got.Status, err)
	}
	if _, err := entity.ModifyStatus(t.Context(), e.store, other.GetID(), func(n *core.Node) error { n.Status.Phase = core.NodePhaseDown; return nil }); err != nil {
		t.Fatal(err)
	}
	ended := s.wait(x)
	if st := ended.Status; st.Outcome != execution.OutcomeSucceeded || len(st.Attempts) != 2 || st.Attempts[0].Outcome != execution.OutcomeInterrupted {
		t.Errorf("%+v", st)
	}
}

func TestTimeout(t *testing.T) {
	e := newEnv(t)
	s := e.start(1, nil)
	limit := time.Second
	ended := s.wait(s.submit("hang", func(r *execution.SubmitRequest) { r.Timeout = &limit }))
	if ended.Status.Outcome != execution.OutcomeTimeout || *ended.Status.ExitCode != 124 {
		t.Errorf("%+v", ended.Status)
	}
	e.clean()
}

func TestCancel(t *testing.T) {
	e := newEnv(t)
	s := e.start(1, nil)
	running := s.submit("hang", nil)
	s.phase(running, execution.PhaseRunning)
	queued := s.submit("hang", nil)
	at := time.Now().Add(time.Hour)
	waiting := s.submit("hang", func(r *execution.SubmitRequest) { r.NotBefore = &at })
	for _, x := range []*execution.Execution{waiting, queued, running} {
		if _, err := s.executions.Cancel(t.Context(), "", x.GetID()); err != nil {
			t.Fatal(err)
		}
		if ended := s.wait(x); ended.Status.Outcome != execution.OutcomeCancelled {
			t.Errorf("%s: %+v", x.ID, ended.Status)
		}
	}
	e.clean()
}

// A server that is stopped interrupts its attempts and says so; the next one
// makes them again.
func TestStoppedServer(t *testing.T) {
	e := newEnv(t)
	s := e.start(1, nil)
	x := s.submit("hang", nil)
	s.phase(x, execution.PhaseRunning)
	s.stop()
	e.clean()
	s = e.start(1, nil)
	s.phase(x, execution.PhaseRunning)
	got, err := s.executions.Get(t.Context(), "", x.GetID())
	if err != nil || got.Status.Attempt != 2 || len(got.Status.Attempts) != 1 || got.Status.Attempts[0].Outcome != execution.OutcomeInterrupted {
		t.Errorf("%+v, %v", got.Status, err)
	}
}

// mortal is the store and the history as seen by a server that dies with its n-th
// write: the write happens, but its answer and everything after it is lost.
type mortal struct {
	entity.Store
	entity.History
	died chan struct{}

	mu   sync.Mutex
	left int
}

var errDead = errs.New(errs.Unavailable, "the server is dead")

func newMortal(e *env, writes int) *mortal {
	return &mortal{Store: e.store, History: e.store, left: writes, died: make(chan struct{})}
}

func (m *mortal) alive() error {
	select {
	case <-m.died:
		return errDead
	default:
		return nil
	}
}

func (m *mortal) write(do func() error) error {
	m.mu.Lock()
	defer m.mu.Unlock() // one at a time, so that nothing follows the last
	if err := m.alive(); err != nil {
		return err
	}
	err := do()
	if m.left--; m.left == 0 {
		close(m.died)
		return errDead
	}
	return err
}

func (m *mortal) Txn(ctx context.Context, req entity.TxnRequest) (res entity.TxnResult, err error) {
	err = m.write(func() error { res, err = m.Store.Txn(ctx, req); return err })
	return res, err
}

func (m *mortal) Append(ctx context.Context, records ...entity.HistoryRecord) error {
	return m.write(func() error { return m.History.Append(ctx, records...) })
}

// Wherever a server dies, the next one brings the execution to an end, which is
// in the history once; nothing runs twice at the same time, and nothing is left.
func TestDiesAfterEveryWrite(t *testing.T) {
	for _, tc := range []struct {
		name, code string
		cancel     bool
		attempts   int64
		outcomes   []execution.Outcome // that are possible
	}{
		{"runs", "exit 0", false, 3, []execution.Outcome{execution.OutcomeSucceeded}},
		{"once", "exit 0", false, 1, []execution.Outcome{execution.OutcomeSucceeded, execution.OutcomeInterrupted}},
		{"is cancelled", "hang", true, 3, []execution.Outcome{execution.OutcomeCancelled}},
		// The death counts as an attempt, which may be the last.
		{"cannot start", "broken", false, 3, []execution.Outcome{execution.OutcomeSetup, execution.OutcomeInterrupted}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t)
			for n := 1; ; n++ {
				x := e.service(e.store, e.store, informer.New(informer.Config{Reader: e.store})).submit(tc.code, func(r *execution.SubmitRequest) {
					r.Retry.Attempts = tc.attempts
				})
				m := newMortal(e, n)
				s := e.start(1, m)
				if tc.cancel {
					wait.For(t, "it runs, or the server is dead", func() bool {
						got, err := entity.Get[execution.Execution](t.Context(), e.store, x.GetID())
						return m.alive() != nil || err == nil && got.Status.StartedAt != nil
					})
					if _, err := entity.ModifySpec(t.Context(), e.store, x.GetID(), func(x *execution.Execution) error { x.Spec.Cancel = true; return nil }); err != nil {
						t.Fatal(err)
					}
				}
				survived := false
				wait.For(t, "the server is dead, or the execution is in the history", func() bool {
					_, err := entity.Get[execution.Execution](t.Context(), e.store, x.GetID())
					survived = errs.Is(err, errs.NotFound) && m.alive() == nil
					return survived || m.alive() != nil
				})
				s.stop()
				next := e.start(1, nil)
				ended := next.wait(x)
				next.stop()
				if !slices.Contains(tc.outcomes, ended.Status.Outcome) || ended.Status.Attempt > tc.attempts {
					t.Fatalf("after write %d: %s after %d attempts", n, ended.Status.Outcome, ended.Status.Attempt)
				}
				for i, a := range ended.Status.Attempts {
					if a.Number != int64(i+1) {
						t.Fatalf("after write %d: attempts %+v", n, ended.Status.Attempts)
					}
				}
				page, err := e.store.Records(t.Context(), entity.HistoryQuery{Stream: entity.StreamExecution, SubjectKind: execution.KindExecution, SubjectID: string(x.ID)})
				if err != nil || len(page.Records) != 1 {
					t.Fatalf("after write %d: %d records, %v", n, len(page.Records), err)
				}
				if strings.Contains(tc.code, "exit") && ended.Status.Outcome == execution.OutcomeSucceeded && ended.Status.ExitCode == nil {
					t.Fatalf("after write %d: no exit code", n)
				}
				e.clean()
				if survived {
					t.Logf("%d writes, died after each", n-1)
					return
				}
			}
		})
	}
}

// TestObjectStoreThatIsAway holds that an execution whose request cannot be read
// takes no attempt and no place of others, and is made when it can.
func TestObjectStoreThatIsAway(t *testing.T) {
	e := newEnv(t)
	s := e.start(1, nil)
	e.objects.lose("/request")
	x := s.submit("exit 0", nil)
	s.phase(x, execution.PhaseWaiting)
	wait.For(t, "an attempt", func() bool {
		got, err := entity.Get[execution.Execution](t.Context(), e.store, x.GetID())
		return err == nil && got.Status.Message != "" && got.Status.Phase == execution.PhaseWaiting
	})
	e.objects.lose("")
	other := s.wait(s.submit("exit 0", nil))
	if other.Status.Outcome != execution.OutcomeSucceeded {
		t.Errorf("another execution: %+v", other.Status)
	}
	if st := s.wait(x).Status; st.Outcome != execution.OutcomeSucceeded || st.Attempt != 1 || len(st.Attempts) != 1 {
		t.Errorf("%+v", st)
	}
	e.clean()
}
