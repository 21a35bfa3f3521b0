package disk

import (
	"cmp"
	"context"
	"time"

	"miren.dev/runtime/api/disk"
	"miren.dev/runtime/components/filesystem"
	"miren.dev/runtime/domain/disks"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
)

// attach attaches a disk to this node, formats it if it is new, and mounts it
// with the size that it is to have. The caller holds its lock.
func (r *Reconciler) attach(ctx context.Context, d *disk.Disk) error {
	takeOver, err := r.lease(ctx, d)
	if err != nil {
		return err
	}
	v, err := r.Volumes.Attach(ctx, r.store(d), d.Status.Volume, takeOver)
	if err == nil && v.Failed { // it was open here before another node had the disk
		if err = r.discard(ctx, d); err == nil {
			v, err = r.Volumes.Attach(ctx, r.store(d), d.Status.Volume, takeOver)
		}
	}
	if err != nil {
		return errs.Wrap(err, "attach")
	}
	before := d.Status
	now := time.Now()
	if d.Status.Node != r.Node || d.Status.AttachedAt == nil {
		d.Status.Node, d.Status.AttachedAt = r.Node, &now
	}
	d.Status.Device, d.Status.Home = v.Device, string(r.Node)
	if takeOver {
		least, most := Loss(&before, v.Opened)
		d.Status.TakenOverFrom = cmp.Or(string(before.Node), before.Home)
		d.Status.TakenOverAt, d.Status.LostBytes, d.Status.LostMostBytes, d.Status.LostReportedAt = &now, &least, most, before.ReportedAt
		r.Logger.Warn("a disk of a node that is down was taken over", "volume", string(d.ID), "node", before.Home,
			"lost_bytes", least, "lost_most_bytes", bound(most), "reported_at", before.ReportedAt)
		forgetReport(&d.Status)
	}
	news := v.Unsent.Report(&d.Status, now)
	if v.SizeBytes < d.Spec.SizeBytes {
		if err := r.Volumes.Resize(ctx, d.Status.Volume, d.Spec.SizeBytes); err != nil {
			return errs.Wrap(err, "resize the volume")
		}
		v.SizeBytes = d.Spec.SizeBytes
	}
	d.Status.Message = ""
	if err := r.mount(ctx, d, v); err != nil {
		return err
	}
	d.Status.Phase = disk.DiskPhaseReady
	if d.Spec.Deleted {
		d.Status.Phase = before.Phase
	}
	due := before.ReportedAt == nil || now.Sub(*before.ReportedAt) >= reportEvery
	if same(before, d.Status) && !(news && due) {
		return nil
	}
	return entity.UpdateStatus(ctx, r.Store, d)
}

// mount mounts the file system of an attached disk; a new disk gets one first.
func (r *Reconciler) mount(ctx context.Context, d *disk.Disk, v Volume) error {
	dir, kind := r.dir(d.ID), filesystem.Kind(d.Spec.FileSystem)
	mounted, err := filesystem.Device(dir)
	if err != nil {
		return err
	}
	if mounted != "" && mounted != v.Device { // of a device that is gone
		r.Logger.Warn("the device of a mounted disk is gone", "volume", string(d.ID), "device", mounted)
		if err := r.lose(ctx, d); err != nil {
			return err
		}
		if err := filesystem.Abandon(dir); err != nil {
			return err
		}
		mounted = ""
	}
	if !d.Status.Formatted {
		// No sandbox has ever mounted it: it has half a file system.
		if err := filesystem.Unmount(dir); err != nil {
			return err
		}
		if err := filesystem.Make(ctx, v.Device, kind); err != nil {
			return errs.Wrap(err, "format")
		}
		if err := filesystem.Mount(v.Device, dir, kind); err != nil {
			return err
		}
		if err := filesystem.Open(dir); err != nil {
			return err
		}
		d.Status.Formatted, d.Status.SizeBytes = true, v.SizeBytes
		return nil
	}
	grow := d.Status.SizeBytes < v.SizeBytes
	if grow && !filesystem.GrowsMounted(kind) {
		if err := filesystem.Unmount(dir); err != nil {
			return err
		}
		mounted = ""
		switch err := filesystem.GrowUnmounted(ctx, v.Device); {
		case err == nil:
			d.Status.SizeBytes = v.SizeBytes
		case errs.Is(err, errs.FailedPrecondition): // sandboxes go on with the size that it has
			d.Status.Message = "it is larger when no sandbox has it mounted any more: this machine cannot let a mounted ext4 grow (CAP_SYS_RESOURCE)"
		default:
			return errs.Wrap(err, "let the file system grow")
		}
		grow = false
	}
	if mounted == "" {
		if err := filesystem.Mount(v.Device, dir, kind); err != nil {
			return err
		}
	}
	if grow {
		if err := filesystem.Grow(ctx, v.Device, dir, kind); err != nil {
			return errs.Wrap(err, "let the file system grow")
		}
		d.Status.SizeBytes = v.SizeBytes
	}
	return nil
}

// detach takes a disk away from this node. It returns when the store has every
// write; FailedPrecondition: the disk is still in use. The caller holds its lock.
func (r *Reconciler) detach(ctx context.Context, d *disk.Disk) error {
	if d.Status.Node != r.Node {
		return nil
	}
	dir := r.dir(d.ID)
	if mounted, err := filesystem.Device(dir); err != nil {
		return err
	} else if mounted != "" {
		if used, err := filesystem.Used(dir); err == nil {
			d.Status.UsedBytes = &used
		}
	}
	if err := filesystem.Unmount(dir); err != nil {
		return err
	}
	err := r.Volumes.Detach(ctx, d.Status.Volume)
	if errs.Is(err, errs.NotFound) {
		// An earlier detach may have left writes in the log that the store does not
		// have: opening the volume sends them.
		_, err = r.Volumes.Attach(ctx, r.store(d), d.Status.Volume, false)
		switch {
		case err == nil:
			err = r.Volumes.Detach(ctx, d.Status.Volume)
		case d.Spec.Deleted && isLost(err):
			err = nil
		}
	}
	if err != nil {
		return errs.Wrap(err, "detach")
	}
	d.Status.Node, d.Status.Device, d.Status.AttachedAt, d.Status.Message = "", "", nil, ""
	forgetReport(&d.Status)
	if !local(d) {
		d.Status.Home = ""
	}
	return entity.UpdateStatus(ctx, r.Store, d)
}

// recordUse records how much of a mounted disk is used, if that has changed by a
// hundredth of its size.
func (r *Reconciler) recordUse(ctx context.Context, d *disk.Disk) error {
	used, err := filesystem.Used(r.dir(d.ID))
	if err != nil {
		return err
	}
	if old := d.Status.UsedBytes; old != nil && max(used-*old, *old-used) < d.Status.SizeBytes/100 {
		return nil
	}
	d.Status.UsedBytes = &used
	return entity.UpdateStatus(ctx, r.Store, d)
}

// mounts returns the mounts of a disk on this node, and releases those of
// sandboxes that have ended.
func (r *Reconciler) mounts(ctx context.Context, d *disk.Disk) ([]*disk.DiskMount, error) {
	all, err := disks.Mounts(ctx, r.Store, d.GetID())
	if err != nil {
		return nil, err
	}
	var out []*disk.DiskMount
	for _, m := range all {
		if m.Spec.Node != r.Node {
			continue
		}
		ended, err := disks.Ended(ctx, r.Store, m)
		if err != nil {
			return nil, err
		}
		if !ended {
			out = append(out, m)
			continue
		}
		if err := disks.Release(ctx, r.Store, m.Spec.Sandbox); err != nil {
			return nil, err
		}
	}
	return out, nil
}
