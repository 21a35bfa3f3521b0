package disk

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"miren.dev/runtime/api/disk"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/controllers/kit"
	"miren.dev/runtime/domain/disks"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// Schedule takes the snapshots that disks want regularly, and deletes the oldest
// of them beyond the number that a disk keeps.
type Schedule struct {
	Store  entity.Store
	Logger *slog.Logger
	Now    func() time.Time // nil: time.Now
}

// Controller describes the schedule to the controller runtime.
func (s *Schedule) Controller() kit.Controller {
	return kit.Controller{
		Name: "disk-schedule", Kind: disk.DiskKind, Reconcile: s.Reconcile,
		Watches: []kit.Source{kit.Map(func(s *disk.DiskSnapshot) []id.Disk { return kit.Key(s.Spec.Disk) })},
		Access: kit.Access{
			Creates: []*schema.Kind{disk.DiskSnapshotKind},
			Shares: []kit.Share{{
				Field: kit.Field{Kind: disk.DiskSnapshotKind, Path: "spec.deleted"}, Owner: "api", Why: "to delete an old one that it has taken", When: isScheduled,
			}},
		},
	}
}

func isScheduled(before, _ schema.Object) bool { return before.(*disk.DiskSnapshot).Spec.Scheduled }

// Reconcile takes the snapshot of a disk that is due, and returns after how long
// the next one is (0: it has no schedule).
func (s *Schedule) Reconcile(ctx context.Context, did schema.ID) (time.Duration, error) {
	d, err := entity.Get[disk.Disk](ctx, s.Store, did)
	if errs.Is(err, errs.NotFound) {
		return 0, nil
	}
	if err != nil || d.Spec.SnapshotEvery == nil || d.Spec.Deleted || d.Status.Phase != disk.DiskPhaseReady {
		return 0, err
	}
	all, _, err := entity.List[disk.DiskSnapshot](ctx, s.Store, entity.Where(disk.DiskSnapshotAttrDisk, d.GetID()))
	if err != nil {
		return 0, err
	}
	all = slices.DeleteFunc(all, func(x *disk.DiskSnapshot) bool { return !x.Spec.Scheduled || x.Spec.Deleted })
	slices.SortFunc(all, func(a, b *disk.DiskSnapshot) int { return b.CreatedAt.Compare(a.CreatedAt) })
	if err := s.expire(ctx, d, all); err != nil {
		return 0, err
	}
	now := time.Now()
	if s.Now != nil {
		now = s.Now()
	}
	if len(all) > 0 {
		if wait := all[0].CreatedAt.Add(*d.Spec.SnapshotEvery).Sub(now); wait > 0 {
			return wait, nil
		}
	}
	snap := disks.NewSnapshot(d, "auto-"+now.UTC().Format("20060102-150405"))
	snap.Spec.Scheduled = true
	if err := entity.Create(ctx, s.Store, snap); err != nil && !errs.Is(err, errs.AlreadyExists) {
		return 0, err
	}
	return *d.Spec.SnapshotEvery, nil
}

// expire deletes scheduled snapshots, of which the newest is first, beyond the
// number of ready ones that the disk keeps.
func (s *Schedule) expire(ctx context.Context, d *disk.Disk, all []*disk.DiskSnapshot) error {
	ready := int64(0)
	for _, x := range all {
		if x.Status.Phase == disk.DiskPhaseReady {
			ready++
		}
		if ready <= d.Spec.SnapshotKeep && x.Status.Phase != disk.DiskPhaseFailed {
			continue
		}
		if x.Status.Phase == disk.DiskPhaseFailed {
			s.Logger.Warn("scheduled snapshot of a disk failed", "volume", string(d.ID), "error", x.Status.Message)
		}
		x.Spec.Deleted = true
		if err := entity.UpdateSpec(ctx, s.Store, x); err != nil && !errs.Is(err, errs.NotFound) {
			return err
		}
	}
	return nil
}
