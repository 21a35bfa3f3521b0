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
	d.mu.RLock()
	if err := d.readable(); err != nil {
		d.mu.RUnlock()
		return err
	}
	g := d.gate
	g.enter()
	var pieces []piece
	err := d.resolve(-1, first, uint64(len(p)/BlockSize), func(x piece, zero bool) {
		if !zero {
			pieces = append(pieces, x)
		}
	})
	d.mu.RUnlock()
	defer g.leave()
	if err != nil {
		return err
	}
	for _, x := range pieces {
		at := (x.lba - first) * BlockSize
		b := p[at : at+x.n*BlockSize]
		var err error
		if x.chunk != nil {
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
	if layer == len(d.frozen) {
		var err error
		d.base.Walk(lba, n, func(lba, n uint64, v extent.Value) bool {
			s := d.table[v.Src]
			if s == nil {
				err = errs.New(errs.Corrupt, "map of %s names segment %d, which the manifest does not have", d.vol, v.Src)
				return false
			}
			f(piece{lba: lba, n: n, seg: s, block: uint64(v.Off)}, false)
			return true
		})
		return err
	}
	c := d.active
	if layer >= 0 {
		c = d.frozen[len(d.frozen)-1-layer]
	}
	next, end := lba, lba+n
	var err error
	c.over.Walk(lba, n, func(lba, n uint64, v extent.Value) bool {
		if lba > next {
			if err = d.resolve(layer+1, next, lba-next, f); err != nil {
				return false
			}
		}
		next = lba + n
		p := piece{lba: lba, n: n}
		if !v.IsZero() {
			p.chunk, p.block = c.chunks[v.Src], uint64(v.Off)
		}
		f(p, v.IsZero())
		return true
	})
	if err == nil && next < end {
		err = d.resolve(layer+1, next, end-next, f)
	}
	return err
}

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
	d.mu.RLock()
	err := d.readable()
	if err == nil {
		next := first
		err = d.resolve(-1, first, end-first, func(p piece, zero bool) {
			add(next, p.lba, true)
			add(p.lba, p.lba+p.n, zero)
			next = p.lba + p.n
		})
		add(next, end, true)
	}
	d.mu.RUnlock()
	if err != nil {
		return err
	}
	for _, p := range parts {
		lo, hi := max(int64(p.lo)*BlockSize, off), min(int64(p.hi)*BlockSize, off+n)
		if lo < hi && !f(lo, hi-lo, p.hole) {
			return nil
		}
	}
	return nil
}
