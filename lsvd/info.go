package lsvd

import (
	"context"
	"encoding/hex"
	"time"

	"miren.dev/runtime/lsvd/internal/chain"
	"miren.dev/runtime/lsvd/internal/extent"
	"miren.dev/runtime/lsvd/internal/manifest"
	"miren.dev/runtime/lsvd/internal/name"
	"miren.dev/runtime/lsvd/internal/segment"
	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/pkg/errs"
)

// VolumeInfo describes a volume or a snapshot as its manifest has it, without
// claiming it.
type VolumeInfo struct {
	ID        ID
	Snapshot  string // its name; empty for the volume itself
	Size      int64
	Created   time.Time
	Origin    string // <volume>@<snapshot> that it was cloned from
	Encrypted bool
	// Clean tells that the volume was closed with everything in the store.
	// One that is not is open somewhere, or was when its process ended: to
	// open it elsewhere takes it away from Owner and needs its local log.
	Clean    bool
	Owner    string // of the process that claimed it last; see [Device.Owner]
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
func Info(ctx context.Context, st store.Store, id ID) (VolumeInfo, error) {
	m, _, err := manifest.Load(ctx, st, name.Manifest(id))
	if err != nil {
		return VolumeInfo{ID: id}, errs.Wrap(err, "volume %s", id)
	}
	i := describe(m, "")
	i.Snapshots, err = Snapshots(ctx, st, id)
	return i, err
}

// InfoSnapshot describes a snapshot of a volume.
func InfoSnapshot(ctx context.Context, st store.Store, id ID, snapshot string) (VolumeInfo, error) {
	m, err := manifest.LoadSnapshot(ctx, st, id, snapshot)
	if err != nil {
		return VolumeInfo{ID: id, Snapshot: snapshot}, err
	}
	return describe(m, snapshot), nil
}

// List describes all volumes in st and their snapshots, each volume before
// its own. One whose manifest cannot be read has Err set; only an error of the
// listing is returned.
func List(ctx context.Context, st store.Store) ([]VolumeInfo, error) {
	var out []VolumeInfo
	at := map[ID]int{} // of volumes in out
	snapshots := map[ID][]VolumeInfo{}
	var order []ID
	for i, err := range st.List(ctx, name.Manifests) {
		if err != nil {
			return nil, err
		}
		id, snapshot, ok := name.ParseManifest(i.Key)
		if !ok {
			continue
		}
		m, _, err := manifest.Load(ctx, st, i.Key)
		if errs.Is(err, errs.NotFound) {
			continue // deleted meanwhile
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		v := VolumeInfo{ID: id, Snapshot: snapshot, Err: err}
		if err == nil {
			v = describe(m, snapshot)
		}
		if _, seen := snapshots[id]; !seen {
			order = append(order, id)
			snapshots[id] = nil
		}
		if snapshot != "" {
			snapshots[id] = append(snapshots[id], v)
			continue
		}
		at[id] = len(out)
		out = append(out, v)
	}
	var sorted []VolumeInfo
	for _, id := range order {
		if i, ok := at[id]; ok {
			v := out[i]
			for _, s := range snapshots[id] {
				v.Snapshots = append(v.Snapshots, s.Snapshot)
			}
			sorted = append(sorted, v)
		}
		sorted = append(sorted, snapshots[id]...)
	}
	return sorted, nil
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

// Owner is what [VolumeInfo] says of the volume while d has it.
func (d *Device) Owner() string { return hex.EncodeToString(d.owner[:]) }

// Description is everything that the store says of a volume or snapshot.
type Description struct {
	VolumeInfo
	ChainEpoch uint64 // whose segments and log continue the volume
	ChainNext  uint64 // number of the first segment of the chain after the manifest
	Checkpoint string // newest checkpoint of the map; empty without
	MapSeq     uint64 // sequence number up to which it has everything
	Maps       []string
	Boot       string // list of what the disk reads first; empty without
	Table      []SegmentInfo
	Chain      []SegmentInfo // segments after the manifest
	Fence      string        // the object that ends the chain; empty if nothing does
	Fences     []string      // all fences of the volume
	Runs       int64         // pieces of the map
	Leaves     int64         // of 2 MiB that have some
	Mapped     int64         // blocks
}

// SegmentInfo describes one segment.
type SegmentInfo struct {
	Num         uint64 // how the map names it
	Key         string
	Kind        string // data or gc
	Volume      ID     // that made it: another for what a clone shares
	Epoch       uint64
	Number      uint64
	First, Last uint64 // sequence numbers
	Size        int64
	Blocks      int64
	Live        int64 // blocks that the map of the checkpoint uses
}

// Dump describes a volume, or with a name its snapshot, in all detail. It
// claims nothing and reads the manifest, the map and the headers of segments.
// The key is needed for an encrypted volume.
func Dump(ctx context.Context, st store.Store, id ID, snapshot string, key []byte) (Description, error) {
	m, err := manifest.LoadNamed(ctx, st, id, snapshot)
	if err != nil {
		return Description{}, err
	}
	d := Description{VolumeInfo: describe(m, snapshot), ChainEpoch: m.ChainEpoch, ChainNext: m.ChainNext}
	if m.Root != nil {
		d.Checkpoint, d.MapSeq = m.Root.Ref.Key(), m.Root.Seq
	}
	for _, r := range m.Maps {
		d.Maps = append(d.Maps, r.Key())
	}
	if m.Boot != nil {
		d.Boot = m.Boot.Key()
	}
	live := map[uint64]uint64{}
	err = manifest.EachLeaf(ctx, st, m, func(leaf uint64, runs []extent.Run) error {
		d.Leaves++
		for _, r := range runs {
			d.Runs++
			d.Mapped += int64(r.N)
			live[r.Src] += uint64(r.N)
		}
		return nil
	})
	if err != nil {
		return d, err
	}
	for _, s := range m.Segments {
		d.Table = append(d.Table, segmentInfo(s, int64(live[s.Num])))
	}
	if snapshot != "" {
		return d, nil
	}
	if d.Snapshots, err = Snapshots(ctx, st, id); err != nil {
		return d, err
	}
	for i, err := range st.List(ctx, name.Prefix(id)+name.Data.String()+"/") {
		if err != nil {
			return d, err
		}
		if i.Size == segment.TrailerSize {
			d.Fences = append(d.Fences, i.Key)
		}
	}
	chain, end, fence, err := chain.Read(ctx, st, m, key)
	for _, s := range chain {
		d.Chain = append(d.Chain, segmentInfo(s, 0))
	}
	if fence {
		d.Fence = end.Key()
	}
	return d, err
}

func segmentInfo(s manifest.Segment, live int64) SegmentInfo {
	return SegmentInfo{Num: s.Num, Key: s.Ref.Key(), Kind: s.Ref.Kind.String(), Volume: s.Ref.Volume, Epoch: s.Ref.Epoch, Number: s.Ref.Num,
		First: s.First, Last: s.Last, Size: s.Size, Blocks: int64(s.Blocks), Live: live}
}
