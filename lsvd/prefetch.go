package lsvd

import "miren.dev/runtime/lsvd/internal/readcache"

// noteRead notes a read and prefetches the blocks that are likely to be read next.
// It reports whether the read belongs to a stream. busy says that several are
// under way, of blocks that are not scattered. The caller is in a reader epoch.
func (d *Device) noteRead(lba, n uint64, missed, busy bool) bool {
	c := d.cache
	if d.opts.manual {
		return false
	}
	of, from, to, found := d.streams.Note(lba, n, missed, c.Window())
	to = min(to, uint64(d.size.Load()/BlockSize))
	if from >= to {
		return found
	}
	c.Go(func() {
		// The stream may have overtaken this goroutine.
		if from = d.streams.Remaining(of, from, to); from >= to {
			return
		}
		pieces, g, err := d.locate(c.Context(), from, to-from, nil)
		if err != nil {
			return // a read of these blocks reports the error
		}
		// Segments may be deleted while they are read ahead; then that fails.
		g.exit()
		var ranges []readcache.Range
		for _, x := range pieces {
			if x.seg != nil && !x.seg.lost {
				ranges = append(ranges, readcache.Range{Segment: &x.seg.Segment, Block: x.block, Blocks: x.n})
			}
		}
		c.Prefetch(ranges, busy)
	})
	return found
}
