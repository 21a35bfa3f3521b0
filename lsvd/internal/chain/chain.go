// Package chain reads the segments of a volume that its manifest does not name
// yet: numbers without gaps under the epoch of the last writer.
package chain

import (
	"context"

	"miren.dev/runtime/lsvd/internal/keyring"
	"miren.dev/runtime/lsvd/internal/manifest"
	"miren.dev/runtime/lsvd/internal/name"
	"miren.dev/runtime/lsvd/internal/segment"
	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/pkg/errs"
)

// Link is what a chain has of one cut: all of its segments, or none.
type Link struct {
	Segments []manifest.Segment // without Num
	Entries  [][]segment.Entry  // of each
	End      name.Ref           // if there are none: what is missing, damaged or the fence
	Fence    bool
}

// ReadLink reads the cut after durable, whose first segment is ref. A cut whose
// last segment is not there was not published: it has none.
func ReadLink(ctx context.Context, st store.Store, ref name.Ref, keys *keyring.Ring, durable uint64) (Link, error) {
	var l Link
	for ; ; ref.Num++ {
		var size int
		var x *segment.Index
		err := store.RetryCorrupt(func() error {
			b, _, err := st.Get(ctx, ref.Key())
			if err == nil {
				size = len(b)
				x, err = segment.Verify(ref, keys, b)
			}
			return err
		})
		if errs.Is(err, errs.NotFound) {
			return Link{End: ref}, nil
		}
		if err == nil && x.Fence {
			return Link{End: ref, Fence: true}, nil
		}
		if err == nil && x.First != durable+1 {
			err = errs.New(errs.Corrupt, "segment %s begins with sequence %d after %d", ref, x.First, durable)
		}
		if err == nil && len(l.Segments) > 0 && x.Last != l.Segments[0].Last {
			err = errs.New(errs.Corrupt, "segment %s is not of the cut of the one before", ref)
		}
		if err != nil {
			return Link{End: ref}, err
		}
		l.Segments = append(l.Segments, manifest.Segment{Ref: ref, Size: int64(size), Blocks: x.Blocks, First: x.First, Last: x.Last})
		l.Entries = append(l.Entries, x.Entries)
		if !x.More {
			return l, nil
		}
	}
}

// Read reads the segments of the chain after the manifest, of whole cuts,
// and says where it ends, and whether by a fence.
func Read(ctx context.Context, st store.Store, m *manifest.Manifest) (out []manifest.Segment, end name.Ref, fence bool, err error) {
	end = name.Ref{Volume: m.Volume, Kind: name.Data, Epoch: m.ChainEpoch, Num: m.ChainNext}
	if m.ChainEpoch == 0 || m.Snapshot {
		return nil, end, false, nil
	}
	for last := m.Durable; ; {
		l, err := ReadLink(ctx, st, end, m.Keys, last)
		if err != nil || len(l.Segments) == 0 {
			return out, l.End, l.Fence, err
		}
		for _, s := range l.Segments {
			s.Num = m.NextSegment + uint64(len(out))
			out = append(out, s)
			last = s.Last
			end.Num++
		}
	}
}
