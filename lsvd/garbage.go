package lsvd

import (
	"context"
	"slices"

	"miren.dev/runtime/lsvd/internal/name"
	"miren.dev/runtime/lsvd/internal/reclaim"
	"miren.dev/runtime/lsvd/store"
)

// doomed is an object of this volume that a durable manifest has dropped. No later
// manifest names it again, that of a snapshot or of a successor included, for each is
// made from one that does not.
type doomed struct {
	ref      name.Ref
	unshared bool
}

// discard notes objects that no later manifest of this device names.
func (d *Device) discard(refs ...name.Ref) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.garbage = append(d.garbage, refs...)
}

// doom marks for deletion the objects that the manifest just written dropped. Those that a manifest
// of unknown outcome dropped stay: the store may have that one. The caller holds pub.
func (d *Device) doom() {
	named := reclaim.NewUsage()
	named.Add(d.man)
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, r := range d.garbage {
		// What others made is theirs to delete, or Sweep's.
		if r.Volume == d.vol && !named.Refs[r] {
			d.doomed = append(d.doomed, doomed{r, d.unshared(r)})
		}
	}
	d.garbage = nil
}

// deleteDoomed deletes the doomed objects that no other manifest names. Only an object that
// a snapshot may have had is asked about, and only after it was dropped, as
// [reclaim.Usage.AddUsers] demands. If too many others may name it, it stays for Sweep.
// The caller need not hold pub: nothing is published later for that reading.
func (d *Device) deleteDoomed(ctx context.Context) error {
	if err := d.deleting.lock(ctx); err != nil {
		return err
	}
	defer d.deleting.unlock()
	d.mu.Lock()
	batch := d.doomed
	d.doomed = nil
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.doomed = append(batch, d.doomed...)
	}()
	u := reclaim.NewUsage()
	if slices.ContainsFunc(batch, func(x doomed) bool { return !x.unshared }) {
		if err := u.AddUsers(ctx, d.st, d.vol, d.vol); err != nil {
			return err
		}
	}
	for len(batch) > 0 {
		if x := batch[0]; x.unshared || !u.MayName(x.ref) {
			if err := d.st.Delete(ctx, x.ref.Key()); err != nil {
				return err
			}
		}
		batch = batch[1:]
	}
	return nil
}

// tryDelete is deleteDoomed for a caller that has other things to do.
func (d *Device) tryDelete(ctx context.Context) {
	if err := d.deleteDoomed(ctx); err != nil && ctx.Err() == nil {
		d.logger.Warn("deleting garbage failed, it is tried again", "volume", d.vol.String(), "error", err)
	}
}

// deleteLater has reclaim delete the doomed objects.
func (d *Device) deleteLater(ctx context.Context) {
	if d.opts.manual {
		d.tryDelete(ctx)
		return
	}
	select {
	case d.reclaiming <- struct{}{}:
	default:
	}
}

// reclaim collects and deletes garbage: it moves data, and reads up to 64 manifests of
// others, all from a slow store. So it does that beside publishing.
func (d *Device) reclaim(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.reclaiming:
		}
		d.tryDelete(ctx)
		due := false
		err := d.publishing(ctx, func() error { due = d.collectDue; return nil })
		if err == nil && due {
			err = d.collectAndCheckpoint(ctx)
		}
		if err != nil && ctx.Err() == nil && d.usableNow() == nil {
			d.logger.Error("garbage collection failed", "volume", d.vol.String(), "error", err)
		}
	}
}

// shared returns the volumes that have segments in the table which others may name. The
// caller holds pub.
func (d *Device) shared() (volumes []ID) {
	for i := range d.man.Segments {
		if r := d.man.Segments[i].Ref; !d.unshared(r) && !slices.Contains(volumes, r.Volume) {
			volumes = append(volumes, r.Volume)
		}
	}
	return volumes
}

// readOthers returns what other manifests name of objects of the volumes.
func (d *Device) readOthers(ctx context.Context, volumes []ID) (*reclaim.Usage, error) {
	u := reclaim.NewUsage()
	for _, v := range volumes {
		if err := u.AddUsers(ctx, d.st, v, d.vol); err != nil {
			return nil, err
		}
	}
	return u, nil
}

// unshared reports that only the manifest of this volume can name an object: this
// device has made it since the last snapshot. The caller holds pub.
func (d *Device) unshared(r name.Ref) bool {
	return r.Volume == d.vol && r.Epoch == d.epoch && r.Num >= d.snapped[r.Kind]
}

// numbers are the next numbers of this epoch's objects, by kind.
func (d *Device) numbers() map[name.Kind]uint64 {
	return map[name.Kind]uint64{name.Data: d.man.ChainNext, name.GC: d.nextGC, name.Map: d.nextMap, name.Boot: d.boot.next}
}

// Sweep deletes the objects in st that no manifest names and no open disk may
// still add to one: leftovers of crashes, of deleted volumes and snapshots,
// and of clones that moved on. It may run beside open disks and copies, and
// reports how many objects and bytes it deleted.
//
// Manifests are read twice, the second time after the listing, so that a
// clone made meanwhile keeps what its origin gave up. A mark in the store spans
// the second reading and the deletions: a copy that begins meanwhile would use
// objects that are about to be deleted, so Copy waits for it.
func Sweep(ctx context.Context, st store.Store) (objects int, bytes int64, err error) {
	return reclaim.Sweep(ctx, st)
}
