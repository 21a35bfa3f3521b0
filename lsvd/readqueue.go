package lsvd

import (
	"context"
	"sync"

	"miren.dev/runtime/lsvd/internal/readcache"
	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/pkg/errs"
)

// Queued reads have no goroutine that waits: they are of blocks of one frame, in
// a local store. BeginReads begins them together. The poller that fetches the
// completions verifies the data and calls the caller's completion. A read that
// fails, because its blocks are damaged, say, is repeated in a goroutine of its
// own, like a read by ReadAt.

// QueueResult is the outcome of QueueRead.
type QueueResult = readcache.QueueResult

const (
	// NotQueued says that the caller must call ReadAt.
	NotQueued = readcache.NotQueued
	// Filled says that it was read from memory.
	Filled = readcache.Filled
	// Queued says that the completion will be called.
	Queued = readcache.Queued
)

// readQueue is what BeginReads begins.
type readQueue struct {
	mu    sync.Mutex
	reads []*store.ObjectRead
	spare []*store.ObjectRead // for the next ones
}

// queuedRead is a read that was queued.
type queuedRead struct {
	store.ObjectRead

	ctx    context.Context
	d      *Device
	w      Completion
	g      *readerEpoch
	p      []byte
	off    int64
	read   readcache.QueuedRead
	failed bool
}

var queuedReads = sync.Pool{New: func() any { return new(queuedRead) }}

// QueueRead reads what is in memory at once, and queues reads of single blocks
// of a local store, which the next BeginReads begins. Then p is the disk's until
// w.Done is called, maybe before BeginReads returns.
//
// The caller must call BeginReads afterwards, before anything that waits.
func (d *Device) QueueRead(ctx context.Context, p []byte, off int64, w Completion) QueueResult {
	if off%BlockSize != 0 || len(p)%BlockSize != 0 || d.check(off, int64(len(p))) != nil {
		return NotQueued
	}
	first, n := uint64(off/BlockSize), uint64(len(p)/BlockSize)
	if !d.cache.Local() || d.opts.manual || d.streams.Has(first, n) {
		return d.queueCached(p, off)
	}
	d.mu.RLock()
	if d.readable() != nil {
		d.mu.RUnlock()
		return NotQueued
	}
	x, err := d.find(first, n)
	if err != nil || x.n < n || x.seg == nil || x.lost || x.seg.lost {
		d.mu.RUnlock()
		return d.queueCached(p, off)
	}
	g := d.readers
	g.enter()
	d.mu.RUnlock()
	taken := d.queueRead(ctx, x, p, off, g, w)
	if taken != Queued {
		g.exit()
	}
	if taken != NotQueued {
		if d.boot.on.Load() {
			d.boot.note(d.opts.Now(), []piece{x})
		}
		d.noteRead(first, n, taken == Queued, g.readers() > 2)
	}
	return taken
}

func (d *Device) queueCached(p []byte, off int64) QueueResult {
	if d.ReadCached(p, off) {
		return Filled
	}
	return NotQueued
}

// queueRead queues a read of a piece of a segment, which the reader epoch g protects.
func (d *Device) queueRead(ctx context.Context, x piece, p []byte, off int64, g *readerEpoch, w Completion) QueueResult {
	var object store.ObjectRead
	read, result := d.cache.Queue(readcache.Part{Segment: &x.seg.Segment, Block: x.block, P: p}, &object)
	if result != Queued {
		return result
	}
	r := queuedReads.Get().(*queuedRead)
	*r = queuedRead{ObjectRead: object, ctx: ctx, d: d, w: w, g: g, p: p, off: off, read: read}
	r.Completion = r
	q := &d.reads
	q.mu.Lock()
	q.reads = append(q.reads, &r.ObjectRead)
	q.mu.Unlock()
	return Queued
}

// BeginReads begins the reads that are queued.
func (d *Device) BeginReads() {
	q := &d.reads
	q.mu.Lock()
	reads := q.reads
	if len(reads) == 0 {
		q.mu.Unlock()
		return
	}
	q.reads, q.spare = q.spare, nil
	q.mu.Unlock()
	d.cache.BeginReads(reads)
	clear(reads)
	q.mu.Lock()
	q.spare = reads[:0]
	q.mu.Unlock()
}

// Done implements [store.Completion].
func (r *queuedRead) Done(err error, more bool) {
	r.failed = !r.read.Finish(err)
	r.g.exit()
	if !r.failed {
		r.w.Done(nil, more)
	}
}

// BatchDone implements [store.Completion].
func (r *queuedRead) BatchDone() {
	ctx, d, w, p, off, failed := r.ctx, r.d, r.w, r.p, r.off, r.failed
	*r = queuedRead{}
	queuedReads.Put(r)
	if !failed {
		w.BatchDone()
		return
	}
	go func() {
		err := d.readBlocks(ctx, p, off)
		w.Done(errs.Wrap(err, "read disk %s at %d", d.vol, off), false)
		w.BatchDone()
	}()
}
