package lsvd

import (
	"context"

	"miren.dev/runtime/lsvd/internal/manifest"
	"miren.dev/runtime/lsvd/internal/name"
	"miren.dev/runtime/lsvd/internal/segment"
	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/pkg/errs"
)

// link is what a chain has of one cut: all of its segments, or none.
type link struct {
	segments []manifest.Segment // without Num
	entries  [][]segment.Entry  // of each
	end      name.Ref           // if there are none: what is missing, damaged or the fence
	fence    bool
}

// readLink reads the cut after durable, whose first segment is ref. A cut whose
// last segment is not there was not published: it has none.
func readLink(ctx context.Context, st store.Store, ref name.Ref, key []byte, durable uint64) (link, error) {
	var l link
	for ; ; ref.Num++ {
		var size int
		var x *segment.Index
		err := again(func() error {
			b, _, err := st.Get(ctx, ref.Key())
			if err == nil {
				size = len(b)
				x, err = segment.Verify(ref, key, b)
			}
			return err
		})
		if errs.Is(err, errs.NotFound) {
			return link{end: ref}, nil
		}
		if err == nil && x.Fence {
			return link{end: ref, fence: true}, nil
		}
		if err == nil && x.First != durable+1 {
			err = errs.New(errs.Corrupt, "segment %s begins with sequence %d after %d", ref, x.First, durable)
		}
		if err == nil && len(l.segments) > 0 && x.Last != l.segments[0].Last {
			err = errs.New(errs.Corrupt, "segment %s is not of the cut of the one before", ref)
		}
		if err != nil {
			return link{end: ref}, err
		}
		l.segments = append(l.segments, manifest.Segment{Ref: ref, Size: int64(size), Blocks: x.Blocks, First: x.First, Last: x.Last})
		l.entries = append(l.entries, x.Entries)
		if !x.More {
			return l, nil
		}
	}
}

// readChain reads the segments of the chain after the manifest, of whole cuts,
// and says where it ends, and whether by a fence.
func readChain(ctx context.Context, st store.Store, m *manifest.Manifest, key []byte) (out []manifest.Segment, end name.Ref, fence bool, err error) {
	end = name.Ref{Volume: m.Volume, Kind: name.Data, Epoch: m.ChainEpoch, Num: m.ChainNext}
	if m.ChainEpoch == 0 || m.Snapshot {
		return nil, end, false, nil
	}
	for last := m.Durable; ; {
		l, err := readLink(ctx, st, end, key, last)
		if err != nil || len(l.segments) == 0 {
			return out, l.end, l.fence, err
		}
		for _, s := range l.segments {
			s.Num = m.NextSegment + uint64(len(out))
			out = append(out, s)
			last = s.Last
			end.Num++
		}
	}
}
