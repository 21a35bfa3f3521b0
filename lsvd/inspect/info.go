package inspect

import (
	"context"
	"encoding/hex"
	"time"

	"miren.dev/runtime/lsvd/internal/manifest"
	"miren.dev/runtime/lsvd/internal/name"
	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/pkg/errs"
)

// VolumeInfo describes a volume or a snapshot as its manifest has it, without
// claiming it.
type VolumeInfo struct {
	ID        name.Volume
	Snapshot  string // its name; empty for the volume itself
	Size      int64
	Created   time.Time
	Origin    string // <volume>@<snapshot> that it was cloned from
	Encrypted bool
	// Clean tells that the volume was closed with everything in the store.
	// One that is not is open somewhere, or was when its process ended: to
	// open it elsewhere takes it away from Owner and needs its local log.
	Clean    bool
	Owner    string // of the process that claimed it last; see lsvd.Device.Owner
	Epoch    uint64 // counts the claims
	Revision uint64 // counts the changes of the manifest
	Durable  uint64 // last sequence number that the manifest has
	Segments int
	Stored   int64 // bytes of the objects that the manifest names
	Blocks   int64 // blocks in segments, in use or not

	Snapshots []string // of a volume
	Err       error    // why its manifest cannot be read; then only ID and Snapshot are set
}

// Info describes a volume without claiming it.
func Info(ctx context.Context, st store.Store, id name.Volume) (VolumeInfo, error) {
	m, _, err := manifest.Load(ctx, st, name.Manifest(id))
	if err != nil {
		return VolumeInfo{ID: id}, errs.Wrap(err, "volume %s", id)
	}
	i := describe(m, "")
	i.Snapshots, err = manifest.Snapshots(ctx, st, id)
	return i, err
}

// InfoSnapshot describes a snapshot of a volume.
func InfoSnapshot(ctx context.Context, st store.Store, id name.Volume, snapshot string) (VolumeInfo, error) {
	m, err := manifest.LoadSnapshot(ctx, st, id, snapshot)
	if err != nil {
		return VolumeInfo{ID: id, Snapshot: snapshot}, err
	}
	return describe(m, snapshot), nil
}

// List describes all volumes in st, with the names of their snapshots. One whose
// manifest cannot be read has Err set; only an error of the listing is returned.
func List(ctx context.Context, st store.Store) ([]VolumeInfo, error) {
	var out []VolumeInfo
	snapshots := map[name.Volume][]string{}
	for i, err := range st.List(ctx, name.Manifests) {
		if err != nil {
			return nil, err
		}
		id, snapshot, ok := name.ParseManifest(i.Key)
		if !ok {
			continue
		}
		if snapshot != "" {
			snapshots[id] = append(snapshots[id], snapshot)
			continue
		}
		m, _, err := manifest.Load(ctx, st, i.Key)
		if errs.Is(err, errs.NotFound) {
			continue // deleted meanwhile
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		v := VolumeInfo{ID: id, Err: err}
		if err == nil {
			v = describe(m, "")
		}
		v.Snapshots = snapshots[id] // their keys come before that of the volume
		out = append(out, v)
	}
	return out, nil
}

func describe(m *manifest.Manifest, snapshot string) VolumeInfo {
	i := VolumeInfo{ID: m.Volume, Snapshot: snapshot, Size: int64(m.Size), Created: time.Unix(0, int64(m.Created)), Origin: m.Origin,
		Encrypted: m.Encrypted, Clean: m.Clean, Epoch: m.Epoch, Revision: m.Revision, Durable: m.Durable, Segments: len(m.Segments)}
	if m.Epoch > 0 && snapshot == "" {
		i.Owner = hex.EncodeToString(m.Owner[:])
	}
	for _, s := range m.Segments {
		i.Stored += s.Size
		i.Blocks += int64(s.Blocks)
	}
	return i
}
