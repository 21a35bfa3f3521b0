package disk_test

import (
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/api"
	"miren.dev/runtime/api/disk"
	ctldisk "miren.dev/runtime/controllers/disk"
	"miren.dev/runtime/domain/disks"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/testsupport/pgtest"
)

func TestScheduledSnapshots(t *testing.T) {
	ctx, store := t.Context(), pgtest.Store(t, api.Kinds()...)
	if err := projects.Ensure(ctx, store, projects.Default); err != nil {
		t.Fatal(err)
	}
	project, err := projects.Find(ctx, store, "")
	if err != nil {
		t.Fatal(err)
	}
	d := disk.NewDisk()
	every := time.Hour
	d.Project, d.Name, d.Spec.SizeBytes, d.Spec.SnapshotEvery, d.Spec.SnapshotKeep = project, "data", disk.MinSize, &every, 2
	if err := entity.Create(ctx, store, d); err != nil {
		t.Fatal(err)
	}
	later := time.Duration(0)
	s := &ctldisk.Schedule{Store: store, Logger: slog.New(slog.DiscardHandler), Now: func() time.Time { return time.Now().Add(later) }}
	reconcile := func() time.Duration {
		t.Helper()
		again, err := s.Reconcile(ctx, d.ID)
		if err != nil {
			t.Fatal(err)
		}
		return again
	}
	// taken returns the snapshots by age, and marks them ready as the disk's controller does.
	taken := func() (names []string) {
		t.Helper()
		all, _, err := entity.List[disk.DiskSnapshot](ctx, store, entity.Where(disk.DiskSnapshotAttrDisk, d.GetID()))
		if err != nil {
			t.Fatal(err)
		}
		slices.SortFunc(all, func(a, b *disk.DiskSnapshot) int { return a.CreatedAt.Compare(b.CreatedAt) })
		for _, x := range all {
			if x.Status.Phase == disk.DiskPhasePending {
				x.Status.Phase = disk.DiskPhaseReady
				if err := entity.UpdateStatus(ctx, store, x); err != nil {
					t.Fatal(err)
				}
			}
			if !x.Spec.Deleted {
				names = append(names, x.Spec.Name)
			}
		}
		return names
	}
	if reconcile(); len(taken()) != 0 {
		t.Errorf("a disk that is not made has snapshots: %v", taken())
	}
	d.Status.Phase = disk.DiskPhaseReady
	if err := entity.UpdateStatus(ctx, store, d); err != nil {
		t.Fatal(err)
	}
	byHand := disks.NewSnapshot(d, "by-hand")
	if err := entity.Create(ctx, store, byHand); err != nil {
		t.Fatal(err)
	}
	if again := reconcile(); again != every || len(taken()) != 2 {
		t.Errorf("again after %s, snapshots %v", again, taken())
	}
	if again := reconcile(); again > every || again < every-time.Minute || len(taken()) != 2 {
		t.Errorf("before the next one: again after %s, snapshots %v", again, taken())
	}
	for range 3 {
		later += every + time.Second
		reconcile()
		taken()
		reconcile() // deletes what is beyond the number
	}
	if names := taken(); len(names) != 3 || names[0] != "by-hand" || !strings.HasPrefix(names[1], "auto-") {
		t.Errorf("of four scheduled ones two are kept, and the one by hand: %v", names)
	}
	if _, err := entity.ModifySpec(ctx, store, d.GetID(), func(d *disk.Disk) error { d.Spec.SnapshotEvery = nil; return nil }); err != nil {
		t.Fatal(err)
	}
	later += 100 * every
	if again := reconcile(); again != 0 || len(taken()) != 3 {
		t.Errorf("without a schedule: again after %s, snapshots %v", again, taken())
	}
}
