package lsvd

import (
	"context"

	"miren.dev/runtime/lsvd/internal/extent"
	"miren.dev/runtime/lsvd/internal/readcache"
	"miren.dev/runtime/lsvd/internal/segment"
	"miren.dev/runtime/pkg/errs"
)

// ReadAt fills p from off.
func (d *Device) ReadAt(ctx context.Context, p []byte, off int64) error {
	if err := d.check(off, int64(len(p))); err != nil {
		return err
	}
	if off%BlockSize == 0 && len(p)%BlockSize == 0 {
		return d.readBlocks(ctx, p, off)
	}
	first := off / BlockSize * BlockSize
	last := (off + int64(len(p)) + BlockSize - 1) / BlockSize * BlockSize
	buf := make([]byte, last-first)
	if err := d.readBlocks(ctx, buf, first); err != nil {
		return err
	}
	copy(p, buf[off-first:])
	return nil
}

// ReadCached is ReadAt if all of that is in memory. Else it reports false, and some of
// p may have changed.
func (d *Device) ReadCached(p []byte, off int64) bool {
	if off%BlockSize != 0 || len(p)%BlockSize != 0 || d.check(off, int64(len(p))) != nil {
		return false
	}
	first, n := uint64(off/BlockSize), uint64(len(p)/BlockSize)
	var few [8]piece
	d.mu.RLock()
	if d.readable() != nil {
		d.mu.RUnlock()
		return false
	}
	pieces, err := d.resolve(first, n, few[:0])
	g := d.readers
	g.enter()
	d.mu.RUnlock()
	defer g.exit()
	if err != nil {
		return false
	}
	for i := range pieces {
		x := &pieces[i]
		b := p[(x.lba-first)*BlockSize:][:x.n*BlockSize]
		switch {
		case x.lost || x.seg != nil && x.seg.lost:
			return false
		case x.chunk != nil:
			if !x.chunk.ReadCached(b, x.block) {
				return false
			}
		case x.seg == nil:
			clear(b)
		case !d.cache.CopyAllCached(readcache.Part{Segment: &x.seg.Segment, Block: x.block, P: b}):
			return false
		}
	}
	if d.boot.on.Load() {
		d.boot.note(d.opts.Now(), pieces)
	}
	d.noteRead(first, n, false, g.readers() > 2)
	return true
}

// readNow is readBlocks without retries.
func (d *Device) readNow(ctx context.Context, p []byte, off int64) error {
	first := uint64(off / BlockSize)
	var few [8]piece // most reads need no memory of their own
	pieces, g, err := d.locate(ctx, first, uint64(len(p)/BlockSize), few[:0])
	if err != nil {
		return err
	}
	defer g.exit()
	if d.boot.on.Load() {
		d.boot.note(d.opts.Now(), pieces)
	}
	var missing []readcache.Part
	for i := range pieces {
		x := &pieces[i]
		b := p[(x.lba-first)*BlockSize:][:x.n*BlockSize]
		var err error
		switch {
		case x.lost || x.seg != nil && x.seg.lost:
			err = errs.New(errs.Corrupt, "its content was lost, and the loss accepted")
		case x.chunk != nil:
			err = x.chunk.Read(b, x.block)
		case x.seg != nil:
			missing = d.cache.CopyCached(missing, readcache.Part{Segment: &x.seg.Segment, Block: x.block, P: b})
		default:
			clear(b)
		}
		if err != nil {
			return errs.Wrap(err, "read disk %s at %d", d.vol, x.lba*BlockSize)
		}
	}
	n := uint64(len(p) / BlockSize)
	// Where a disk was written at random, a read is many small ones.
	scattered := uint64(len(pieces))*segment.FrameBlocks > n
	stream := d.noteRead(first, n, len(missing) > 0, g.readers() > 2 && !scattered)
	if len(missing) == 0 {
		return nil
	}
	return errs.Wrap(d.cache.Load(ctx, missing, stream), "read disk %s at %d+%d", d.vol, off, len(p))
}

// statusStep is how much of the map Status looks at in one go.
const statusStep = 64 * extent.LeafBlocks

// Status calls f for consecutive pieces of the range, in order: those that
// have data, and holes, which read as zeros and take no space.
func (d *Device) Status(off, n int64, f func(off, n int64, hole bool) bool) error {
	if err := d.check(off, n); err != nil {
		return err
	}
	first, end := uint64(off/BlockSize), uint64((off+n+BlockSize-1)/BlockSize)
	type stretch struct {
		lo, hi uint64
		hole   bool
	}
	var all []stretch
	var found []piece
	for lo := first; lo < end; lo += statusStep {
		n := min(statusStep, end-lo)
		err := d.resolved(context.Background(), lo, n, func() (err error) {
			found, err = d.resolve(lo, n, found[:0])
			return err
		})
		if err != nil {
			return err
		}
		for _, x := range found {
			hole := x.chunk == nil && x.seg == nil && !x.lost
			if k := len(all) - 1; k >= 0 && all[k].hole == hole {
				all[k].hi = x.lba + x.n
			} else {
				all = append(all, stretch{x.lba, x.lba + x.n, hole})
			}
		}
	}
	for _, p := range all {
		lo, hi := max(int64(p.lo)*BlockSize, off), min(int64(p.hi)*BlockSize, off+n)
		if lo < hi && !f(lo, hi-lo, p.hole) {
			return nil
		}
	}
	return nil
}
