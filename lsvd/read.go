package lsvd

import (
	"context"

	"miren.dev/runtime/lsvd/internal/extent"
	"miren.dev/runtime/lsvd/internal/wal"
	"miren.dev/runtime/pkg/errs"
)

// piece is where some blocks of a read are.
type piece struct {
	lba, n uint64
	chunk  *wal.Chunk // in the log, or
	seg    *seg       // in a segment, from block
	block  uint64
	lost   bool // nowhere
}

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

func (d *Device) readBlocks(ctx context.Context, p []byte, off int64) error {
	clear(p) // what no piece covers reads as zeros
	first := uint64(off / BlockSize)
	pieces, g, err := d.locate(ctx, first, uint64(len(p)/BlockSize))
	if err != nil {
		return err
	}
	defer g.leave()
	for _, x := range pieces {
		at := (x.lba - first) * BlockSize
		b := p[at : at+x.n*BlockSize]
		var err error
		if x.lost || x.seg != nil && x.seg.lost {
			err = errs.New(errs.Corrupt, "its content was lost, and the loss accepted")
		} else if x.chunk != nil {
			err = x.chunk.Read(b, x.block)
		} else {
			err = d.cache.read(ctx, &x.seg.Segment, x.block, b)
		}
		if err != nil {
			return errs.Wrap(err, "read disk %s at %d", d.vol, x.lba*BlockSize)
		}
	}
	return nil
}

// resolve calls f for the mapped pieces of an address range, as seen from a
// layer: -1 the active cut, then the frozen ones from new to old, then the
// base map. The caller holds mu.
func (d *Device) resolve(layer int, lba, n uint64, f func(p piece, zero bool)) error {
	if layer == len(d.frozen)+1 {
		if !d.base.Loaded(lba, n) {
			return errAbsent
		}
		var err error
		d.base.Walk(lba, n, func(lba, n uint64, v extent.Value) bool {
			s := d.table[v.Src]
			if v.Src == lostSource {
				f(piece{lba: lba, n: n, lost: true}, false)
				return true
			}
			if s == nil {
				err = errs.New(errs.Corrupt, "map of %s names segment %d, which the manifest does not have", d.vol, v.Src)
				return false
			}
			f(piece{lba: lba, n: n, seg: s, block: uint64(v.Off)}, false)
			return true
		})
		return err
	}
	c, over := d.active, d.recent
	if layer == len(d.frozen) {
		c = nil
	} else if layer >= 0 {
		c = d.frozen[len(d.frozen)-1-layer]
	}
	if c != nil {
		over = c.over
	}
	next, end := lba, lba+n
	var err error
	over.Walk(lba, n, func(lba, n uint64, v extent.Value) bool {
		if lba > next {
			if err = d.resolve(layer+1, next, lba-next, f); err != nil {
				return false
			}
		}
		next = lba + n
		p := piece{lba: lba, n: n}
		if !v.IsZero() && c != nil {
			p.chunk, p.block = c.chunks[v.Src], uint64(v.Off)
		} else if !v.IsZero() {
			p.seg, p.block = d.table[v.Src], uint64(v.Off)
			p.lost = p.seg == nil
		}
		f(p, v.IsZero())
		return true
	})
	if err == nil && next < end {
		err = d.resolve(layer+1, next, end-next, f)
	}
	return err
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
	type part struct {
		lo, hi uint64
		hole   bool
	}
	var parts []part
	add := func(lo, hi uint64, hole bool) {
		if k := len(parts) - 1; k >= 0 && parts[k].hole == hole {
			parts[k].hi = hi
		} else if hi > lo {
			parts = append(parts, part{lo, hi, hole})
		}
	}
	for lo := first; lo < end; lo += statusStep {
		n := min(statusStep, end-lo)
		var found []part
		err := d.resolved(context.Background(), lo, n, func() error {
			found = found[:0]
			return d.resolve(-1, lo, n, func(p piece, zero bool) { found = append(found, part{p.lba, p.lba + p.n, zero}) })
		})
		if err != nil {
			return err
		}
		next := lo
		for _, p := range found {
			add(next, p.lo, true)
			add(p.lo, p.hi, p.hole)
			next = p.hi
		}
		add(next, lo+n, true)
	}
	for _, p := range parts {
		lo, hi := max(int64(p.lo)*BlockSize, off), min(int64(p.hi)*BlockSize, off+n)
		if lo < hi && !f(lo, hi-lo, p.hole) {
			return nil
		}
	}
	return nil
}
