package execution

import (
	"strings"
	"testing"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/execution"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/testsupport/wait"
)

func (s *server) limit(sandboxes int64) {
	s.Helper()
	if _, err := s.quotas.Set(s.Context(), "", []core.QuotaLimit{{Resource: core.QuotaResourceSandboxes, Limit: &sandboxes}}); err != nil {
		s.Fatal(err)
	}
}

// waits waits until an execution says that it waits for the quota.
func (s *server) waits(e *execution.Execution) {
	s.Helper()
	wait.For(s, "the execution waits for the quota", func() bool {
		e, err := entity.Get[execution.Execution](s.Context(), s.store, e.GetID())
		return err == nil && e.Status.Phase == execution.PhaseWaiting && strings.Contains(e.Status.Message, "quota") && e.Status.Attempt == 0 && e.Status.Node == ""
	})
}

// An attempt that meets the quota is no attempt: the execution waits, and runs
// when there is room.
func TestAttemptWaitsForTheQuota(t *testing.T) {
	e := newEnv(t)
	s := e.start(4, nil)
	s.limit(1)
	first := s.submit("hang", nil)
	s.phase(first, execution.PhaseRunning)
	second := s.submit("exit 0", func(r *execution.SubmitRequest) { r.Retry = &execution.Retry{Attempts: 1} })
	cancelled := s.submit("exit 0", nil)
	s.waits(second)
	s.waits(cancelled)
	for _, x := range []*execution.Execution{cancelled, first} {
		if _, err := s.executions.Cancel(t.Context(), "", x.GetID()); err != nil {
			t.Fatal(err)
		}
	}
	if st := s.wait(cancelled).Status; st.Outcome != execution.OutcomeCancelled || len(st.Attempts) != 0 {
		t.Errorf("cancelled: %+v", st)
	}
	if st := s.wait(second).Status; st.Outcome != execution.OutcomeSucceeded || st.Attempt != 1 || len(st.Attempts) != 1 || st.Message != "" {
		t.Errorf("%+v", st)
	}
	e.clean()
}

// An execution that waits for the quota outlives its server.
func TestWaitForTheQuotaOutlivesTheServer(t *testing.T) {
	e := newEnv(t)
	s := e.start(4, nil)
	s.limit(0)
	x := s.submit("exit 0", nil)
	s.waits(x)
	s.stop()
	s = e.start(4, nil)
	s.waits(x)
	s.limit(1)
	if st := s.wait(x).Status; st.Outcome != execution.OutcomeSucceeded || len(st.Attempts) != 1 {
		t.Errorf("%+v", st)
	}
	e.clean()
}

// Wherever a server dies while an attempt meets the quota, the next one makes it
// when there is room.
func TestDiesWhileAnAttemptMeetsTheQuota(t *testing.T) {
	e := newEnv(t)
	for n := 1; ; n++ {
		m := newMortal(e, n)
		s := e.start(1, m)
		s.limit(0)
		x := e.service(e.store, e.store, informer.New(informer.Config{Reader: e.store})).submit("exit 0", nil)
		survived := false
		wait.For(t, "the server is dead, or the execution waits for the quota", func() bool {
			got, err := entity.Get[execution.Execution](t.Context(), e.store, x.GetID())
			survived = err == nil && got.Status.Phase == execution.PhaseWaiting && m.alive() == nil
			return survived || m.alive() != nil
		})
		s.stop()
		next := e.start(1, nil)
		next.limit(1)
		st := next.wait(x).Status
		next.stop()
		if st.Outcome != execution.OutcomeSucceeded || int(st.Attempt) != len(st.Attempts) {
			t.Fatalf("after write %d: %+v", n, st)
		}
		e.clean()
		if survived {
			return
		}
	}
}
