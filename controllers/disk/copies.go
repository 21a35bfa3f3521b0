package disk

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/disk"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/controllers/kit"
	"miren.dev/runtime/domain/disks"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// copyWorkers bounds how many copies are made at a time. snapshotWait is the wait
// for the snapshot of a schedule that is being taken, and otherNode is how often a
// disk of another node, or a copy that another node makes, is reconciled.
// wantedCheck is how often a copy that is being made is read for its deletion.
const (
	copyWorkers  = 2
	snapshotWait = time.Second
	otherNode    = time.Minute
	wantedCheck  = time.Second
)

// Copies copies snapshots of disks to other stores.
//
//	pending -> ready -> (deleting)
//	      \-> failed
//
// A copy without a snapshot has one taken first, by the controller of the disk,
// and deletes it when the copy is complete. status.volume is written before
// anything is sent, so that a deletion finds what a copy has sent. The copies of a
// disk are made by the node that has it, or had it last, unless that is down.
type Copies struct {
	Store        entity.Store
	Volumes      Volumes
	Node         id.Node
	DefaultStore string // URL of the store of disks that name none
	Logger       *slog.Logger
	Now          func() time.Time // nil: time.Now
}

// Controller describes the reconciler to the controller runtime.
func (r *Copies) Controller() kit.Controller {
	return kit.Controller{
		Name: "disk-copy", Kind: disk.DiskCopyKind, Reconcile: r.Reconcile, Workers: copyWorkers,
		Watches: []kit.Source{kit.Map(func(s *disk.DiskSnapshot) []id.DiskCopy {
			if s.Spec.Copy == "" {
				return nil
			}
			return kit.Key(id.DiskCopy(s.Spec.Copy))
		})},
		Access: kit.Access{
			Reads:   []*schema.Kind{disk.DiskKind, core.NodeKind, core.NodeLeaseKind},
			Creates: []*schema.Kind{disk.DiskSnapshotKind},
			Deletes: []*schema.Kind{disk.DiskCopyKind},
			Owns:    kit.Fields(disk.DiskCopyKind, "status"),
			Shares: []kit.Share{{
				Field: kit.Field{Kind: disk.DiskSnapshotKind, Path: "spec.deleted"}, Owner: "api", Why: "to delete one that was taken for a copy", When: isForCopy,
			}},
		},
	}
}

func isForCopy(before, _ schema.Object) bool { return before.(*disk.DiskSnapshot).Spec.Copy != "" }

// Reconcile makes one copy match and returns after how long to reconcile it again
// (0: only after a change).
func (r *Copies) Reconcile(ctx context.Context, cid schema.ID) (time.Duration, error) {
	c, err := entity.Get[disk.DiskCopy](ctx, r.Store, cid)
	if errs.Is(err, errs.NotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	d, mine, err := r.disk(ctx, c)
	if err != nil {
		return 0, err
	}
	if !mine {
		return otherNode, nil
	}
	var again time.Duration
	switch {
	case c.Spec.Deleted:
		err = r.delete(ctx, c)
	case c.Status.Phase == disk.DiskPhasePending:
		again, err = r.copy(ctx, c, d)
	default:
		err = r.dropSnapshot(ctx, c)
	}
	if err != nil && ctx.Err() == nil {
		err = r.report(ctx, c, err)
	}
	return again, err
}

// disk returns the disk of a copy, nil if it is deleted, and whether this node
// is the one that makes the copy.
func (r *Copies) disk(ctx context.Context, c *disk.DiskCopy) (d *disk.Disk, mine bool, err error) {
	if c.Spec.Disk == "" {
		return nil, true, nil
	}
	d, err = entity.Get[disk.Disk](ctx, r.Store, c.Spec.Disk)
	if errs.Is(err, errs.NotFound) {
		return nil, true, nil
	}
	if err != nil {
		return nil, false, err
	}
	h, err := holderOf(ctx, r.Store, d, r.Node)
	return d, !h.elsewhere(d), err
}

// report records why a copy is not complete. It has failed unless a part of the
// machine or a store is unavailable.
func (r *Copies) report(ctx context.Context, c *disk.DiskCopy, cause error) error {
	if errs.Is(cause, errs.Conflict) {
		return cause
	}
	before := c.Status
	c.Status.Message = message(cause)
	retry := errs.Is(cause, errs.Unavailable) || c.Status.Phase != disk.DiskPhasePending || c.Spec.Deleted
	if !retry {
		c.Status.Phase = disk.DiskPhaseFailed
	}
	if c.Status.Message != before.Message || c.Status.Phase != before.Phase {
		if err := entity.UpdateStatus(ctx, r.Store, c); err != nil && !errs.Is(err, errs.NotFound) {
			return err
		}
	}
	if retry {
		return cause
	}
	r.Logger.Error("disk cannot be copied", "copy", string(c.ID), "error", cause)
	return kit.Terminal(cause)
}

// copy makes a copy, or returns after how long its snapshot may be ready.
func (r *Copies) copy(ctx context.Context, c *disk.DiskCopy, d *disk.Disk) (time.Duration, error) {
	if d == nil || d.Spec.Deleted {
		return 0, errs.New(errs.FailedPrecondition, "the disk %s was deleted before it was copied", c.Spec.DiskName)
	}
	snap, err := r.snapshot(ctx, c, d)
	if err != nil {
		return 0, err
	}
	switch snap.Status.Phase {
	case disk.DiskPhasePending:
		return snapshotWait, nil // the disk's controller takes it
	case disk.DiskPhaseFailed:
		return 0, errs.New(errs.FailedPrecondition, "its snapshot cannot be taken: %s", snap.Status.Message)
	}
	if c.Status.Volume == "" {
		c.Status.Volume, c.Status.TakenAt, c.Status.SizeBytes = d.Status.Volume, snap.Status.TakenAt, snap.Status.SizeBytes
		if err := entity.UpdateStatus(ctx, r.Store, c); err != nil {
			return 0, err
		}
	}
	wanted, stop := r.whileWanted(ctx, c)
	defer stop()
	done, err := r.Volumes.Copy(wanted, cmp.Or(d.Spec.Store, r.DefaultStore), c.Status.Volume, string(snap.ID), c.Spec.Store, string(c.ID))
	if wanted.Err() != nil {
		return 0, ctx.Err() // its deletion is reconciled next
	}
	if err != nil {
		return 0, err
	}
	now := time.Now()
	if r.Now != nil {
		now = r.Now()
	}
	c.Status.Phase, c.Status.Message, c.Status.CopiedAt, c.Status.DataBytes, c.Status.SentBytes = disk.DiskPhaseReady, "", &now, &done.Bytes, &done.Sent
	if err := entity.UpdateStatus(ctx, r.Store, c); err != nil {
		return 0, err
	}
	return 0, r.dropSnapshot(ctx, c)
}

// whileWanted returns a context that ends when the copy is to be deleted. The
// caller calls stop.
func (r *Copies) whileWanted(ctx context.Context, c *disk.DiskCopy) (wanted context.Context, stop func()) {
	wanted, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(wantedCheck)
		defer tick.Stop()
		for {
			select {
			case <-wanted.Done():
				return
			case <-tick.C:
			}
			now, err := entity.Get[disk.DiskCopy](wanted, r.Store, c.ID)
			if err == nil && now.Spec.Deleted {
				cancel()
				return
			}
		}
	}()
	return wanted, func() { cancel(); <-done }
}

// snapshot returns the snapshot that is copied; one that is missing is created.
func (r *Copies) snapshot(ctx context.Context, c *disk.DiskCopy, d *disk.Disk) (*disk.DiskSnapshot, error) {
	if c.Spec.Snapshot != "" {
		s, err := entity.Get[disk.DiskSnapshot](ctx, r.Store, id.DiskSnapshot(c.Spec.Snapshot))
		if errs.Is(err, errs.NotFound) || err == nil && s.Spec.Deleted {
			return nil, errs.New(errs.FailedPrecondition, "its snapshot was deleted before it was copied")
		}
		return s, err
	}
	s, err := r.taken(ctx, c)
	if s != nil || err != nil {
		return s, err
	}
	s = disks.NewSnapshot(d, string(c.ID))
	s.Spec.Copy = string(c.ID)
	return s, entity.Create(ctx, r.Store, s)
}

// taken returns the snapshot that was taken for a copy, nil if there is none.
func (r *Copies) taken(ctx context.Context, c *disk.DiskCopy) (*disk.DiskSnapshot, error) {
	if c.Spec.Disk == "" {
		return nil, nil
	}
	all, _, err := entity.List[disk.DiskSnapshot](ctx, r.Store, entity.Where(disk.DiskSnapshotAttrDisk, c.Spec.Disk))
	for _, s := range all {
		if s.Spec.Copy == string(c.ID) {
			return s, err
		}
	}
	return nil, err
}

// dropSnapshot deletes the snapshot that was taken for a copy.
func (r *Copies) dropSnapshot(ctx context.Context, c *disk.DiskCopy) error {
	s, err := r.taken(ctx, c)
	if s == nil || err != nil || s.Spec.Deleted {
		return err
	}
	s.Spec.Deleted = true
	if err := entity.UpdateSpec(ctx, r.Store, s); err != nil && !errs.Is(err, errs.NotFound) {
		return err
	}
	return nil
}

// delete deletes a copy with its data, and then the entity.
func (r *Copies) delete(ctx context.Context, c *disk.DiskCopy) error {
	if c.Status.Phase != disk.DiskPhaseDeleting {
		c.Status.Phase, c.Status.Message = disk.DiskPhaseDeleting, ""
		if err := entity.UpdateStatus(ctx, r.Store, c); err != nil {
			return err
		}
	}
	if err := r.dropSnapshot(ctx, c); err != nil {
		return err
	}
	if c.Status.Volume != "" {
		if err := r.Volumes.DeleteCopy(ctx, c.Spec.Store, c.Status.Volume, string(c.ID)); err != nil {
			return errs.Wrap(err, "delete the copy")
		}
	}
	return entity.Delete(ctx, r.Store, c)
}
