// Package disk makes volumes, file systems and mounts on this node match the
// disks of the store.
//
//	pending -> ready -> (deleting)      a disk; a snapshot is the same
//	      \-> failed
//
// In: disks, their snapshots and copies, and disk_mounts, which say which sandbox
// has which disk. Out: volumes in their stores, block devices of the disk daemon, file
// systems mounted below the directory of mounts, disk.status.
//
// # Attachment
//
// disk.status.node is the lease on a disk: a node writes its id there, conditional
// on no other node's id, before it opens the volume. status.home, written with it,
// stays until the store has every write, and for good if the store is a directory
// of the node; it outlives the entity of the node. Another node takes a disk over
// only when the home is down. While a disk is mounted, its home reports in status
// which writes the store does not have (unsent_cuts, by sequence number). The node that
// takes it over compares that with what the store has, and records how many bytes are
// lost at least and at most. A disk in a directory of its home cannot be taken over. The volume itself fences:
// each opener claims the next epoch in its manifest, and the writes of an earlier
// one fail.
//
// A disk is attached and mounted while a disk_mount of this node names it. When
// none does, the file system is unmounted and the disk daemon detaches the volume:
// it refuses while any process uses the block device, a sandbox that still ends
// included, and is done when the store has every write. Until then the disk stays
// this node's, and its message has the reason.
//
// # Format
//
// A disk is formatted when it is made, before any sandbox can mount it, and
// status.formatted is written before it is ready. A disk with status.formatted is
// never formatted again; one whose volume is missing never becomes an empty one.
//
// Locks: one per disk, held over everything slow. A clone holds the lock of its
// source too; sources are ready, so no cycle exists.
package disk

import (
	"context"
	"log/slog"
	"path/filepath"
	"time"

	"miren.dev/runtime/api/disk"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/components/filesystem"
	"miren.dev/runtime/controllers/kit"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// busyWait is the wait before a disk that is in use is detached again, and
// mountedCheck how often a disk that is mounted is reconciled.
const (
	busyWait     = 2 * time.Second
	mountedCheck = 30 * time.Second
)

// Volume is a volume that the disk daemon has open.
type Volume struct {
	Device    string // block device
	SizeBytes int64
	Unsent    *Unsent // nil: not known
	Opened    Opened
	Failed    bool // it serves nothing any more, as when another node has taken it over; Detach ends it
}

// Copied says what a copy consists of.
type Copied struct {
	Bytes int64 // all that it has
	Sent  int64 // bytes of these that were sent for it
}

// Salvaged is a volume that was made of a stranded log.
type Salvaged struct {
	Volume    string
	SizeBytes int64
	Bytes     *int64 // of the writes in the log; nil: not known, an earlier call has made the volume
	Damaged   *bool  // the log ended damaged; nil: not known
}

// Volumes makes volumes and attaches them on this node. Each method may be
// repeated. store is a URL; volume an id that Create or Clone returned.
type Volumes interface {
	// Create makes an empty volume with a name, or returns the one of that name.
	Create(ctx context.Context, store, name string, size int64) (volume string, sizeBytes int64, err error)
	// Clone makes a volume with the content of a snapshot, or returns the one of that name.
	Clone(ctx context.Context, store, volume, snapshot, name string) (clone string, sizeBytes int64, err error)
	// Attach makes a block device of a volume. FailedPrecondition: it is open elsewhere.
	Attach(ctx context.Context, store, volume string, takeOver bool) (Volume, error)
	// Detach returns when the store has every write and the device is gone.
	// FailedPrecondition: the device is in use, or the volume is refused: then it is
	// detached all the same. NotFound: it is not attached.
	Detach(ctx context.Context, volume string) error
	// Resize makes an attached volume and its block device larger.
	Resize(ctx context.Context, volume string, size int64) error
	// Snapshot takes a snapshot of an attached volume, if it has none of that name.
	Snapshot(ctx context.Context, volume, snapshot string) error
	DeleteSnapshot(ctx context.Context, store, volume, snapshot string) error
	// Copy copies a snapshot of a volume to the store to, where it has the name
	// as. It sends what copies there do not have. Unavailable: repeat it later.
	Copy(ctx context.Context, store, volume, snapshot, to, as string) (Copied, error)
	// DeleteCopy deletes a copy, complete or not, and what no other copy in its
	// store needs.
	DeleteCopy(ctx context.Context, store, volume, as string) error
	// Restore makes a volume with a name and the content of a copy, or completes
	// the one of that name. from is the store of the copy, store that of the
	// volume. NotFound: there is no such copy.
	Restore(ctx context.Context, from, volume, as, store, name string) (restored string, sizeBytes int64, err error)
	// Salvage makes a volume with a name, as another volume was on this node when a
	// takeover left the log here out, or returns the one of that name. takeover names
	// one of several logs. NotFound: this node has no such log. Unavailable: repeat it later.
	Salvage(ctx context.Context, store, volume, takeover, name string) (Salvaged, error)
	// EndSalvage removes what a Salvage that was killed has left.
	EndSalvage(ctx context.Context, store, volume, takeover string) error
	// Delete deletes a volume, which is not attached, and the data that only it uses.
	// It refuses one that was not closed (reason open) unless forced.
	Delete(ctx context.Context, store, volume string, force bool) error
}

// Reconciler keeps the disks of one node.
type Reconciler struct {
	Store   entity.Store
	Volumes Volumes
	Node    id.Node
	// MountDir is the directory below which file systems are mounted, and
	// DefaultStore the URL of the store of disks that name none.
	MountDir     string
	DefaultStore string
	Logger       *slog.Logger

	locks locks
}

// Reconcile makes one disk match and returns after how long to reconcile it again
// (0: only after a change).
func (r *Reconciler) Reconcile(ctx context.Context, did schema.ID) (time.Duration, error) {
	unlock, err := r.locks.lock(ctx, string(did))
	if err != nil {
		return 0, err
	}
	defer unlock()
	d, err := entity.Get[disk.Disk](ctx, r.Store, did)
	if errs.Is(err, errs.NotFound) {
		return 0, r.forget(ctx, did)
	}
	if err != nil {
		return 0, err
	}
	again, err := r.reconcile(ctx, d)
	if err != nil && ctx.Err() == nil {
		return again, r.report(ctx, d, err)
	}
	return again, err
}

func (r *Reconciler) reconcile(ctx context.Context, d *disk.Disk) (time.Duration, error) {
	if d.Status.Volume == "" {
		if d.Spec.Deleted {
			if mine, err := r.salvager(ctx, d); !mine || err != nil {
				return otherNode, err
			}
			return 0, r.erase(ctx, d)
		}
		if d.Status.Phase == disk.DiskPhaseFailed {
			return 0, nil
		}
		if mine, err := r.adopt(ctx, d); !mine || err != nil {
			return otherNode, err
		}
		if err := r.provision(ctx, d); err != nil {
			return 0, err
		}
	}
	mounts, err := r.mounts(ctx, d)
	if err != nil {
		return 0, err
	}
	h, err := r.holder(ctx, d)
	if err != nil {
		return 0, err
	}
	if len(mounts) == 0 && (h.elsewhere(d) || h != nil && d.Status.Node != "" && !d.Spec.Deleted) {
		return otherNode, r.leave(ctx, d) // the other node's business
	}
	orphaned := h != nil && d.Spec.Deleted && !local(d) // open on a node that is down
	snaps, _, err := entity.List[disk.DiskSnapshot](ctx, r.Store, entity.Where(disk.DiskSnapshotAttrDisk, d.GetID()))
	if err != nil {
		return 0, err
	}
	if len(mounts) > 0 || orphaned || !d.Spec.Deleted && (d.Status.Phase == disk.DiskPhasePending || d.Spec.SizeBytes > d.Status.SizeBytes || anyPending(snaps)) {
		if err := r.attach(ctx, d); err != nil {
			return 0, err
		}
	}
	if err := r.snapshots(ctx, d, snaps); err != nil {
		return 0, err
	}
	if len(mounts) > 0 {
		return checkAfter(&d.Status), r.recordUse(ctx, d)
	}
	if err := r.detach(ctx, d); err != nil {
		if errs.Is(err, errs.FailedPrecondition) { // in use: waited for
			return busyWait, r.note(ctx, d, err)
		}
		return 0, err
	}
	if d.Spec.Deleted {
		return 0, r.erase(ctx, d)
	}
	return 0, nil
}

// report records why a disk does not match. A disk that cannot be made has failed
// unless a part of the machine or its store is unavailable.
func (r *Reconciler) report(ctx context.Context, d *disk.Disk, cause error) error {
	switch {
	case errs.Is(cause, errs.Conflict), errs.Is(cause, errs.Unavailable), d.Status.Phase != disk.DiskPhasePending:
		if err := r.note(ctx, d, cause); err != nil && !errs.Is(err, errs.NotFound) {
			return err
		}
		return cause
	}
	d.Status.Phase, d.Status.Message = disk.DiskPhaseFailed, message(cause)
	if err := entity.UpdateStatus(ctx, r.Store, d); err != nil {
		return err
	}
	r.Logger.Error("disk cannot be made", "volume", string(d.ID), "error", cause)
	return kit.Terminal(cause)
}

// note records the message of a disk, if it is another one.
func (r *Reconciler) note(ctx context.Context, d *disk.Disk, cause error) error {
	if errs.Is(cause, errs.Conflict) || d.Status.Message == message(cause) {
		return nil
	}
	d.Status.Message = message(cause)
	return entity.UpdateStatus(ctx, r.Store, d)
}

// message is an error with its hint, bounded.
func message(err error) string {
	text := err.Error()
	if hint := errs.HintOf(err); hint != "" {
		text += ". Hint: " + hint
	}
	const most = 1000
	return text[:min(len(text), most)]
}

func (r *Reconciler) store(d *disk.Disk) string {
	if d.Spec.Store != "" {
		return d.Spec.Store
	}
	return r.DefaultStore
}

// dir is where a disk is mounted.
func (r *Reconciler) dir(did schema.ID) string { return filepath.Join(r.MountDir, string(did)) }

// provision makes the volume of a new disk: empty, or a clone.
func (r *Reconciler) provision(ctx context.Context, d *disk.Disk) error {
	var err error
	switch {
	case d.Spec.SourceCopy != "":
		return r.restore(ctx, d)
	case d.Spec.SalvageNode != "":
		return r.salvage(ctx, d)
	}
	if d.Spec.SourceDisk == "" {
		d.Status.Volume, d.Status.SizeBytes, err = r.Volumes.Create(ctx, r.store(d), string(d.ID), d.Spec.SizeBytes)
		if err != nil {
			return errs.Wrap(err, "make the volume")
		}
		return entity.UpdateStatus(ctx, r.Store, d)
	}
	source, unlock, err := r.lockSource(ctx, d)
	if err != nil {
		return err
	}
	defer unlock()
	snapshot := d.Spec.SourceSnapshot
	if snapshot == "" {
		snapshot = "clone-" + string(d.ID)
		if err := r.attach(ctx, source); err != nil {
			return errs.Wrap(err, "attach the source %s", source.Name)
		}
		if err := r.take(ctx, source, snapshot); err != nil {
			return errs.Wrap(err, "snapshot of the source %s", source.Name)
		}
	}
	if d.Status.Volume, d.Status.SizeBytes, err = r.Volumes.Clone(ctx, r.store(source), source.Status.Volume, snapshot, string(d.ID)); err != nil {
		return errs.Wrap(err, "clone")
	}
	if d.Spec.SourceSnapshot == "" {
		if err := r.Volumes.DeleteSnapshot(ctx, r.store(source), source.Status.Volume, snapshot); err != nil {
			return errs.Wrap(err, "delete the temporary snapshot of the source")
		}
	}
	if err := r.made(ctx, d); err != nil {
		return err
	}
	mounts, err := r.mounts(ctx, source)
	if err != nil || len(mounts) > 0 {
		return err
	}
	if err := r.detach(ctx, source); err != nil {
		r.Logger.Warn("the source of a clone is not detached yet", "volume", string(source.ID), "error", err)
	}
	return nil
}

// restore makes the volume of a new disk from a copy.
func (r *Reconciler) restore(ctx context.Context, d *disk.Disk) error {
	c, err := entity.Get[disk.DiskCopy](ctx, r.Store, id.DiskCopy(d.Spec.SourceCopy))
	if errs.Is(err, errs.NotFound) || err == nil && (c.Spec.Deleted || c.Status.Phase != disk.DiskPhaseReady) {
		return errs.New(errs.FailedPrecondition, "the copy %s, of which it is restored, is deleted or not complete", d.Spec.SourceCopy)
	}
	if err != nil {
		return err
	}
	d.Status.Volume, d.Status.SizeBytes, err = r.Volumes.Restore(ctx, c.Spec.Store, c.Status.Volume, string(c.ID), r.store(d), string(d.ID))
	if err != nil {
		return errs.Wrap(err, "restore copy %s", c.ID)
	}
	return r.made(ctx, d)
}

// made records that a disk has the volume, and with it the file system, of its source. The
// store has all of it, so any node that reaches the store may have the disk next.
func (r *Reconciler) made(ctx context.Context, d *disk.Disk) error {
	d.Status.Formatted, d.Status.Phase, d.Status.Message = true, disk.DiskPhaseReady, ""
	if !local(d) {
		d.Status.Home = ""
	}
	return entity.UpdateStatus(ctx, r.Store, d)
}

// lockSource returns the disk that d is a clone of, locked.
func (r *Reconciler) lockSource(ctx context.Context, d *disk.Disk) (*disk.Disk, func(), error) {
	unlock, err := r.locks.lock(ctx, d.Spec.SourceDisk)
	if err != nil {
		return nil, nil, err
	}
	source, err := entity.Get[disk.Disk](ctx, r.Store, id.Disk(d.Spec.SourceDisk))
	switch {
	case errs.Is(err, errs.NotFound):
		err = errs.New(errs.FailedPrecondition, "the disk %s, of which it is a clone, was deleted", d.Spec.SourceDisk)
	case err == nil && (source.Spec.Deleted || source.Status.Phase != disk.DiskPhaseReady):
		err = errs.New(errs.FailedPrecondition, "the disk %s, of which it is a clone, is %s", source.Name, source.Status.Phase)
	}
	if err != nil {
		unlock()
		return nil, nil, err
	}
	return source, unlock, nil
}

// take takes a snapshot of an attached disk, with every write that its sandboxes
// have made so far.
func (r *Reconciler) take(ctx context.Context, d *disk.Disk, snapshot string) error {
	if err := filesystem.Sync(r.dir(d.ID)); err != nil {
		return err
	}
	return r.Volumes.Snapshot(ctx, d.Status.Volume, snapshot)
}

func anyPending(snaps []*disk.DiskSnapshot) bool {
	for _, s := range snaps {
		if s.Status.Phase == disk.DiskPhasePending && !s.Spec.Deleted {
			return true
		}
	}
	return false
}

// snapshots takes and deletes the snapshots of a disk.
func (r *Reconciler) snapshots(ctx context.Context, d *disk.Disk, snaps []*disk.DiskSnapshot) error {
	for _, s := range snaps {
		switch {
		case s.Spec.Deleted, d.Spec.Deleted && s.Status.Phase == disk.DiskPhasePending:
			if err := r.Volumes.DeleteSnapshot(ctx, r.store(d), d.Status.Volume, string(s.ID)); err != nil {
				return errs.Wrap(err, "delete snapshot %s", s.Spec.Name)
			}
			if err := entity.Delete(ctx, r.Store, s); err != nil && !errs.Is(err, errs.NotFound) {
				return err
			}
		case s.Status.Phase == disk.DiskPhasePending && !d.Spec.Deleted:
			err := r.take(ctx, d, string(s.ID))
			if errs.Is(err, errs.Unavailable) {
				return err
			}
			now, size := time.Now(), d.Status.SizeBytes
			s.Status.Phase, s.Status.TakenAt, s.Status.SizeBytes = disk.DiskPhaseReady, &now, &size
			if err != nil {
				s.Status.Phase, s.Status.Message, s.Status.TakenAt, s.Status.SizeBytes = disk.DiskPhaseFailed, message(err), nil, nil
			}
			if err := entity.UpdateStatus(ctx, r.Store, s); err != nil {
				return err
			}
		}
	}
	return nil
}

// erase deletes the volume of a disk that is not attached, and then the entity.
func (r *Reconciler) erase(ctx context.Context, d *disk.Disk) error {
	if d.Status.Phase != disk.DiskPhaseDeleting {
		d.Status.Phase, d.Status.Message = disk.DiskPhaseDeleting, ""
		if err := entity.UpdateStatus(ctx, r.Store, d); err != nil {
			return err
		}
	}
	if d.Status.Volume == "" && d.Spec.SalvageNode == string(r.Node) {
		if err := r.endSalvage(ctx, d); err != nil {
			return err
		}
	}
	// Without a recorded volume one may exist under the name all the same.
	volume := d.Status.Volume
	if volume == "" {
		volume = string(d.ID)
	}
	err := r.Volumes.Delete(ctx, r.store(d), volume, false)
	if errs.Detail(err, "reason") == "open" {
		// A restore that was killed, or a detach without its store, has left it open. If it is not open elsewhere, it is
		// closed, or cannot be opened any more.
		if _, err = r.Volumes.Attach(ctx, r.store(d), volume, false); err == nil {
			err = r.Volumes.Detach(ctx, volume)
		}
		if err == nil || isLost(err) {
			err = r.Volumes.Delete(ctx, r.store(d), volume, err != nil)
		}
	}
	if err != nil && !errs.Is(err, errs.NotFound) {
		return errs.Wrap(err, "delete the volume")
	}
	return entity.Delete(ctx, r.Store, d)
}

// isLost reports whether a volume could not be attached since its data or its log on this node is lost.
func isLost(err error) bool {
	reason := errs.Detail(err, "reason")
	return reason == "lost_log" || reason == "damaged" || errs.Is(err, errs.Corrupt)
}

// forget unmounts and detaches a disk without an entity. Its
// volume stays: only a disk that says so is erased.
func (r *Reconciler) forget(ctx context.Context, did schema.ID) error {
	if err := filesystem.Unmount(r.dir(did)); err != nil {
		return err
	}
	if err := r.Volumes.Detach(ctx, string(did)); err != nil && !errs.Is(err, errs.NotFound) {
		return err
	}
	return nil
}
