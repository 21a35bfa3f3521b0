package lsvd

import (
	"context"
	"slices"

	"miren.dev/runtime/lsvd/internal/name"
	"miren.dev/runtime/lsvd/internal/reclaim"
	"miren.dev/runtime/lsvd/store"
)

// deleteGarbage deletes objects of this volume that its manifest has dropped
// and no other manifest names. Only an object that a snapshot may have had is asked
// about. If too many others may name it, it stays for Sweep. The caller holds pub.
func (d *Device) deleteGarbage(ctx context.Context) error {
	u := reclaim.NewUsage()
	if slices.ContainsFunc(d.garbage, func(r name.Ref) bool { return r.Volume == d.vol && !d.unshared(r) }) {
		if err := u.AddUsers(ctx, d.st, d.vol, d.vol); err != nil {
			return err
		}
	}
	u.Add(d.man)
	for len(d.garbage) > 0 {
		r := d.garbage[0]
		// What others made is theirs to delete, or Sweep's.
		if r.Volume == d.vol && !u.Refs[r] && (d.unshared(r) || !u.MayName(r)) {
			if err := d.st.Delete(ctx, r.Key()); err != nil {
				return err
			}
		}
		d.garbage = d.garbage[1:]
	}
	return nil
}

// readOthers returns what other manifests name of the segments in the table, as of
// heldPause ago at most. It asks about volumes whose segments others may name. The
// caller holds pub.
func (d *Device) readOthers(ctx context.Context) (*reclaim.Usage, error) {
	if d.others != nil && d.opts.Now().Sub(d.othersAt) < heldPause {
		return d.others, nil
	}
	u := reclaim.NewUsage()
	asked := map[ID]bool{}
	for i := range d.man.Segments {
		r := d.man.Segments[i].Ref
		if asked[r.Volume] || d.unshared(r) {
			continue
		}
		asked[r.Volume] = true
		if err := u.AddUsers(ctx, d.st, r.Volume, d.vol); err != nil {
			return nil, err
		}
	}
	d.others, d.othersAt = u, d.opts.Now()
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
