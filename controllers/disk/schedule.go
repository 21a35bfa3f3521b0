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

// Schedule takes the snapshots that disks want regularly, has them copied if a
// disk names a store for copies, and deletes the oldest of both beyond the numbers
// that a disk keeps. It keeps a snapshot that is being copied, and has no next one
// copied until then: while a store does not answer, copies do not pile up.
type Schedule struct {
	Store  entity.Store
	Logger *slog.Logger
	Now    func() time.Time // nil: time.Now
}

// Controller describes the schedule to the controller runtime.
func (s *Schedule) Controller() kit.Controller {
	return kit.Controller{
		Name: "disk-schedule", Kind: disk.DiskKind, Reconcile: s.Reconcile,
		Watches: []kit.Source{
			kit.Map(func(s *disk.DiskSnapshot) []id.Disk { return kit.Key(s.Spec.Disk) }),
			kit.Map(func(c *disk.DiskCopy) []id.Disk {
				if c.Spec.Disk == "" {
					return nil
				}
				return kit.Key(c.Spec.Disk)
			}),
		},
		Access: kit.Access{
			Creates: []*schema.Kind{disk.DiskSnapshotKind, disk.DiskCopyKind},
			Shares: []kit.Share{{
				Field: kit.Field{Kind: disk.DiskSnapshotKind, Path: "spec.deleted"}, Owner: "api", Why: "to delete an old one that it has taken", When: isScheduled,
			}, {
				Field: kit.Field{Kind: disk.DiskCopyKind, Path: "spec.deleted"}, Owner: "api", Why: "to delete an old one that it has made", When: isScheduledCopy,
			}},
		},
	}
}

func isScheduled(before, _ schema.Object) bool { return before.(*disk.DiskSnapshot).Spec.Scheduled }

func isScheduledCopy(before, _ schema.Object) bool { return before.(*disk.DiskCopy).Spec.Scheduled }

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
	copies, err := s.copies(ctx, d)
	if err != nil {
		return 0, err
	}
	if err := s.expire(ctx, d, all, copies); err != nil {
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
	return *d.Spec.SnapshotEvery, s.take(ctx, d, now, copies)
}

// copies returns the scheduled copies of a disk, the newest first, and deletes
// those beyond the number of complete ones that the disk keeps.
func (s *Schedule) copies(ctx context.Context, d *disk.Disk) ([]*disk.DiskCopy, error) {
	all, err := disks.Copies(ctx, s.Store, d.GetID())
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(c *disk.DiskCopy) bool { return !c.Spec.Scheduled || c.Spec.Deleted })
	slices.SortFunc(all, func(a, b *disk.DiskCopy) int { return b.CreatedAt.Compare(a.CreatedAt) })
	complete := int64(0)
	for _, c := range all {
		switch c.Status.Phase {
		case disk.DiskPhaseReady:
			if complete++; complete <= d.Spec.CopyKeep {
				continue
			}
		case disk.DiskPhaseFailed:
			s.Logger.Warn("scheduled copy of a disk failed", "volume", string(d.ID), "copy", string(c.ID), "error", c.Status.Message)
		default:
			continue
		}
		c.Spec.Deleted = true
		if err := entity.UpdateSpec(ctx, s.Store, c); err != nil && !errs.Is(err, errs.NotFound) {
			return nil, err
		}
	}
	return all, nil
}

// take has a snapshot taken, and copied if the disk wants that and none of the
// copies is still being made.
func (s *Schedule) take(ctx context.Context, d *disk.Disk, now time.Time, copies []*disk.DiskCopy) error {
	snap := disks.NewSnapshot(d, "auto-"+now.UTC().Format("20060102-150405"))
	snap.Spec.Scheduled = true
	create, err := entity.CreateOp(snap)
	if err != nil {
		return err
	}
	ops := []entity.Op{create}
	if d.Spec.CopyTo != "" && !slices.ContainsFunc(copies, disks.Copying) {
		c := disks.NewCopy(d, snap.ID, d.Spec.CopyTo)
		c.Spec.Scheduled = true
		if create, err = entity.CreateOp(c); err != nil {
			return err
		}
		ops = append(ops, create)
	}
	if _, err = s.Store.Txn(ctx, entity.TxnRequest{Ops: ops}); errs.Is(err, errs.AlreadyExists) {
		return nil
	}
	return err
}

// expire deletes scheduled snapshots, of which the newest is first, beyond the
// number of ready ones that the disk keeps, except those that are being copied.
func (s *Schedule) expire(ctx context.Context, d *disk.Disk, all []*disk.DiskSnapshot, copies []*disk.DiskCopy) error {
	ready := int64(0)
	for _, x := range all {
		if x.Status.Phase == disk.DiskPhaseReady {
			ready++
		}
		if ready <= d.Spec.SnapshotKeep && x.Status.Phase != disk.DiskPhaseFailed {
			continue
		}
		if slices.ContainsFunc(copies, func(c *disk.DiskCopy) bool { return disks.Copying(c) && c.Spec.Snapshot == string(x.ID) }) {
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
