package lsvd

import (
	"context"
	"fmt"

	"miren.dev/runtime/lsvd/internal/manifest"
	"miren.dev/runtime/lsvd/internal/name"
	"miren.dev/runtime/lsvd/internal/wal"
	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/lsvd/vfs"
	"miren.dev/runtime/pkg/errs"
)

// A volume that is opened without its local log goes on without the writes that only
// that log has. Open keeps the state that it begins with as a snapshot, and does so
// before the manifest names another log. The name of the snapshot says which log goes on
// from it. Where that log turns up, Open refuses to use its files for something else,
// and [Salvage] applies its writes to a clone of the snapshot.

// Takeover is an opening of a volume without its log. Its string form is the name
// of the snapshot that Open has kept.
type Takeover struct {
	Epoch   uint64 // of the log that was not there
	Durable uint64 // sequence number of the snapshot; the log may have later ones
}

func (t Takeover) String() string { return fmt.Sprintf("takeover-%d-%d", t.Epoch, t.Durable) }

// ParseTakeover reads the name of a snapshot. It reports false for one that Open has
// not kept.
func ParseTakeover(snapshot string) (t Takeover, ok bool) {
	_, err := fmt.Sscanf(snapshot, "takeover-%d-%d", &t.Epoch, &t.Durable)
	return t, err == nil && t.String() == snapshot
}

// keepTakeover makes the snapshot of a volume whose log is lost. One that is there is
// of an earlier attempt, which ended before the manifest named its log: the chain was
// fenced then, so it has the same state.
func (d *Device) keepTakeover(ctx context.Context, t Takeover) error {
	key, err := name.Snapshot(d.vol, t.String())
	if err != nil {
		return err
	}
	data, err := d.snapshotManifest(ctx, key)
	if err != nil {
		return err
	}
	delete(d.snapped, name.Data) // this epoch has no segment yet
	if err := d.createSnapshot(ctx, key, data); err != nil && !errs.Is(err, errs.AlreadyExists) {
		return errs.Wrap(err, "keep the state of the takeover as snapshot %s", t)
	}
	return nil
}

// Stranded returns the takeover after which the log in fs is of no use to the volume any
// more, and has writes that the volume does not have; nil: there is none. The caller
// has the lock of fs.
func Stranded(ctx context.Context, st store.Store, fs vfs.FS, id ID) (*Takeover, error) {
	m, err := manifest.LoadNamed(ctx, st, id, "")
	if err != nil {
		return nil, err
	}
	found, err := wal.Find(fs, id)
	if err != nil {
		return nil, err
	}
	defer found.Close()
	return stranded(ctx, st, m, found)
}

// stranded does not list the snapshots of a volume whose log is here, or was removed.
func stranded(ctx context.Context, st store.Store, m *manifest.Manifest, found *wal.Found) (last *Takeover, err error) {
	if found.Empty() || found.Has(m.ChainEpoch) {
		return nil, nil
	}
	all, err := Snapshots(ctx, st, m.Volume)
	for _, s := range all {
		if t, ok := ParseTakeover(s); ok && found.Has(t.Epoch) && (last == nil || t.Epoch > last.Epoch) {
			last = &t
		}
	}
	return last, err
}

// Salvaged says what [Salvage] has applied.
type Salvaged struct {
	Changes int64  // writes, zeros and trims
	Bytes   int64  // of data, in whole blocks
	Last    uint64 // sequence number of the last change, or that of the snapshot
	Flushed uint64 // if it is more than Last, the log is damaged: it had flushed up to here
}

// Salvage applies to a disk, which is a clone of the snapshot t of the volume id, what
// the log in fs has after that: the disk is then as the volume was where its log is.
// If the log is damaged, it is as it was before the damage. Salvage changes nothing in
// fs, whose lock the caller has. NotFound: the log there is another one.
func Salvage(ctx context.Context, fs vfs.FS, id ID, t Takeover, disk Disk) (s Salvaged, err error) {
	found, err := wal.Find(fs, id)
	if err != nil {
		return s, err
	}
	defer found.Close()
	if !found.Has(t.Epoch) {
		return s, errs.New(errs.NotFound, "there is no log of epoch %d of volume %s", t.Epoch, id)
	}
	var buf []byte
	s.Last, s.Flushed, err = found.Replay(t.Epoch, t.Durable, true, func(c *wal.Chunk) (err error) {
		off, n := int64(c.LBA)*BlockSize, int64(c.Blocks)*BlockSize
		switch c.Kind {
		case wal.Data:
			if int64(cap(buf)) < n {
				buf = make([]byte, n)
			}
			if err = c.Read(buf[:n], 0); err == nil {
				err = disk.WriteAt(ctx, buf[:n], off, 0)
			}
			s.Bytes += n
		case wal.Zero:
			err = disk.Zero(ctx, off, n, 0)
		case wal.Trim:
			err = disk.Trim(ctx, off, n, 0)
		}
		s.Changes++
		return err
	})
	return s, errs.Wrap(err, "salvage the log of epoch %d of volume %s", t.Epoch, id)
}
