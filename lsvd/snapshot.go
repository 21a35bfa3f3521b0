package lsvd

import (
	"bytes"
	"context"
	"strings"
	"time"

	"miren.dev/runtime/lsvd/internal/keyring"
	"miren.dev/runtime/lsvd/internal/manifest"
	"miren.dev/runtime/lsvd/internal/name"
	"miren.dev/runtime/lsvd/internal/reclaim"
	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/pkg/errs"
)

// Snapshot keeps the disk as it is now under a name. It copies no data: the
// snapshot is a manifest.
func (d *Device) Snapshot(ctx context.Context, snapshot string) error {
	key, err := name.Snapshot(d.vol, snapshot)
	if err != nil {
		return err
	}
	if _, ok := ParseTakeover(snapshot); ok {
		return errs.New(errs.InvalidArgument, "snapshot name %q is that of a takeover", snapshot).WithHint("choose another name")
	}
	if err := d.usableNow(); err != nil {
		return err
	}
	if err := d.pub.lock(ctx); err != nil {
		return err
	}
	defer d.pub.unlock()
	var data []byte // made once: an attempt of unknown outcome is told apart by content
	return d.retry(ctx, func() (err error) {
		if data == nil {
			if err := d.drain(ctx, false); err != nil {
				return err
			}
			d.saveBoot(ctx, true)
			if data, err = d.snapshotManifest(ctx, key); err != nil {
				return err
			}
		}
		err = d.createSnapshot(ctx, key, data)
		if errs.Is(err, errs.AlreadyExists) {
			return errs.New(errs.AlreadyExists, "snapshot %q of volume %s exists", snapshot, d.vol)
		}
		return err
	})
}

// snapshotManifest returns the manifest of a snapshot of what the store has. The caller
// holds pub.
func (d *Device) snapshotManifest(ctx context.Context, key string) ([]byte, error) {
	if err := d.checkpoint(ctx, false); err != nil {
		return nil, err
	}
	m := d.man.Clone()
	m.Snapshot, m.Clean, m.Created = true, true, uint64(d.opts.Now().UnixNano())
	d.snapped, d.others = d.numbers(), nil
	d.snapshots++
	return m.Encode(key), nil
}

// createSnapshot creates a snapshot, unless the volume is deleted. AlreadyExists: there is
// another one of this name. The caller holds pub.
func (d *Device) createSnapshot(ctx context.Context, key string, data []byte) error {
	err := createNamed(ctx, d.st, key, data)
	if err != nil || d.man.Origin == "" {
		return err
	}
	// Delete removes the marks of a clone if it sees no snapshots. It has seen
	// this one if the volume is still there.
	if _, err = d.st.GetRange(ctx, name.Manifest(d.vol), 0, manifest.HeadSize); errs.Is(err, errs.NotFound) {
		if err := d.st.Delete(ctx, key); err != nil {
			return err
		}
		return d.fail(errs.New(errs.NotFound, "volume %s was deleted", d.vol))
	}
	return err
}

// createNamed creates a manifest, or the keys of a volume, under key. An attempt
// of unknown outcome is repeated, so what it finds then may be its own.
func createNamed(ctx context.Context, st store.Store, key string, data []byte) error {
	for try := 0; ; try++ {
		_, err := st.Create(ctx, key, data)
		if errs.Is(err, errs.AlreadyExists) {
			have, _, gerr := st.Get(ctx, key)
			switch {
			case gerr == nil && bytes.Equal(have, data):
				return nil
			case gerr != nil && !errs.Is(gerr, errs.NotFound):
				return gerr
			case gerr == nil && errs.Is(decodes(key, have), errs.Corrupt):
				err = errs.New(errs.Unavailable, "object %s reads as damaged", key) // the transfer may have been cut off
				if try < 2 {
					continue
				}
			}
			return err
		}
		if !errs.Is(err, errs.Unavailable) || try == 2 {
			return err
		}
	}
}

func decodes(key string, b []byte) (err error) {
	if id, ok := strings.CutPrefix(key, name.AllKeys); ok {
		v, err := name.ParseVolume(id)
		if err == nil {
			_, err = keyring.Check(v, b)
		}
		return err
	}
	_, err = manifest.Decode(b)
	return err
}

// Resize makes the disk larger. What is added reads as zeros. It refuses to
// make it smaller, which would lose data.
func (d *Device) Resize(ctx context.Context, size int64) error {
	if size > MaxSize || size%BlockSize != 0 {
		return errs.New(errs.InvalidArgument, "disk size %d is not a multiple of 4096 up to 16 TiB", size)
	}
	if err := d.usableNow(); err != nil {
		return err
	}
	if err := d.pub.lock(ctx); err != nil {
		return err
	}
	defer d.pub.unlock()
	if size < d.Size() {
		return errs.New(errs.FailedPrecondition, "disk %s has %d bytes and cannot shrink to %d", d.vol, d.Size(), size)
	}
	return d.retry(ctx, func() error {
		// Only with a checkpoint may the table in the manifest be as new as
		// the device's: segments that GC made are not in the one before.
		was := d.man.Size
		d.man.Size = uint64(size)
		if err := d.checkpoint(ctx, false); err != nil {
			d.man.Size = was
			return err
		}
		d.size.Store(size)
		return nil
	})
}

// Snapshots lists the snapshots of a volume.
func Snapshots(ctx context.Context, st store.Store, id ID) ([]string, error) {
	return manifest.Snapshots(ctx, st, id)
}

// Clone makes the volume id with the content of a snapshot, without copying:
// its manifest names the snapshot's segments. The clone of an encrypted volume
// needs the user's key, which opens the clone too; it has a data key of its own.
func Clone(ctx context.Context, st store.Store, from ID, snapshot string, id ID, user []byte) error {
	key, err := name.Snapshot(from, snapshot)
	if err != nil {
		return err
	}
	m, _, err := manifest.Open(ctx, st, from, snapshot, user)
	if err != nil {
		return errs.Wrap(err, "clone snapshot %q of volume %s", snapshot, from)
	}
	c := manifest.Manifest{Volume: id, Durable: m.Durable, Size: m.Size, NextSegment: m.NextSegment,
		Clean: true, Uncounted: m.Uncounted, Created: uint64(time.Now().UnixNano()), Origin: from.String() + "@" + snapshot, Root: m.Root, Maps: m.Maps, Segments: m.Segments, Boot: m.Boot}
	marks, err := reclaim.MarkClone(ctx, st, m, id)
	if err != nil {
		return errs.Wrap(err, "clone snapshot %q of volume %s", snapshot, from)
	}
	if err := createVolume(ctx, st, &c, m.Keys, user); err != nil {
		return errs.Wrap(err, "clone snapshot %q of volume %s", snapshot, from)
	}
	// If the snapshot is still there, a later deletion of its objects sees
	// the clone. If not, they may be gone already.
	if _, _, err = st.Get(ctx, key); errs.Is(err, errs.NotFound) {
		err = errs.New(errs.NotFound, "snapshot %q of volume %s was deleted while it was cloned", snapshot, from)
	} else if err == nil {
		err = marks.Valid()
	} else {
		return err // unknown: the clone stays
	}
	if err == nil {
		return nil
	}
	if derr := st.Delete(ctx, name.Manifest(id)); derr != nil {
		return derr
	}
	marks.Delete(ctx, st)
	return err
}

// DeleteSnapshot forgets a snapshot; [Sweep] frees what only it used.
func DeleteSnapshot(ctx context.Context, st store.Store, id ID, snapshot string) error {
	key, err := name.Snapshot(id, snapshot)
	if err != nil {
		return err
	}
	return deleteManifest(ctx, st, key)
}

// Delete forgets a volume, which must not be open; [Sweep] frees what only it
// used. It refuses while the volume has snapshots.
func Delete(ctx context.Context, st store.Store, id ID) error {
	snaps, err := Snapshots(ctx, st, id)
	if err != nil {
		return err
	}
	if len(snaps) > 0 {
		return errs.New(errs.FailedPrecondition, "volume %s has %d snapshots", id, len(snaps)).WithHint("delete them first: %s", strings.Join(snaps, ", "))
	}
	m, _, merr := manifest.Load(ctx, st, name.Manifest(id))
	if err := deleteManifest(ctx, st, name.Manifest(id)); err != nil || merr != nil || m.Origin == "" {
		return err
	}
	// A snapshot that was made meanwhile needs the marks. Sweep deletes marks that stay.
	if snaps, err = Snapshots(ctx, st, id); err != nil || len(snaps) > 0 {
		return err
	}
	reclaim.MarksOf(m).Delete(ctx, st)
	return nil
}

func deleteManifest(ctx context.Context, st store.Store, key string) error {
	if _, _, err := st.Get(ctx, key); err != nil {
		return err
	}
	return st.Delete(ctx, key)
}
