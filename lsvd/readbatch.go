package lsvd

import (
	"context"

	"miren.dev/runtime/lsvd/internal/readcache"
)

// Read is a read that is made together with others.
type Read struct {
	P          []byte // the disk's until Done of the completion is called
	Off        int64
	Completion Completion
}

// answerBatch is how many reads from memory are completed together, so that
// their callers go on while others are read.
const answerBatch = 8

// ReadBatch makes reads as ReadAt does and calls the completion of each. Blocks of
// segments in a local store are read together, with one call of the store; what
// is in memory is completed first. It waits for those; all other reads are made
// in goroutines of their own, so that none waits for another.
func (d *Device) ReadBatch(ctx context.Context, reads []Read) {
	if len(reads) == 1 {
		d.readAlone(ctx, reads[0])
		return
	}
	var filled, together []Read
	var parts []readcache.Part
	var epochs []*readerEpoch
	for _, r := range reads {
		x, g := d.findSegment(r)
		if g == nil {
			if d.ReadCached(r.P, r.Off) {
				filled = append(filled, r)
			} else {
				go d.readAlone(ctx, r)
			}
		} else {
			before := len(parts)
			parts = d.cache.CopyCached(parts, readcache.Part{Segment: &x.seg.Segment, Block: x.block, P: r.P})
			missing := len(parts) > before
			if d.boot.on.Load() {
				d.boot.note(d.opts.Now(), []piece{x})
			}
			d.noteRead(x.lba, x.n, missing, g.readers() > 2)
			if missing {
				together, epochs = append(together, r), append(epochs, g)
			} else {
				g.exit()
				filled = append(filled, r)
			}
		}
		if len(filled) == answerBatch {
			complete(filled)
			filled = filled[:0]
		}
	}
	complete(filled)
	if len(together) == 0 {
		return
	}
	err := d.cache.Load(ctx, parts, false)
	for _, g := range epochs {
		g.exit()
	}
	if err == nil {
		complete(together)
		return
	}
	for _, r := range together { // each says whether it is the one that fails
		go d.readAlone(ctx, r)
	}
}

// findSegment returns the piece of a segment in a local store that a read wants,
// and the epoch that protects it; nil if it wants anything else, or goes on where
// others ended.
func (d *Device) findSegment(r Read) (piece, *readerEpoch) {
	if !d.cache.Local() || d.opts.manual || r.Off%BlockSize != 0 || len(r.P)%BlockSize != 0 || d.check(r.Off, int64(len(r.P))) != nil {
		return piece{}, nil
	}
	first, n := uint64(r.Off/BlockSize), uint64(len(r.P)/BlockSize)
	if d.streams.Has(first, n) {
		return piece{}, nil
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.readable() != nil {
		return piece{}, nil
	}
	x, err := d.find(first, n)
	if err != nil || x.n < n || x.seg == nil || x.lost || x.seg.lost {
		return piece{}, nil
	}
	d.readers.enter()
	return x, d.readers
}

func (d *Device) readAlone(ctx context.Context, r Read) {
	err := d.ReadAt(ctx, r.P, r.Off)
	r.Completion.Done(err, false)
	r.Completion.BatchDone()
}

// complete completes reads that have ended together.
func complete(reads []Read) {
	for i, r := range reads {
		r.Completion.Done(nil, i+1 < len(reads))
	}
	for _, r := range reads {
		r.Completion.BatchDone()
	}
}
