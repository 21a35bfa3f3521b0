package disk_test

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"testing"
	"time"

	"miren.dev/runtime/api"
	"miren.dev/runtime/api/disk"
	ctldisk "miren.dev/runtime/controllers/disk"
	"miren.dev/runtime/controllers/kit"
	"miren.dev/runtime/domain/disks"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/pgtest"
	"miren.dev/runtime/testsupport/wait"
)

var errDead = errors.New("the server is dead")

// mortal is a server that dies after a number of writes to the entities and to
// the stores of volumes; 0: before the first one.
type mortal struct {
	entity.Store
	*world
	left int
	dead bool
}

func (m *mortal) write(f func() error) error {
	if m.dead {
		return errDead
	}
	m.left--
	switch {
	case m.left == -1:
		m.dead = true
		return errDead
	case m.left == 0:
		m.dead = true
		if err := f(); err != nil {
			return err
		}
		return errDead
	}
	return f()
}

func (m *mortal) Txn(ctx context.Context, req entity.TxnRequest) (res entity.TxnResult, err error) {
	err = m.write(func() error { res, err = m.Store.Txn(ctx, req); return err })
	return res, err
}

func (m *mortal) Copy(ctx context.Context, store, volume, snapshot, to, as string) (c ctldisk.Copied, err error) {
	err = m.write(func() error { c, err = m.world.Copy(ctx, store, volume, snapshot, to, as); return err })
	return c, err
}

func (m *mortal) DeleteCopy(ctx context.Context, store, volume, as string) error {
	return m.write(func() error { return m.world.DeleteCopy(ctx, store, volume, as) })
}

// world is a store of entities with a disk, whose snapshots it takes, and another
// store of volumes that has copies.
type world struct {
	ctldisk.Volumes
	t      *testing.T
	store  entity.Store
	disk   *disk.Disk
	copies map[string]string // snapshots by copy
	fails  error
	hangs  chan struct{} // if not nil, a copy closes it and waits for the end of its context
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, store: pgtest.Store(t, api.Kinds()...), copies: map[string]string{}}
	if err := projects.Ensure(t.Context(), w.store, projects.Default); err != nil {
		t.Fatal(err)
	}
	project, err := projects.Find(t.Context(), w.store, "")
	if err != nil {
		t.Fatal(err)
	}
	w.disk = disk.NewDisk()
	w.disk.Project, w.disk.Name, w.disk.Spec.SizeBytes = project, "data", disk.MinSize
	if err := entity.Create(t.Context(), w.store, w.disk); err != nil {
		t.Fatal(err)
	}
	w.disk.Status.Phase, w.disk.Status.Volume = disk.DiskPhaseReady, "volume"
	if err := entity.UpdateStatus(t.Context(), w.store, w.disk); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) Copy(ctx context.Context, _, volume, snapshot, to, as string) (ctldisk.Copied, error) {
	if volume != "volume" || to != "/copies" {
		w.t.Errorf("copy of %s to %s", volume, to)
	}
	if w.hangs != nil {
		close(w.hangs)
		<-ctx.Done()
		return ctldisk.Copied{}, ctx.Err()
	}
	if w.fails != nil {
		return ctldisk.Copied{}, w.fails
	}
	w.copies[as] = snapshot
	return ctldisk.Copied{Bytes: 10, Sent: 5}, nil
}

func (w *world) DeleteCopy(_ context.Context, _, _, as string) error {
	delete(w.copies, as)
	return w.fails
}

func (w *world) copy(snapshot schema.ID) *disk.DiskCopy {
	w.t.Helper()
	c := disks.NewCopy(w.disk, snapshot, "/copies")
	if err := entity.Create(w.t.Context(), w.store, c); err != nil {
		w.t.Fatal(err)
	}
	return c
}

func (w *world) get(c *disk.DiskCopy) *disk.DiskCopy {
	w.t.Helper()
	got, err := entity.Get[disk.DiskCopy](w.t.Context(), w.store, c.ID)
	if errs.Is(err, errs.NotFound) {
		return nil
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return got
}

func (w *world) snapshots() []*disk.DiskSnapshot {
	w.t.Helper()
	all, _, err := entity.List[disk.DiskSnapshot](w.t.Context(), w.store, entity.Query{})
	if err != nil {
		w.t.Fatal(err)
	}
	return all
}

// step does what the disk's controller does with snapshots.
func (w *world) step() {
	w.t.Helper()
	for _, s := range w.snapshots() {
		var err error
		switch now, size := time.Now(), int64(disk.MinSize); {
		case s.Spec.Deleted:
			err = entity.Delete(w.t.Context(), w.store, s)
		case s.Status.Phase == disk.DiskPhasePending:
			s.Status.Phase, s.Status.TakenAt, s.Status.SizeBytes = disk.DiskPhaseReady, &now, &size
			err = entity.UpdateStatus(w.t.Context(), w.store, s)
		}
		if err != nil {
			w.t.Fatal(err)
		}
	}
}

func (w *world) controller(store entity.Store, volumes ctldisk.Volumes) *ctldisk.Copies {
	return &ctldisk.Copies{Store: store, Volumes: volumes, Node: "node-a", Logger: slog.New(slog.DiscardHandler)}
}

// TestCopyDiesAtEveryWrite: wherever a server dies, the next one completes the
// copy, and later its deletion; nothing is left.
func TestCopyDiesAtEveryWrite(t *testing.T) {
	w := newWorld(t)
	for _, removed := range []bool{false, true} {
		for n := 0; ; n++ {
			c := w.copy("")
			m := &mortal{Store: w.store, world: w, left: n}
			ctl := w.controller(m, m)
			run := func(ctl *ctldisk.Copies, steps int) {
				for range steps {
					if _, err := ctl.Reconcile(t.Context(), c.ID); err != nil && !m.dead {
						t.Fatal(err)
					}
					w.step()
				}
			}
			remove := func() {
				if _, err := entity.ModifySpec(t.Context(), w.store, c.GetID(), func(c *disk.DiskCopy) error { c.Spec.Deleted = true; return nil }); err != nil {
					t.Fatal(err)
				}
			}
			if removed {
				m.left = 1000
				run(ctl, 1) // its snapshot is being taken
				remove()
				m.left = n
			}
			run(ctl, 4)
			survived := !m.dead
			m.dead = false
			next := w.controller(w.store, w)
			run(next, 4)
			if !removed {
				got := w.get(c)
				if got.Status.Phase != disk.DiskPhaseReady || got.Status.TakenAt == nil || *got.Status.DataBytes != 10 || w.copies[string(c.ID)] == "" {
					t.Fatalf("after write %d: %+v", n, got.Status)
				}
				if left := w.snapshots(); len(left) > 0 {
					t.Fatalf("after write %d: snapshots %+v are left", n, left)
				}
				remove()
				run(next, 4)
			}
			if w.get(c) != nil || len(w.copies) > 0 || len(w.snapshots()) > 0 {
				t.Fatalf("write %d: after the deletion %v, %v are left", n, slices.Collect(maps.Keys(w.copies)), w.snapshots())
			}
			if survived {
				if n < 3 {
					t.Errorf("only %d writes", n)
				}
				break
			}
		}
	}
}

// TestCopyFails: a store that does not answer is waited for; damage is final.
func TestCopyFails(t *testing.T) {
	w := newWorld(t)
	ctl := w.controller(w.store, w)
	s := disks.NewSnapshot(w.disk, "monday")
	if err := entity.Create(t.Context(), w.store, s); err != nil {
		t.Fatal(err)
	}
	w.step()
	c := w.copy(s.ID)
	w.fails = errs.New(errs.Unavailable, "no answer")
	if _, err := ctl.Reconcile(t.Context(), c.ID); !errs.Is(err, errs.Unavailable) || kit.IsTerminal(err) {
		t.Errorf("a store that does not answer: %v", err)
	}
	if got := w.get(c); got.Status.Phase != disk.DiskPhasePending || got.Status.Message != "no answer" {
		t.Errorf("%+v", got.Status)
	}
	w.fails = nil
	if _, err := ctl.Reconcile(t.Context(), c.ID); err != nil {
		t.Fatal(err)
	}
	if got := w.get(c); got.Status.Phase != disk.DiskPhaseReady || got.Status.Message != "" || w.copies[string(c.ID)] != string(s.ID) {
		t.Errorf("%+v", got.Status)
	}
	bad := w.copy(s.ID)
	w.fails = errs.New(errs.Corrupt, "damaged")
	if _, err := ctl.Reconcile(t.Context(), bad.ID); !kit.IsTerminal(err) {
		t.Errorf("damage: %v", err)
	}
	if got := w.get(bad); got.Status.Phase != disk.DiskPhaseFailed || got.Status.Message != "damaged" {
		t.Errorf("%+v", got.Status)
	}
	if len(w.snapshots()) != 1 {
		t.Error("the snapshot that was copied is gone")
	}
}

// TestCopyIsEnded: the deletion of a copy ends it while its store takes long.
func TestCopyIsEnded(t *testing.T) {
	w := newWorld(t)
	ctl, c := w.controller(w.store, w), w.copy("")
	if _, err := ctl.Reconcile(t.Context(), c.ID); err != nil {
		t.Fatal(err)
	}
	w.step()
	w.hangs = make(chan struct{})
	done := make(chan error, 1)
	go func() {
		_, err := ctl.Reconcile(t.Context(), c.ID)
		done <- err
	}()
	wait.Receive(t, "the copy has begun", w.hangs)
	if _, err := entity.ModifySpec(t.Context(), w.store, c.GetID(), func(c *disk.DiskCopy) error { c.Spec.Deleted = true; return nil }); err != nil {
		t.Fatal(err)
	}
	if err := wait.Receive(t, "the end of the copy", done); err != nil {
		t.Error(err)
	}
	if got := w.get(c); got.Status.Phase != disk.DiskPhasePending || got.Status.Message != "" {
		t.Errorf("%+v", got.Status)
	}
	w.hangs = nil
	if _, err := ctl.Reconcile(t.Context(), c.ID); err != nil || w.get(c) != nil {
		t.Errorf("its deletion: %v", err)
	}
}

// TestScheduledCopies: each scheduled snapshot is copied, except while a copy is
// being made; the oldest copies beyond the number to keep are deleted, and a
// snapshot that is being copied is kept.
func TestScheduledCopies(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	_, err := entity.ModifySpec(ctx, w.store, w.disk.GetID(), func(d *disk.Disk) error {
		every := time.Hour
		d.Spec.SnapshotEvery, d.Spec.SnapshotKeep, d.Spec.CopyTo, d.Spec.CopyKeep = &every, 1, "/copies", 2
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	// The clock stands within a tick: a snapshot has the second in its name.
	ctl, start, later := w.controller(w.store, w), time.Now(), time.Duration(0)
	s := &ctldisk.Schedule{Store: w.store, Logger: slog.New(slog.DiscardHandler), Now: func() time.Time { return start.Add(later) }}
	tick := func() (snapshots, copies int) {
		t.Helper()
		later += time.Hour + time.Minute
		for range 2 { // to take, and to expire
			if _, err := s.Reconcile(ctx, w.disk.ID); err != nil {
				t.Fatal(err)
			}
			w.step()
			all, err := disks.Copies(ctx, w.store, w.disk.GetID())
			if err != nil {
				t.Fatal(err)
			}
			copies = 0
			for _, c := range all {
				if _, err := ctl.Reconcile(ctx, c.ID); err != nil && w.fails == nil {
					t.Fatal(err)
				}
				if w.get(c) != nil {
					copies++
				}
			}
			w.step()
		}
		return len(w.snapshots()), copies
	}
	tick()
	if _, copies := tick(); copies != 2 {
		t.Errorf("%d copies after two snapshots", copies)
	}
	w.fails = errs.New(errs.Unavailable, "no answer")
	tick()
	tick()
	if snapshots, copies := tick(); snapshots > 4 || copies != 3 {
		t.Errorf("while the store does not answer: %d snapshots, %d copies", snapshots, copies)
	}
	w.fails = nil
	for range 4 {
		tick()
	}
	if snapshots, copies := tick(); copies != 2 || snapshots > 2 || len(w.copies) != 2 {
		t.Errorf("%d snapshots, %d copies, %d in the store", snapshots, copies, len(w.copies))
	}
}
