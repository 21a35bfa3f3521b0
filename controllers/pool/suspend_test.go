package pool

import (
	"testing"
	"time"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/sandboxes"
	"miren.dev/runtime/entity"
)

// asleep is a pool of two sandboxes that went to sleep: one is to be paused.
func asleep(t *testing.T) (*fixture, *sandbox.Sandbox) {
	t.Helper()
	f, d := draining(t, 2, &sandbox.Autoscale{Max: 2, Concurrency: 1, Idle: time.Minute, Suspend: true})
	f.autoscale(0)
	if m := f.members(); len(m.Suspended) > 0 {
		t.Fatal("a sandbox with a request is paused")
	}
	clear(d.inflight)
	m := f.after(time.Second)
	if len(m.Suspended) != 1 || len(m.Stopping) != 1 || len(m.Live) != 0 {
		t.Fatalf("%d suspended, %d stopping, %d live", len(m.Suspended), len(m.Stopping), len(m.Live))
	}
	f.end(m.Stopping[0], sandbox.EndReasonUser)
	sb := m.Suspended[0]
	at := f.clock
	f.change(sb, func(s *sandbox.SandboxStatus) {
		s.Phase, s.Ready, s.Saved, s.PausedAt = sandbox.SandboxPhasePaused, false, "saved", &at
	})
	if m := f.after(time.Hour); len(m.Suspended) != 1 || f.pool.Status.Created != 2 {
		t.Fatalf("asleep: %+v", m)
	}
	return f, sb
}

// TestSuspend: of a pool that goes to sleep one sandbox is paused, and the load that wakes the pool resumes it.
func TestSuspend(t *testing.T) {
	f, sb := asleep(t)
	f.autoscale(2)
	m := f.members()
	if len(m.Suspended) != 0 || len(m.Live) != 2 || m.Live[0].ID != sb.ID || m.Live[0].Spec.DrainingAt != nil || f.pool.Status.Created != 3 {
		t.Errorf("awake: %d suspended, %d live, %d made", len(m.Suspended), len(m.Live), f.pool.Status.Created)
	}
}

// TestSuspendedIsStopped: a pool that is retired, or does not sleep like that any more, stops the paused sandbox.
func TestSuspendedIsStopped(t *testing.T) {
	for name, change := range map[string]func(*sandbox.SandboxPoolSpec){
		"retired":       func(s *sandbox.SandboxPoolSpec) { s.State = sandbox.PoolStateRetired },
		"not suspended": func(s *sandbox.SandboxPoolSpec) { s.Autoscale.Suspend = false },
		"fixed":         func(s *sandbox.SandboxPoolSpec) { s.Autoscale, s.Autoscaled, s.Replicas = nil, nil, 0 },
	} {
		t.Run(name, func(t *testing.T) {
			f, _ := asleep(t)
			change(&f.pool.Spec)
			f.must(entity.UpdateSpec(t.Context(), f.store, f.pool))
			if m := f.after(time.Second); len(m.Suspended) != 0 || len(m.Stopping) != 1 || len(m.Live) != 0 {
				t.Errorf("%d suspended, %d stopping, %d live", len(m.Suspended), len(m.Stopping), len(m.Live))
			}
		})
	}
}

// TestRefusedSuspend: a sandbox that its node cannot pause is stopped, and the next start is a new one.
func TestRefusedSuspend(t *testing.T) {
	f, sb := asleep(t)
	f.change(sb, func(s *sandbox.SandboxStatus) {
		s.Phase, s.Ready, s.Saved, s.PauseRefused = sandbox.SandboxPhaseRunning, true, "", "no snapshots here"
	})
	sandboxes.PutBack(sb, f.clock)
	f.must(entity.UpdateSpec(t.Context(), f.store, sb))
	if m := f.after(time.Second); len(m.Stopping) != 1 || len(m.Live)+len(m.Suspended) != 0 {
		t.Fatalf("%d stopping, %d live, %d suspended", len(m.Stopping), len(m.Live), len(m.Suspended))
	}
	f.end(sb, sandbox.EndReasonUser)
	f.autoscale(1)
	if m := f.members(); len(m.Live) != 1 || m.Live[0].ID == sb.ID {
		t.Errorf("%d live", len(m.Live))
	}
}
