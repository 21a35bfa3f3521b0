package pool

import (
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/api/sandbox"
)

// hang records that the node found a sandbox hung.
func (f *fixture) hang(sb *sandbox.Sandbox) {
	f.Helper()
	at := f.clock
	f.change(sb, func(s *sandbox.SandboxStatus) { s.Ready, s.HungAt, s.Message = false, &at, "it hangs: no answer" })
}

// hung returns the sandboxes that were told to stop because they hang, and have not ended.
func (f *fixture) hung() (list []*sandbox.Sandbox) {
	f.Helper()
	for _, sb := range f.members().Stopping {
		if sb.Spec.StopReason == sandbox.EndReasonHung {
			list = append(list, sb)
		}
	}
	return list
}

// stopped ends those that were told to.
func (f *fixture) stopped() {
	f.Helper()
	for _, sb := range f.hung() {
		f.end(sb, sandbox.EndReasonHung)
	}
}

// TestHungIsReplaced: the next sandbox is made in the transaction that stops the hung one.
func TestHungIsReplaced(t *testing.T) {
	f := setup(t, 1)
	f.reconcile()
	old := f.members().Live[0]
	f.ready(old)
	f.clock = f.clock.Add(time.Hour)
	f.hang(old)
	f.reconcile()
	if st := f.members(); len(f.hung()) != 1 || len(st.Live) != 1 || st.Live[0].ID == old.ID {
		t.Fatalf("%d told to stop, %d live", len(f.hung()), len(st.Live))
	}
	f.stopped()
	f.reconcile()
	if st := f.pool.Status; st.Hung != 1 || st.Failures != 1 || !strings.Contains(st.Message, "it hangs") {
		t.Errorf("%+v", st)
	}
	f.ready(f.members().Live[0])
	f.clock = f.clock.Add(time.Minute)
	f.reconcile()
	if st := f.pool.Status; st.Hung != 0 || st.HungAt != nil || st.Message != "" {
		t.Errorf("the new one holds: %+v", st)
	}
}

// TestHungOneAtATime: when all hang, the next is replaced when the sandbox in the place of the one before is ready.
// While the new ones hang too, the time in between grows.
func TestHungOneAtATime(t *testing.T) {
	f := setup(t, 3)
	f.reconcile()
	for _, sb := range f.members().Live {
		f.ready(sb)
	}
	f.clock = f.clock.Add(time.Hour)
	for _, sb := range f.members().Live {
		f.hang(sb)
	}
	var gaps []time.Duration
	for range 6 {
		f.reconcile()
		if n := len(f.hung()); n != 1 {
			t.Fatalf("%d are told to stop", n)
		}
		at := f.clock
		f.stopped()
		f.clock = f.clock.Add(time.Second)
		f.reconcile()
		f.reconcile()
		if n := len(f.hung()); n != 0 {
			t.Fatalf("%d are told to stop while the new one starts", n)
		}
		if st := f.members(); len(st.Live) != 3 || f.pool.Status.Message == "" {
			t.Fatalf("%d live, %+v", len(st.Live), f.pool.Status)
		}
		for _, sb := range f.members().Live { // the new one becomes ready and hangs too
			if sb.Status.ReadyAt == nil {
				f.ready(sb)
				f.hang(f.members().Live[2])
			}
		}
		for range 100 {
			again := f.reconcile()
			if len(f.hung()) > 0 {
				break
			}
			f.clock = f.clock.Add(max(again, time.Millisecond))
		}
		gaps = append(gaps, f.clock.Sub(at))
	}
	for i, gap := range gaps {
		if want := hungDelay(int64(i + 1)); gap < want || gap > want+5*time.Second {
			t.Errorf("gaps %v: the one after the replacement %d is to be %s", gaps, i+1, want)
			break
		}
	}
	// One that answers again is left in peace.
	for _, sb := range f.members().Live {
		f.change(sb, func(s *sandbox.SandboxStatus) { s.Ready, s.HungAt, s.Message = true, nil, "" })
	}
	f.stopped()
	f.clock = f.clock.Add(time.Hour)
	f.reconcile()
	if n := len(f.hung()); n != 0 {
		t.Errorf("%d are told to stop", n)
	}
}

// A sandbox that hangs is the first to go when the pool has too many, as one that is not wanted.
func TestHungWhenScaledDown(t *testing.T) {
	f := setup(t, 2)
	f.reconcile()
	for _, sb := range f.members().Live {
		f.ready(sb)
	}
	f.hang(f.members().Live[0])
	hung := f.members().Live[0]
	f.scale(1)
	f.reconcile()
	st := f.members()
	if len(st.Stopping) != 1 || st.Stopping[0].ID != hung.ID || st.Stopping[0].Spec.StopReason != sandbox.EndReasonUser || len(st.Live) != 1 {
		t.Errorf("stopping %+v, %d live", st.Stopping, len(st.Live))
	}
}
