package pool

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/ingress"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/sandboxes"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// drainer plays the ingress: the requests in flight by sandbox.
type drainer struct {
	inflight map[schema.ID]int64
	synced   schema.Revision
	err      error
}

func (d *drainer) Synced(_ context.Context, rev schema.Revision) error {
	d.synced = max(d.synced, rev)
	return d.err
}

func (d *drainer) Inflight(context.Context, schema.ID) (ingress.Inflight, error) {
	return ingress.Inflight{Sandboxes: d.inflight}, d.err
}

// draining is a pool with ready sandboxes that serve a port, and an ingress.
func draining(t *testing.T, n int64, auto *sandbox.Autoscale) (*fixture, *drainer) {
	t.Helper()
	f := setup(t, n)
	d := &drainer{inflight: map[schema.ID]int64{}}
	f.rec.Drainer, f.rec.DrainTimeout = d, 30*time.Second
	f.pool.Spec.Template.Ports = []sandbox.Port{{Name: "http", Number: 8080}}
	f.pool.Spec.Autoscale, f.pool.Spec.Autoscaled = auto, &n
	f.must(entity.UpdateSpec(t.Context(), f.store, f.pool))
	f.reconcile()
	for _, sb := range f.members().Live {
		f.ready(sb)
		d.inflight[sb.ID] = 1
	}
	f.reconcile()
	return f, d
}

func (f *fixture) autoscale(n int64) {
	f.Helper()
	f.pool.Spec.Autoscaled = &n
	f.must(entity.UpdateSpec(f.Context(), f.store, f.pool))
	f.reconcile()
}

func (f *fixture) after(d time.Duration) sandboxes.Members {
	f.Helper()
	f.clock = f.clock.Add(d)
	f.reconcile()
	return f.members()
}

// TestStopsNoneInUse: a sandbox that is one too many for the load gets no new requests and stays until its last request has
// ended, however long that takes; if the load rises, it gets requests again instead of a new one being made.
func TestStopsNoneInUse(t *testing.T) {
	f, d := draining(t, 3, &sandbox.Autoscale{Min: 1, Max: 3, Concurrency: 1, Idle: time.Minute})
	free := f.members().Live[1]
	d.inflight[free.ID] = 0
	f.autoscale(2)
	marked := sandboxes.Draining(f.members().Live)
	if len(marked) != 1 || marked[0].ID != free.ID {
		t.Fatalf("marked %d sandboxes, not the one without requests", len(marked))
	}
	d.inflight[free.ID] = 1 // a request chose it before the ingress knew
	m := f.after(time.Hour)
	if len(m.Live) != 3 || d.synced < marked[0].SpecRevision {
		t.Fatalf("%d live, the ingress was asked at revision %d of %d", len(m.Live), d.synced, marked[0].SpecRevision)
	}
	f.autoscale(3)
	if m := f.members(); len(m.Live) != 3 || len(sandboxes.Draining(m.Live)) != 0 || f.pool.Status.Created != 3 {
		t.Fatalf("more load: %d live, %d draining, %d made", len(m.Live), len(sandboxes.Draining(m.Live)), f.pool.Status.Created)
	}
	f.autoscale(1)
	d.inflight = map[schema.ID]int64{}
	if m := f.after(time.Second); len(m.Live) != 1 || len(m.Stopping) != 2 {
		t.Fatalf("without requests: %d live, %d stopping", len(m.Live), len(m.Stopping))
	}
}

// shells plays the nodes: sandboxes in which a shell runs.
type shells map[id.Sandbox]bool

func (s shells) Processes(_ context.Context, sid id.Sandbox) ([]sandbox.Process, error) {
	code := int64(0)
	list := []sandbox.Process{{ID: "ended", ExitCode: &code}}
	if s[sid] {
		list = append(list, sandbox.Process{ID: "shell"})
	}
	return list, nil
}

// TestStopsNoneWithAShell: a process that was executed in a sandbox keeps it.
func TestStopsNoneWithAShell(t *testing.T) {
	f, d := draining(t, 2, &sandbox.Autoscale{Min: 0, Max: 2, Concurrency: 1, Idle: time.Minute})
	d.inflight = nil
	used := f.members().Live[0].GetID()
	running := shells{used: true}
	f.rec.Node = running
	f.autoscale(0)
	if m := f.after(time.Hour); len(m.Live) != 1 || m.Live[0].GetID() != used {
		t.Fatalf("%d live", len(m.Live))
	}
	running[used] = false
	if m := f.after(time.Second); len(m.Live) != 0 {
		t.Fatalf("the shell has ended: %d live", len(m.Live))
	}
}

// TestUnknownStopsNothing: an ingress that does not answer may have requests; one that does not run has none.
func TestUnknownStopsNothing(t *testing.T) {
	f, d := draining(t, 2, &sandbox.Autoscale{Min: 1, Max: 2, Concurrency: 1, Idle: time.Minute})
	d.inflight = nil
	d.err = errors.New("the ingress is busy")
	f.autoscale(1)
	if m := f.after(time.Hour); len(m.Live) != 2 {
		t.Fatalf("%d live", len(m.Live))
	}
	d.err = fmt.Errorf("ask ingress: %w", os.ErrNotExist)
	if m := f.after(time.Second); len(m.Live) != 1 {
		t.Fatalf("no ingress runs: %d live", len(m.Live))
	}
}

// TestAUsersNumberIsBounded: sandboxes beyond a fixed number wait for their requests for the drain time, and a shorter one
// if none stays.
func TestAUsersNumberIsBounded(t *testing.T) {
	f, _ := draining(t, 3, nil)
	f.scale(2)
	f.reconcile()
	if m := f.after(29 * time.Second); len(m.Live) != 3 {
		t.Fatalf("%d live", len(m.Live))
	}
	if m := f.after(2 * time.Second); len(m.Live) != 2 {
		t.Fatalf("after the drain time %d live", len(m.Live))
	}
	f.scale(0)
	f.reconcile()
	if m := f.after(lastDrain - time.Second); len(m.Live) != 2 {
		t.Fatalf("%d live", len(m.Live))
	}
	if m := f.after(2 * time.Second); len(m.Live) != 0 {
		t.Fatalf("none is wanted: %d live", len(m.Live))
	}
}

// TestOneThatNeverServedStopsAtOnce: the ingress never sent it a request.
func TestOneThatNeverServedStopsAtOnce(t *testing.T) {
	f, _ := draining(t, 1, nil)
	f.scale(2)
	f.reconcile()
	f.scale(1)
	f.reconcile()
	if m := f.members(); len(m.Live) != 1 || m.Live[0].Status.ReadyAt == nil {
		t.Fatalf("%d live", len(m.Live))
	}
}

// mortal is the store of a server that dies with its n-th write: the write happens, and its answer is lost.
type mortal struct {
	entity.Store
	left int
}

func (m *mortal) Txn(ctx context.Context, req entity.TxnRequest) (entity.TxnResult, error) {
	res, err := m.Store.Txn(ctx, req)
	if m.left--; m.left == 0 {
		return entity.TxnResult{}, errs.New(errs.Unavailable, "the server is dead")
	}
	return res, err
}

// TestDrainDiesAfterEveryWrite: whichever write of a scale-down is the last of its server, the next one ends it: none in
// use is stopped, one sandbox stays, and none is made anew.
func TestDrainDiesAfterEveryWrite(t *testing.T) {
	for n := 1; ; n++ {
		f, d := draining(t, 3, &sandbox.Autoscale{Min: 1, Max: 3, Concurrency: 1, Idle: time.Minute})
		one := int64(1)
		f.pool.Spec.Autoscaled = &one
		f.must(entity.UpdateSpec(t.Context(), f.store, f.pool))
		dying := &mortal{f.rec.Store, n}
		f.rec.Store = dying
		for range 20 {
			f.clock = f.clock.Add(time.Second)
			_, _ = f.rec.Reconcile(t.Context(), f.pool.ID) // an error is the death of the server
		}
		m := f.members()
		if len(m.Live) != 3 || len(m.Stopping) != 0 || len(sandboxes.Draining(m.Live)) != 2 {
			t.Fatalf("write %d: with requests %d live, %d draining", n, len(m.Live), len(sandboxes.Draining(m.Live)))
		}
		d.inflight = map[schema.ID]int64{}
		for range 20 {
			f.clock = f.clock.Add(time.Second)
			_, _ = f.rec.Reconcile(t.Context(), f.pool.ID)
		}
		m = f.members()
		p, err := entity.Get[sandbox.SandboxPool](t.Context(), f.store, f.pool.ID)
		f.must(err)
		if len(m.Live) != 1 || len(m.Stopping) != 2 || p.Status.Created != 3 || m.Live[0].Spec.DrainingAt != nil {
			t.Fatalf("write %d: %d live, %d stopping, %d made", n, len(m.Live), len(m.Stopping), p.Status.Created)
		}
		if dying.left > 0 { // every write was the last one once
			return
		}
	}
}
