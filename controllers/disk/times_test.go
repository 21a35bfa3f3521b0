package disk_test

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"miren.dev/runtime/api"
	"miren.dev/runtime/api/disk"
	ctldisk "miren.dev/runtime/controllers/disk"
	"miren.dev/runtime/domain/disks"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/pgtest"
)

// timesEnv is a disk with a schedule at a clock that the test sets.
type timesEnv struct {
	t     *testing.T
	store entity.Store
	disk  *disk.Disk
	now   time.Time
}

func newTimesEnv(t *testing.T, set func(*disk.DiskSpec)) *timesEnv {
	t.Helper()
	ctx, store := t.Context(), pgtest.Store(t, api.Kinds()...)
	if err := projects.Ensure(ctx, store, projects.Default); err != nil {
		t.Fatal(err)
	}
	project, err := projects.Find(ctx, store, "")
	if err != nil {
		t.Fatal(err)
	}
	d := disk.NewDisk()
	d.Project, d.Name, d.Spec.SizeBytes = project, "data", disk.MinSize
	set(&d.Spec)
	if err := entity.Create(ctx, store, d); err != nil {
		t.Fatal(err)
	}
	d.Status.Phase = disk.DiskPhaseReady
	if err := entity.UpdateStatus(ctx, store, d); err != nil {
		t.Fatal(err)
	}
	return &timesEnv{t: t, store: store, disk: d}
}

// at sets the clock and reconciles twice: to take, and to expire. The disk's
// controller takes each snapshot at that time.
func (e *timesEnv) at(clock string) time.Duration {
	e.t.Helper()
	now, err := time.Parse(time.RFC3339, clock)
	if err != nil {
		e.t.Fatal(err)
	}
	e.now = now
	var again time.Duration
	for range 2 {
		if again, err = e.controller(e.store).Reconcile(e.t.Context(), e.disk.ID); err != nil {
			e.t.Fatal(err)
		}
		e.take()
	}
	return again
}

func (e *timesEnv) controller(s entity.Store) *ctldisk.Schedule {
	return &ctldisk.Schedule{Store: s, Logger: slog.New(slog.DiscardHandler), Now: func() time.Time { return e.now }}
}

func (e *timesEnv) all() []*disk.DiskSnapshot {
	e.t.Helper()
	all, _, err := entity.List[disk.DiskSnapshot](e.t.Context(), e.store, entity.Where(disk.DiskSnapshotAttrDisk, e.disk.GetID()))
	if err != nil {
		e.t.Fatal(err)
	}
	return all
}

// take makes snapshots ready and deletes those that are to be, as the disk's
// controller does.
func (e *timesEnv) take() {
	e.t.Helper()
	for _, x := range e.all() {
		var err error
		switch {
		case x.Spec.Deleted:
			err = entity.Delete(e.t.Context(), e.store, x)
		case x.Status.Phase == disk.DiskPhasePending:
			taken := e.now
			x.Status.Phase, x.Status.TakenAt = disk.DiskPhaseReady, &taken
			err = entity.UpdateStatus(e.t.Context(), e.store, x)
		}
		if err != nil {
			e.t.Fatal(err)
		}
	}
}

// want compares the names of the snapshots.
func (e *timesEnv) want(names ...string) {
	e.t.Helper()
	var got []string
	for _, x := range e.all() {
		got = append(got, strings.TrimPrefix(x.Spec.Name, "auto-"))
	}
	slices.Sort(got)
	if !slices.Equal(got, names) {
		e.t.Errorf("snapshots %v, not %v", got, names)
	}
}

// A schedule counts in its time zone, from when it was set. Of times at which no
// server ran it takes one snapshot, and a snapshot that was deleted by hand is not
// taken again.
func TestSnapshotTimes(t *testing.T) {
	since := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	e := newTimesEnv(t, func(x *disk.DiskSpec) {
		x.SnapshotSchedule, x.SnapshotTimeZone, x.SnapshotSince = "30 3 * * *", "Europe/Berlin", &since
	})
	if again := e.at("2026-07-02T01:29:59Z"); again != time.Second {
		t.Errorf("one second before its time: again after %s", again)
	}
	e.want()
	e.at("2026-07-02T01:30:00Z")
	e.want("20260702-013000")
	e.at("2026-07-02T10:00:00Z")
	e.want("20260702-013000")
	e.at("2026-07-06T10:00:00Z")
	e.want("20260702-013000", "20260706-013000")
	for _, x := range e.all() {
		if err := entity.Delete(t.Context(), e.store, x); err != nil {
			t.Fatal(err)
		}
	}
	e.at("2026-07-06T11:00:00Z")
	e.want()
	e.at("2026-11-07T02:30:00Z") // clocks went back meanwhile
	e.want("20261107-023000")
}

// Snapshots that are too old are deleted, except the newest one and those that were
// taken by hand, and the controller comes back when the next one is.
func TestSnapshotsAreKeptForATime(t *testing.T) {
	since, keepFor := time.Date(2026, 7, 1, 0, 0, 0, 0, time.UTC), 49*time.Hour
	e := newTimesEnv(t, func(x *disk.DiskSpec) {
		x.SnapshotSchedule, x.SnapshotSince, x.SnapshotKeep, x.SnapshotKeepFor = "0 3 * * *", &since, 10, &keepFor
	})
	if err := entity.Create(t.Context(), e.store, disks.NewSnapshot(e.disk, "by-hand")); err != nil {
		t.Fatal(err)
	}
	for _, day := range []string{"01", "02", "03", "04"} {
		e.at("2026-07-" + day + "T03:00:00Z")
	}
	e.want("20260702-030000", "20260703-030000", "20260704-030000", "by-hand")
	if again := e.at("2026-07-04T03:59:50Z"); again != 10*time.Second {
		t.Errorf("ten seconds before one is too old: again after %s", again)
	}
	e.at("2026-07-04T04:00:00Z")
	e.want("20260703-030000", "20260704-030000", "by-hand")
	if _, err := entity.ModifySpec(t.Context(), e.store, e.disk.GetID(), func(d *disk.Disk) error {
		d.Spec.SnapshotSchedule = "0 0 1 1 *"
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	e.at("2026-12-31T00:00:00Z")
	e.want("20260704-030000", "by-hand")
}

// dying is the store of a server that dies with its n-th write, before or after
// that takes effect.
type dying struct {
	entity.Store
	before bool

	mu   sync.Mutex
	left int
}

func (d *dying) Txn(ctx context.Context, req entity.TxnRequest) (entity.TxnResult, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.left--
	if d.left < 0 || d.left == 0 && d.before {
		return entity.TxnResult{}, errs.New(errs.Unavailable, "the server is dead")
	}
	res, err := d.Store.Txn(ctx, req)
	if d.left == 0 {
		return entity.TxnResult{}, errs.New(errs.Unavailable, "the server is dead")
	}
	return res, err
}

// Whichever write is the last of its server, each time has one snapshot and one
// copy, and old ones are deleted once.
func TestScheduleDiesAfterEveryWrite(t *testing.T) {
	for _, before := range []bool{true, false} {
		for n := 1; n <= 3; n++ {
			since := time.Date(2026, 7, 1, 0, 0, 0, 0, time.UTC)
			e := newTimesEnv(t, func(x *disk.DiskSpec) {
				x.SnapshotSchedule, x.SnapshotSince, x.SnapshotKeep, x.CopyTo = "@hourly", &since, 2, "/copies"
			})
			e.at("2026-07-01T01:00:00Z")
			e.at("2026-07-01T02:00:00Z")
			e.now = time.Date(2026, 7, 1, 3, 0, 0, 0, time.UTC)
			first := e.controller(&dying{Store: e.store, before: before, left: n})
			for range 3 {
				_, _ = first.Reconcile(t.Context(), e.disk.ID)
				e.take()
			}
			e.at("2026-07-01T03:00:01Z")
			e.at("2026-07-01T03:30:00Z")
			// The first snapshot is kept as long as it is copied.
			e.want("20260701-010000", "20260701-020000", "20260701-030000")
			copies, err := disks.Copies(t.Context(), e.store, e.disk.GetID())
			if err != nil || len(copies) != 1 {
				t.Errorf("%d copies, %v", len(copies), err)
			}
			for _, c := range copies {
				c.Status.Phase = disk.DiskPhaseReady
				if err := entity.UpdateStatus(t.Context(), e.store, c); err != nil {
					t.Fatal(err)
				}
			}
			e.at("2026-07-01T03:31:00Z")
			e.want("20260701-020000", "20260701-030000")
		}
	}
}
