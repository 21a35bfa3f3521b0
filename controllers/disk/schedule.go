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
	"miren.dev/runtime/pkg/crontime"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/fault"
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
				Field: kit.Field{Kind: disk.DiskKind, Path: "spec.snapshot_counted_to"}, Owner: "api", Why: "to count a time together with its snapshot", When: counts,
			}, {
				Field: kit.Field{Kind: disk.DiskSnapshotKind, Path: "spec.deleted"}, Owner: "api", Why: "to delete an old one that it has taken", When: isScheduled,
			}, {
				Field: kit.Field{Kind: disk.DiskCopyKind, Path: "spec.deleted"}, Owner: "api", Why: "to delete an old one that it has made", When: isScheduledCopy,
			}},
		},
	}
}

func counts(_, after schema.Object) bool { return after.(*disk.Disk).Spec.SnapshotCountedTo != nil }

func isScheduled(before, _ schema.Object) bool { return before.(*disk.DiskSnapshot).Spec.Scheduled }

func isScheduledCopy(before, _ schema.Object) bool { return before.(*disk.DiskCopy).Spec.Scheduled }

// Reconcile takes the snapshot of a disk that is due, and returns after how long
// the next one is, or a snapshot is too old (0: it has no schedule).
func (s *Schedule) Reconcile(ctx context.Context, did schema.ID) (time.Duration, error) {
	d, err := entity.Get[disk.Disk](ctx, s.Store, did)
	if errs.Is(err, errs.NotFound) {
		return 0, nil
	}
	if err != nil || !scheduled(d) || d.Spec.Deleted || d.Status.Phase != disk.DiskPhaseReady {
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
	now := time.Now()
	if s.Now != nil {
		now = s.Now()
	}
	aging, err := s.expire(ctx, d, now, all, copies)
	if err != nil {
		return 0, err
	}
	due, next, err := times(d, now, all)
	if err != nil {
		return 0, kit.Terminal(err)
	}
	if !due.IsZero() {
		if err := s.take(ctx, d, due, copies); err != nil {
			return 0, err
		}
	}
	if aging > 0 {
		next = min(next, aging)
	}
	return next, nil
}

func scheduled(d *disk.Disk) bool {
	return d.Spec.SnapshotEvery != nil || d.Spec.SnapshotSchedule != ""
}

// recheck is how often the clock is compared with the times of a disk, since it
// may be set, or stand still while the machine does.
const recheck = time.Minute

// times returns the time of the schedule that is due, zero if none is, and after
// how long the next one is. Of several that are due only the last counts. all are
// the scheduled snapshots, of which the newest is first.
func times(d *disk.Disk, now time.Time, all []*disk.DiskSnapshot) (due time.Time, next time.Duration, err error) {
	counted := time.Time{}
	if d.Spec.SnapshotCountedTo != nil {
		counted = *d.Spec.SnapshotCountedTo
	}
	if d.Spec.SnapshotSchedule == "" {
		if len(all) > 0 && all[0].CreatedAt.After(counted) {
			counted = all[0].CreatedAt
		}
		if wait := counted.Add(*d.Spec.SnapshotEvery).Sub(now); !counted.IsZero() && wait > 0 {
			return due, min(wait, *d.Spec.SnapshotEvery), nil
		}
		return now, *d.Spec.SnapshotEvery, nil
	}
	x, err := crontime.Parse(d.Spec.SnapshotSchedule, d.Spec.SnapshotTimeZone)
	if err != nil {
		return due, 0, errs.Wrap(err, "schedule of disk %s", d.Name)
	}
	if since := d.Spec.SnapshotSince; since != nil && since.After(counted) {
		counted = *since
	}
	if counted.IsZero() {
		counted = d.CreatedAt
	}
	due, _ = x.Due(counted, now)
	next = recheck
	if at := x.Next(now); !at.IsZero() {
		next = min(next, at.Sub(now))
	}
	return due, next, nil
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

// take has the snapshot of a time taken, and copied if the disk wants that and
// none of the copies is still being made. The time is counted with it, on condition
// that the disk did not change: two servers, or one that is killed and started
// again, take one snapshot for each time.
func (s *Schedule) take(ctx context.Context, d *disk.Disk, due time.Time, copies []*disk.DiskCopy) error {
	snap := disks.NewSnapshot(d, "auto-"+due.UTC().Format("20060102-150405"))
	snap.Spec.Scheduled = true
	create, err := entity.CreateOp(snap)
	if err != nil {
		return err
	}
	d.Spec.SnapshotCountedTo = &due
	count, err := entity.UpdateSpecOp(d)
	if err != nil {
		return err
	}
	ops := []entity.Op{count, create}
	if d.Spec.CopyTo != "" && !slices.ContainsFunc(copies, disks.Copying) {
		c := disks.NewCopy(d, snap.ID, d.Spec.CopyTo)
		c.Spec.Scheduled = true
		if create, err = entity.CreateOp(c); err != nil {
			return err
		}
		ops = append(ops, create)
	}
	fault.Point("disk-schedule", "take", fault.Before)
	_, err = s.Store.Txn(ctx, entity.TxnRequest{Ops: ops})
	fault.Point("disk-schedule", "take", fault.After)
	if errs.Is(err, errs.AlreadyExists) { // a snapshot with this name was taken by hand
		return entity.UpdateSpec(ctx, s.Store, d)
	}
	return err
}

// expire deletes scheduled snapshots, of which the newest is first, that the disk
// does not keep: ready ones beyond their number, those that are too old except
// the newest ready one, and those that failed. It keeps those that are being copied. It
// returns after how long the next one is too old, 0 if none will be.
func (s *Schedule) expire(ctx context.Context, d *disk.Disk, now time.Time, all []*disk.DiskSnapshot, copies []*disk.DiskCopy) (aging time.Duration, err error) {
	ready := int64(0)
	for _, x := range all {
		isReady, failed := x.Status.Phase == disk.DiskPhaseReady, x.Status.Phase == disk.DiskPhaseFailed
		if isReady {
			ready++
		}
		keep := ready <= d.Spec.SnapshotKeep && !failed
		if keep && isReady && ready > 1 && d.Spec.SnapshotKeepFor != nil {
			left := age(x).Add(*d.Spec.SnapshotKeepFor).Sub(now)
			if keep = left > 0; keep && (aging == 0 || left < aging) {
				aging = left
			}
		}
		if keep {
			continue
		}
		if slices.ContainsFunc(copies, func(c *disk.DiskCopy) bool { return disks.Copying(c) && c.Spec.Snapshot == string(x.ID) }) {
			continue
		}
		if failed {
			s.Logger.Warn("scheduled snapshot of a disk failed", "volume", string(d.ID), "error", x.Status.Message)
		}
		x.Spec.Deleted = true
		if err := entity.UpdateSpec(ctx, s.Store, x); err != nil && !errs.Is(err, errs.NotFound) {
			return 0, err
		}
	}
	return aging, nil
}

// age returns the time from which the age of a snapshot counts.
func age(x *disk.DiskSnapshot) time.Time {
	if x.Status.TakenAt != nil {
		return *x.Status.TakenAt
	}
	return x.CreatedAt
}
