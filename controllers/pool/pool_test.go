package pool

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/api"
	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/disk"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/controllers/kit/kittest"
	"miren.dev/runtime/domain/disks"
	"miren.dev/runtime/domain/sandboxes"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/testsupport/pgtest"
)

type fixture struct {
	*testing.T
	store entity.Store
	rec   *Reconciler
	clock time.Time
	pool  *sandbox.SandboxPool
}

func setup(t *testing.T, replicas int64) *fixture {
	t.Helper()
	f := &fixture{T: t, store: pgtest.Store(t, api.Kinds()...), clock: time.Now()}
	f.rec = &Reconciler{Logger: slog.New(slog.DiscardHandler), Now: func() time.Time { return f.clock }}
	f.rec.Store = kittest.Hold(t, f.store, f.rec.Controller())
	p := core.NewProject()
	p.Name = "default"
	f.must(entity.Create(t.Context(), f.store, p))
	f.pool = sandbox.NewSandboxPool()
	f.pool.Project, f.pool.Name, f.pool.Spec.Replicas, f.pool.Spec.Template.Image = p.ID, "web", replicas, "img"
	f.must(entity.Create(t.Context(), f.store, f.pool))
	return f
}

func (f *fixture) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

// reconcile runs until the controller has nothing left to do at once.
func (f *fixture) reconcile() time.Duration {
	f.Helper()
	for range 40 {
		again, err := f.rec.Reconcile(f.Context(), f.pool.ID)
		f.must(err)
		if again != time.Millisecond {
			p, err := entity.Get[sandbox.SandboxPool](f.Context(), f.store, f.pool.ID)
			f.must(err)
			f.pool = p
			return again
		}
	}
	f.Fatal("does not come to rest")
	return 0
}

func (f *fixture) members() sandboxes.Members {
	f.Helper()
	all, err := sandboxes.InPool(f.Context(), f.store, f.pool.GetID())
	f.must(err)
	return sandboxes.Classify(all)
}

func (f *fixture) change(sb *sandbox.Sandbox, fn func(*sandbox.SandboxStatus)) {
	f.Helper()
	fn(&sb.Status)
	f.must(entity.UpdateStatus(f.Context(), f.store, sb))
}

func (f *fixture) ready(sb *sandbox.Sandbox) {
	f.Helper()
	at := f.clock
	f.change(sb, func(s *sandbox.SandboxStatus) {
		s.Phase, s.Ready, s.ReadyAt, s.StartedAt = sandbox.SandboxPhaseRunning, true, &at, &at
	})
}

func (f *fixture) end(sb *sandbox.Sandbox, why sandbox.EndReason) {
	f.Helper()
	at := f.clock
	f.change(sb, func(s *sandbox.SandboxStatus) {
		s.Phase, s.Ready, s.Reason, s.EndedAt = sandbox.SandboxPhaseStopped, false, why, &at
	})
}

func (f *fixture) scale(n int64) {
	f.Helper()
	f.pool.Spec.Replicas = n
	f.must(entity.UpdateSpec(f.Context(), f.store, f.pool))
}

// All fail at once, again and again: each failure counts once, the delay grows,
// and few ended sandboxes are kept.
func TestBackoff(t *testing.T) {
	f := setup(t, 5)
	f.reconcile()
	var delay time.Duration
	for round := 1; round <= 4; round++ {
		st := f.members()
		if len(st.Live) != 5 {
			t.Fatalf("round %d: %d live", round, len(st.Live))
		}
		for _, sb := range st.Live {
			f.end(sb, sandbox.EndReasonExit)
		}
		f.reconcile()
		f.reconcile()
		if got := f.pool.Status.Failures; got != int64(5*round) {
			t.Fatalf("round %d: %d failures counted, want %d", round, got, 5*round)
		}
		st = f.members()
		if len(st.Live) != 0 || len(st.Ended) != keepEnded {
			t.Fatalf("round %d: %d live, %d ended", round, len(st.Live), len(st.Ended))
		}
		next := f.pool.Status.NextStart.Sub(f.clock)
		if next < delay || next > maxBackoff || f.pool.Status.Message == "" {
			t.Fatalf("round %d: delay %s after %s; %q", round, next, delay, f.pool.Status.Message)
		}
		delay = next
		f.clock = f.clock.Add(next - 5*time.Millisecond)
		if again := f.reconcile(); again != 5*time.Millisecond || len(f.members().Live) != 0 {
			t.Fatalf("round %d: looks again after %s, %d live too early", round, again, len(f.members().Live))
		}
		f.clock = f.clock.Add(6 * time.Millisecond)
		f.reconcile()
	}
	if delay != maxBackoff {
		t.Errorf("delay %s, want %s", delay, maxBackoff)
	}
	// A sandbox that stays up ends the back-off.
	for _, sb := range f.members().Live {
		f.ready(sb)
	}
	if again := f.reconcile(); again <= 0 || again > stableAfter {
		t.Errorf("looks again after %s", again)
	}
	f.clock = f.clock.Add(stableAfter)
	f.reconcile()
	if s := f.pool.Status; s.Failures != 0 || s.NextStart != nil || s.Message != "" || s.Ready != 5 || s.Total != 5 {
		t.Errorf("status %+v", s)
	}
	if n := f.pool.Status.Created; n != 25 {
		t.Errorf("%d created", n)
	}
}

// TestManyEnded: a pool of which 1,000 sandboxes ended since its last
// reconciliation settles, though they are more than one transaction may hold.
func TestManyEnded(t *testing.T) {
	const n = 1000
	f := setup(t, 0)
	var ops []entity.Op
	for range n {
		at := f.clock
		sb := sandbox.NewSandbox()
		sb.Project, sb.Spec.Pool, sb.Spec.Template.Image = f.pool.Project, f.pool.GetID(), "img"
		sb.Status.Phase, sb.Status.Reason, sb.Status.EndedAt = sandbox.SandboxPhaseStopped, sandbox.EndReasonExit, &at
		op, err := entity.CreateOp(sb)
		f.must(err)
		ops = append(ops, op)
	}
	_, err := f.store.Txn(t.Context(), entity.TxnRequest{Ops: ops})
	f.must(err)
	f.rec.Store = &bounded{Store: f.rec.Store, t: t}
	f.reconcile()
	f.reconcile()
	if m := f.members(); len(m.Ended) != keepEnded {
		t.Errorf("%d ended stay", len(m.Ended))
	}
	if got := f.pool.Status.Failures; got != n {
		t.Errorf("%d failures counted, want %d", got, n)
	}
}

// bounded is a store that fails the test when a transaction is large.
type bounded struct {
	entity.Store
	t testing.TB
}

func (b *bounded) Txn(ctx context.Context, req entity.TxnRequest) (entity.TxnResult, error) {
	if n := len(req.Ops); n > 3*maxAtOnce+1 {
		b.t.Errorf("a transaction of %d operations", n)
	}
	return b.Store.Txn(ctx, req)
}

// A sandbox that was told to stop is replaced at once and is no failure.
func TestReplacesAtOnce(t *testing.T) {
	f := setup(t, 2)
	f.reconcile()
	f.end(f.members().Live[0], sandbox.EndReasonUser)
	f.reconcile()
	if st := f.members(); len(st.Live) != 2 || f.pool.Status.Failures != 0 {
		t.Errorf("%d live, status %+v", len(st.Live), f.pool.Status)
	}
}

// A drain of the node, however often, delays no replacement.
func TestDrainedNodeIsNoFailure(t *testing.T) {
	f := setup(t, 2)
	f.reconcile()
	for range 8 {
		for _, sb := range f.members().Live {
			sb.Spec.Desired, sb.Spec.StopReason = sandbox.DesiredStateStopped, sandbox.EndReasonNode // as domain/nodes does
			f.must(entity.UpdateSpec(t.Context(), f.store, sb))
			f.end(sb, sandbox.EndReasonNode)
		}
		f.reconcile()
		if st := f.members(); len(st.Live) != 2 || f.pool.Status.Failures != 0 {
			t.Fatalf("%d live, status %+v", len(st.Live), f.pool.Status)
		}
	}
}

func TestScale(t *testing.T) {
	f := setup(t, 3)
	f.reconcile()
	live := f.members().Live
	f.ready(live[1])
	f.ready(live[2])
	f.scale(1)
	f.reconcile()
	st := f.members()
	// The one that is not ready goes first, then the newest.
	if len(st.Live) != 1 || st.Live[0].ID != live[1].ID || len(st.Stopping) != 2 {
		t.Fatalf("live %d, stopping %d", len(st.Live), len(st.Stopping))
	}
	for _, sb := range st.Stopping {
		if sb.Spec.StopReason != sandbox.EndReasonUser {
			t.Errorf("stop reason %q", sb.Spec.StopReason)
		}
	}
	f.reconcile() // its own change of the sandboxes wakes it
	if f.pool.Status.Total != 3 || f.pool.Status.Ready != 1 {
		t.Errorf("status %+v", f.pool.Status)
	}
	f.scale(230)
	f.reconcile()
	if n := len(f.members().Live); n != 230 {
		t.Errorf("%d live", n)
	}
	f.scale(0)
	f.reconcile()
	if st := f.members(); len(st.Live) != 0 || len(st.Stopping) != 232 {
		t.Errorf("%d live, %d stopping", len(st.Live), len(st.Stopping))
	}
}

func TestGone(t *testing.T) {
	f := setup(t, 1)
	f.reconcile()
	f.must(entity.Delete(t.Context(), f.store, f.pool))
	if again, err := f.rec.Reconcile(t.Context(), f.pool.ID); again != 0 || err != nil {
		t.Error(again, err)
	}
	if n := len(f.members().Live); n != 0 {
		t.Errorf("%d sandboxes outlive their pool", n)
	}
}

// TestDiskHasOneWriter: the next sandbox that writes to a disk is made after the one
// before has ended and released it, and not while another pool of the app has one.
func TestDiskHasOneWriter(t *testing.T) {
	f := setup(t, 0)
	a := app.NewApp()
	a.Project, a.Name = f.pool.Project, "shop"
	f.must(entity.Create(t.Context(), f.store, a))
	n := core.NewNode()
	n.Name, n.Spec.Arch, n.Spec.CPUMillis, n.Spec.MemoryBytes = "n", "amd64", 1000, 1<<30
	f.must(entity.Create(t.Context(), f.store, n))
	d := disk.NewDisk()
	d.Project, d.Name, d.Spec.SizeBytes = f.pool.Project, "data", disk.MinSize
	f.must(entity.Create(t.Context(), f.store, d))
	d.Status.Phase = disk.DiskPhaseReady
	f.must(entity.UpdateStatus(t.Context(), f.store, d))
	newPool := func(name string) *sandbox.SandboxPool {
		p := sandbox.NewSandboxPool()
		p.Project, p.Name, p.Spec.App, p.Spec.Template.Image = f.pool.Project, name, a.GetID(), "img"
		p.Spec.Template.Volumes = []sandbox.Volume{{Disk: d.GetID(), Path: "/data"}}
		f.must(entity.Create(t.Context(), f.store, p))
		return p
	}
	other := newPool("other")
	f.pool = newPool("mine")
	f.reconcile()
	first := f.members().Live[0]
	first.Spec.Node = n.GetID()
	f.must(entity.UpdateSpec(t.Context(), f.store, first))
	f.ready(first)
	_, err := disks.Claim(t.Context(), f.store, first, disks.Volume{Disk: d.GetID(), Path: "/data"})
	f.must(err)

	held := func(why string) {
		t.Helper()
		if again := f.reconcile(); again != diskPoll {
			t.Errorf("looks again after %s", again)
		}
		if m := f.members(); len(m.Live) > 0 || !strings.Contains(f.pool.Status.Message, why) {
			t.Errorf("%d live, message %q, want %q", len(m.Live), f.pool.Status.Message, why)
		}
	}
	first.Spec.Desired = sandbox.DesiredStateStopped
	f.must(entity.UpdateSpec(t.Context(), f.store, first))
	held("has ended")
	mine := f.pool
	f.pool = other
	held("has ended")
	f.pool = mine
	f.end(first, sandbox.EndReasonUser)
	held("has released")
	f.must(disks.Release(t.Context(), f.store, first.GetID()))
	f.reconcile()
	if m := f.members(); len(m.Live) != 1 || f.pool.Status.Message != "" {
		t.Errorf("%d live, message %q", len(m.Live), f.pool.Status.Message)
	}
}
