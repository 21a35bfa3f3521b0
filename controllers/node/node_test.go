package node

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"miren.dev/runtime/api"
	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/controllers/kit"
	"miren.dev/runtime/controllers/kit/kittest"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/pgtest"
	"miren.dev/runtime/testsupport/wait"
)

var quiet = slog.New(slog.DiscardHandler)

func get(t *testing.T, s entity.Store, nid schema.ID) *core.Node {
	t.Helper()
	n, err := entity.Get[core.Node](t.Context(), s, nid)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// newRegistrar returns a Registrar whose store access is checked against its
// declaration.
func newRegistrar(t *testing.T, s entity.Store) *Registrar {
	t.Helper()
	name, access := Registration()
	return &Registrar{Store: kittest.HoldWriter(t, s, name, access), Instance: "abcdefgh", StateDir: "/", Logger: quiet}
}

// newLiveness does the same for a Liveness.
func newLiveness(t *testing.T, s entity.Store, l *Liveness) *Liveness {
	t.Helper()
	l.Store, l.Logger = kittest.Hold(t, s, l.Controller()), quiet
	return l
}

func TestRegister(t *testing.T) {
	s := pgtest.Store(t, api.Kinds()...)
	r := newRegistrar(t, s)
	nid, err := r.Register(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	n := get(t, s, schema.ID(nid))
	if n.Status.Phase != core.NodePhaseReady || n.Spec.CPUMillis == 0 || n.Spec.MemoryBytes == 0 || n.Status.LastSeen == nil {
		t.Fatalf("%+v %+v", n.Spec, n.Status)
	}
	// Nothing is written for being alive.
	if err := r.renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := get(t, s, n.ID); got.Revision != n.Revision {
		t.Error("a renewal costs a revision")
	}
	// The next server of the same node keeps the node and its lease.
	second := newRegistrar(t, s)
	second.CPUMillis = 4000
	again, err := second.Register(t.Context())
	if err != nil || again != nid {
		t.Fatalf("registered as %s, %v", again, err)
	}
	if got := get(t, s, n.ID); got.Status.Lease != n.Status.Lease || got.Spec.CPUMillis != 4000 {
		t.Errorf("%+v %+v", got.Spec, got.Status)
	}
	// A node whose lease lapsed gets another.
	if err := s.Revoke(t.Context(), schema.LeaseID(n.Status.Lease)); err != nil {
		t.Fatal(err)
	}
	if err := r.renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := get(t, s, n.ID); got.Status.Lease == n.Status.Lease || got.Status.Phase != core.NodePhaseReady {
		t.Errorf("%+v", got.Status)
	}
}

// deaf cannot list, as when the store is unavailable.
type deaf struct{ entity.Store }

func (deaf) List(context.Context, entity.Query) (entity.Page, error) {
	return entity.Page{}, errs.New(errs.Unavailable, "the store is away")
}

func TestLiveness(t *testing.T) {
	s := pgtest.Store(t, api.Kinds()...)
	r := newRegistrar(t, s)
	nid, err := r.Register(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p := core.NewProject()
	p.Name = "default"
	if err := entity.Create(t.Context(), s, p); err != nil {
		t.Fatal(err)
	}
	sb := sandbox.NewSandbox()
	sb.Project, sb.Spec.Node, sb.Spec.Template.Image = p.ID, nid, "img"
	sb.Status.Phase, sb.Status.Ready, sb.Status.Address = sandbox.SandboxPhaseRunning, true, "10.0.0.2"
	if err := entity.Create(t.Context(), s, sb); err != nil {
		t.Fatal(err)
	}
	clock := time.Now()
	l := newLiveness(t, s, &Liveness{Now: func() time.Time { return clock }})
	look := func() time.Duration {
		t.Helper()
		d, err := l.Reconcile(t.Context(), schema.ID(nid))
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	phase := func(want core.NodePhase) *core.Node {
		t.Helper()
		n := get(t, s, schema.ID(nid))
		if n.Status.Phase != want {
			t.Fatalf("node is %s, want %s", n.Status.Phase, want)
		}
		return n
	}
	if d := look(); d != 0 {
		t.Fatalf("looks at a node that is alive again after %s", d)
	}
	if err := s.Revoke(t.Context(), schema.LeaseID(phase(core.NodePhaseReady).Status.Lease)); err != nil {
		t.Fatal(err)
	}
	// The grace applies first; and a store that does not answer proves nothing.
	if d := look(); d != leaseTTL {
		t.Fatalf("grace of %s", d)
	}
	clock = clock.Add(time.Hour)
	l.Store = deaf{s}
	if _, err := l.Reconcile(t.Context(), schema.ID(nid)); !errs.Is(err, errs.Unavailable) {
		t.Fatalf("without a store: %v", err)
	}
	phase(core.NodePhaseReady)
	l.Store = s
	look()
	if n := phase(core.NodePhaseDown); n.Status.DownSince == nil || n.Status.Message == "" {
		t.Fatalf("%+v", n.Status)
	}
	// Its sandboxes stay for a while.
	if d := look(); d != defaultEndAfter {
		t.Fatalf("its sandboxes end after %s", d)
	}
	if got, err := entity.Get[sandbox.Sandbox](t.Context(), s, sb.ID); err != nil || !got.Status.Ready {
		t.Fatalf("%+v %v", got.Status, err)
	}
	clock = clock.Add(defaultEndAfter)
	look()
	got, err := entity.Get[sandbox.Sandbox](t.Context(), s, sb.ID)
	if err != nil || got.Status.Phase != sandbox.SandboxPhaseStopped || got.Status.Reason != sandbox.EndReasonNode || got.Status.Ready || got.Status.Message == "" {
		t.Fatalf("%+v %v", got.Status, err)
	}
	// It comes back.
	if err := r.renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := phase(core.NodePhaseReady); n.Status.DownSince != nil || n.Status.Message != "" {
		t.Fatalf("%+v", n.Status)
	}
	if d := look(); d != 0 || len(l.missing) != 0 {
		t.Errorf("looks again after %s, remembers %v", d, l.missing)
	}
}

// A node that comes back while it is assessed is not down.
func TestComesBackInTheMoment(t *testing.T) {
	s := pgtest.Store(t, api.Kinds()...)
	r := newRegistrar(t, s)
	nid, err := r.Register(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	n := get(t, s, schema.ID(nid))
	now := time.Now()
	n.Status.Phase, n.Status.DownSince = core.NodePhaseDown, &now
	if err := entity.UpdateStatus(t.Context(), s, n); err != nil {
		t.Fatal(err)
	}
	if err := r.renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	l := newLiveness(t, s, &Liveness{Now: func() time.Time { return now.Add(time.Hour) }})
	if err := l.endSandboxes(t.Context(), n, now, "is down"); err != nil {
		t.Fatal(err)
	}
	if got := get(t, s, n.ID); got.Status.Phase != core.NodePhaseReady {
		t.Errorf("%+v", got.Status)
	}
}

// TestRemovedNode: a node that was deleted is down, its sandboxes end at once with
// reason node although its lease goes on, and it goes when they are forgotten.
func TestRemovedNode(t *testing.T) {
	s := pgtest.Store(t, api.Kinds()...)
	r := newRegistrar(t, s)
	nid, err := r.Register(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p := core.NewProject()
	p.Name = "default"
	if err := entity.Create(t.Context(), s, p); err != nil {
		t.Fatal(err)
	}
	sb, snap := sandbox.NewSandbox(), sandbox.NewSnapshot()
	sb.Project, sb.Spec.Node, sb.Spec.Template.Image = p.ID, nid, "img"
	sb.Status.Phase, sb.Status.Ready = sandbox.SandboxPhaseRunning, true
	snap.Project, snap.Spec.Node, snap.Spec.Template.Image = p.ID, nid, "img"
	for _, o := range []schema.Object{sb, snap} {
		if err := entity.Create(t.Context(), s, o); err != nil {
			t.Fatal(err)
		}
	}
	n := get(t, s, schema.ID(nid))
	n.Spec.Removed = true
	if err := entity.UpdateSpec(t.Context(), s, n); err != nil {
		t.Fatal(err)
	}
	l := newLiveness(t, s, &Liveness{})
	for range 2 { // the second as after a kill in between
		if _, err := l.Reconcile(t.Context(), schema.ID(nid)); err != nil {
			t.Fatal(err)
		}
	}
	got, err := entity.Get[sandbox.Sandbox](t.Context(), s, sb.ID)
	if err != nil || got.Status.Phase != sandbox.SandboxPhaseStopped || got.Status.Reason != sandbox.EndReasonNode {
		t.Fatalf("%+v %v", got.Status, err)
	}
	if _, err := entity.Get[sandbox.Snapshot](t.Context(), s, snap.ID); !errs.Is(err, errs.NotFound) {
		t.Errorf("its snapshot: %v", err)
	}
	if n := get(t, s, schema.ID(nid)); n.Status.Phase != core.NodePhaseDown {
		t.Errorf("%+v", n.Status)
	}
	if err := entity.Delete(t.Context(), s, got); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Reconcile(t.Context(), schema.ID(nid)); err != nil {
		t.Fatal(err)
	}
	if _, err := entity.Get[core.Node](t.Context(), s, nid); !errs.Is(err, errs.NotFound) {
		t.Errorf("the node: %v", err)
	}
}

// The end of a lease wakes the controller.
func TestController(t *testing.T) {
	s := pgtest.Store(t, api.Kinds()...)
	r := newRegistrar(t, s)
	nid, err := r.Register(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	rt, _ := kittest.Run(t, informer.New(informer.Config{Reader: s}), kit.Config{}, newLiveness(t, s, &Liveness{Grace: time.Millisecond}).Controller())
	<-rt.Synced()
	if err := s.Revoke(t.Context(), schema.LeaseID(get(t, s, schema.ID(nid)).Status.Lease)); err != nil {
		t.Fatal(err)
	}
	wait.For(t, "the node is down", func() bool {
		return get(t, s, schema.ID(nid)).Status.Phase == core.NodePhaseDown
	})
}

// TestAnotherStore starts the server of a node with a store that does not know it.
func TestRegistrarReportsAFullDisk(t *testing.T) {
	store := pgtest.Store(t, api.Kinds()...)
	r := newRegistrar(t, store)
	for _, full := range []bool{false, true, false} {
		r.KeepDisk = 0
		if full {
			r.KeepDisk = 1 << 60
		}
		sid, err := r.Register(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		n, err := entity.Get[core.Node](t.Context(), store, sid)
		if err != nil || n.Status.DiskFull != full || n.Status.DiskFreeBytes == nil || *n.Status.DiskFreeBytes <= 0 {
			t.Errorf("full %v: %+v, %v", full, n.Status, err)
		}
	}
	r.StateDir = "/no/such/directory"
	if _, err := r.Register(t.Context()); !errs.Is(err, errs.Unavailable) {
		t.Errorf("a missing state directory: %v", err)
	}
}

func TestReservableMemory(t *testing.T) {
	const mib = 1 << 20
	for total, want := range map[int64]int64{512: 128, 1024: 512, 2048: 1365, 4096: 3072, 65536: 64512} {
		if got := reservable(total*mib) / mib; got != want {
			t.Errorf("%d MiB: %d may be reserved, want %d", total, got, want)
		}
	}
}

func TestAnotherStore(t *testing.T) {
	file := filepath.Join(t.TempDir(), "node-id")
	r := &Registrar{Store: pgtest.Store(t, api.Kinds()...), Instance: "abcdefgh", StateDir: "/", Logger: quiet, IDFile: file}
	if _, err := r.Register(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Register(t.Context()); err != nil {
		t.Errorf("the same store: %v", err)
	}
	other := pgtest.Store(t, api.Kinds()...)
	r = &Registrar{Store: other, Instance: "abcdefgh", StateDir: "/", Logger: quiet, IDFile: file}
	if _, err := r.Register(t.Context()); !errs.Is(err, errs.FailedPrecondition) {
		t.Fatalf("an empty store: %v", err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Register(t.Context()); err != nil {
		t.Errorf("begun anew: %v", err)
	}
}
