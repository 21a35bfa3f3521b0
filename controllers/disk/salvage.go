package disk

import (
	"context"

	"miren.dev/runtime/api/disk"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// salvage makes the volume of a new disk of the log that a takeover of its source has left
// on this node.
func (r *Reconciler) salvage(ctx context.Context, d *disk.Disk) error {
	source, unlock, err := r.lockSource(ctx, d)
	if err != nil {
		return err
	}
	defer unlock()
	if source.Status.Node != r.Node { // another node has it, but the disk daemon here may have its log open still
		if err := r.discard(ctx, source); errs.Is(err, errs.FailedPrecondition) {
			return errs.New(errs.Unavailable, "its log is in use on this node: %w", err)
		} else if err != nil {
			return err
		}
	}
	made, err := r.Volumes.Salvage(ctx, r.store(source), source.Status.Volume, d.Spec.SalvageTakeover, string(d.ID))
	if err != nil {
		return errs.Wrap(err, "salvage the log of disk %s", source.Name)
	}
	d.Status.Volume, d.Status.SizeBytes, d.Status.SalvagedBytes, d.Status.SalvageDamaged = made.Volume, made.SizeBytes, made.Bytes, made.Damaged
	r.Logger.Info("a disk was salvaged", "volume", string(d.ID), "source", string(source.ID), "bytes", made.Bytes)
	return r.made(ctx, d)
}

// salvager reports whether this node erases a disk that has no volume yet: one that is
// salvaged is for the node that salvages it, as long as that node exists.
func (r *Reconciler) salvager(ctx context.Context, d *disk.Disk) (bool, error) {
	if d.Spec.SalvageNode == "" {
		return true, nil
	}
	h, err := r.holder(ctx, d)
	return h == nil || h.gone, err
}

// endSalvage removes what is half made of a disk that is erased.
func (r *Reconciler) endSalvage(ctx context.Context, d *disk.Disk) error {
	unlock, err := r.locks.lock(ctx, d.Spec.SourceDisk)
	if err != nil {
		return err
	}
	defer unlock()
	// A volume has the name of its disk, also when that does not exist any more.
	err = r.Volumes.EndSalvage(ctx, r.store(d), d.Spec.SourceDisk, d.Spec.SalvageTakeover)
	return errs.Wrap(err, "end the salvage of the log of disk %s", schema.ID(d.Spec.SourceDisk))
}
