package inspect

import (
	"context"

	"miren.dev/runtime/lsvd/internal/chain"
	"miren.dev/runtime/lsvd/internal/extent"
	"miren.dev/runtime/lsvd/internal/manifest"
	"miren.dev/runtime/lsvd/internal/name"
	"miren.dev/runtime/lsvd/internal/segment"
	"miren.dev/runtime/lsvd/store"
)

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
	Kind        string      // data or gc
	Volume      name.Volume // that made it: another for what a clone shares
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
func Dump(ctx context.Context, st store.Store, id name.Volume, snapshot string, key []byte) (Description, error) {
	m, _, err := manifest.Open(ctx, st, id, snapshot, key)
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
	if d.Snapshots, err = manifest.Snapshots(ctx, st, id); err != nil {
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
	chain, end, fence, err := chain.Read(ctx, st, m)
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
