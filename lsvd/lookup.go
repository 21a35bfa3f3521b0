package lsvd

import (
	"context"

	"miren.dev/runtime/lsvd/internal/extent"
	"miren.dev/runtime/lsvd/internal/manifest"
	"miren.dev/runtime/lsvd/internal/wal"
	"miren.dev/runtime/pkg/errs"
)

// piece is where some blocks of a read are. If it names nothing, they are
// zeros.
type piece struct {
	lba, n uint64
	chunk  *wal.Chunk // in the log, or
	seg    *seg       // in a segment, from block
	block  uint64
	lost   bool // nowhere
}

// locate appends the pieces of a range. They may be read until the caller
// exits the reader epoch.
func (d *Device) locate(ctx context.Context, lba, n uint64, pieces []piece) ([]piece, *readerEpoch, error) {
	d.mu.RLock()
	err := d.readable()
	if err == nil {
		pieces, err = d.resolve(lba, n, pieces)
	}
	g := d.readers
	if err == nil {
		g.enter()
	}
	d.mu.RUnlock()
	if err == errAbsent {
		return d.locateAbsent(ctx, lba, n)
	}
	return pieces, g, err
}

func (d *Device) locateAbsent(ctx context.Context, lba, n uint64) (pieces []piece, g *readerEpoch, err error) {
	err = d.resolved(ctx, lba, n, func() (err error) {
		if pieces, err = d.resolve(lba, n, pieces[:0]); err == nil {
			g = d.readers
			g.enter()
		}
		return err
	})
	return pieces, g, err
}

// resolve appends the pieces of a range, or fails with errAbsent. The caller
// holds mu.
func (d *Device) resolve(lba, n uint64, pieces []piece) ([]piece, error) {
	for end := lba + n; lba < end; {
		x, err := d.find(lba, end-lba)
		if err != nil {
			return pieces[:0], err
		}
		pieces = append(pieces, x)
		lba += x.n
	}
	return pieces, nil
}

// find returns the piece that begins at lba, of at most n blocks: as the active
// cut has it, or else the frozen ones from new to old, or else what was sent
// since the last merge, or else the base map. The caller holds mu.
func (d *Device) find(lba, n uint64) (piece, error) {
	for layer := len(d.frozen); layer >= 0; layer-- {
		c := d.active
		if layer < len(d.frozen) {
			c = d.frozen[layer]
		}
		v, k, is := c.over.Get(lba)
		n = min(n, k)
		if is == extent.Unmapped {
			continue // for n blocks this layer has nothing
		}
		p := piece{lba: lba, n: n}
		if !v.IsZero() {
			p.chunk, p.block = c.chunk(v.Src), uint64(v.Off)
		}
		return p, nil
	}
	v, k, is := d.recent.Get(lba)
	n = min(n, k)
	if is == extent.Unmapped {
		v, k, is = d.base.Get(lba)
		n = min(n, k)
	}
	p := piece{lba: lba, n: n}
	switch {
	case is == extent.Absent:
		return p, errAbsent
	case is == extent.Unmapped || v.IsZero():
		return p, nil
	case v.Src == manifest.LostSource:
		p.lost = true
		return p, nil
	}
	p.seg, p.block = d.table[v.Src], uint64(v.Off)
	if p.seg == nil {
		return p, errs.New(errs.Corrupt, "map of %s names segment %d, which the manifest does not have", d.vol, v.Src)
	}
	return p, nil
}

// resolved calls f, which uses resolve, with mu held for reading; it loads the
// leaves of the range and calls it again when some were not.
func (d *Device) resolved(ctx context.Context, lba, n uint64, f func() error) error {
	for pinned := false; ; {
		d.mu.RLock()
		err := d.readable()
		if err == nil {
			err = f()
		}
		d.mu.RUnlock()
		if err != errAbsent {
			return err
		}
		if !pinned {
			pinned = true
			d.pin()
			defer d.unpin()
		}
		if err := d.fault(ctx, lba, n, false); err != nil {
			return err
		}
	}
}
