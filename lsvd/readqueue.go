package lsvd

import (
	"context"
	"sync"

	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/pkg/errs"
)

// Queued reads have no goroutine that waits: they are of blocks of one frame, in
// a local store. BeginReads begins them together. The poller that fetches the
// completions verifies the data and calls the caller's completion. A read that
// fails, because its blocks are damaged, say, is repeated in a goroutine of its
// own, like a read by ReadAt.

// QueueResult is the outcome of QueueRead.
type QueueResult int

const (
	// NotQueued says that the caller must call ReadAt.
	NotQueued QueueResult = iota
	// Filled says that it was read from memory.
	Filled
	// Queued says that the completion will be called.
	Queued
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
	src    *source
	f, at  int     // frame, and where in it
	whole  *frame  // the frame is fetched whole; nil: p alone
	fl     *flight // of the frame
	failed bool
}

var queuedReads = sync.Pool{New: func() any { return new(queuedRead) }}

// QueueRead reads what is in memory at once, and queues reads of single blocks
// of a local store, which the next BeginReads begins. Then p is the disk's until
// w.Done is called, maybe before BeginReads returns.
//
// The caller must call BeginReads afterwards, before anything that waits.
func (d *Device) QueueRead(ctx context.Context, p []byte, off int64, w Completion) QueueResult {
	c := d.cache
	if off%BlockSize != 0 || len(p)%BlockSize != 0 || d.check(off, int64(len(p))) != nil {
		return NotQueued
	}
	first, n := uint64(off/BlockSize), uint64(len(p)/BlockSize)
	if c.local == nil || c.manual || d.streams.has(first, n) {
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
	c, want := d.cache, part{&x.seg.Segment, x.block, p}
	f, at, head := want.head()
	if len(head) < len(p) {
		if c.copyAllCached(want) {
			return Filled
		}
		return NotQueued
	}
	k := frameKey{x.seg.Num, uint32(f)}
	if c.get(k, at, p, false) == len(p) {
		return Filled
	}
	src := c.sources.get(x.seg.Num)
	if src == nil || !src.IsPlain(f) || at+len(p) > src.PlainSize(f) {
		return NotQueued
	}
	size := src.PlainSize(f)
	var whole *frame
	var fl *flight
	if bring := c.admitFrame(); bring || !src.knows(f) {
		var mine bool
		switch whole, fl, mine = c.claim(k); {
		case whole != nil:
			copy(p, whole.data[at:])
			whole.release()
			return Filled
		case !mine:
			c.abandon(fl)
			return NotQueued
		}
		whole = newFrame(size)
	}
	c.missed(k)
	r := queuedReads.Get().(*queuedRead)
	*r = queuedRead{ctx: ctx, d: d, w: w, g: g, p: p, off: off, src: src, f: f, at: at, whole: whole, fl: fl}
	start, _ := src.Range(f, f+1)
	r.Key, r.Completion = src.key, r
	if whole != nil {
		r.P, r.Off = whole.data, start
	} else {
		r.P, r.Off = p, start+int64(at)
	}
	c.storeReads.Add(1)
	c.storeBytes.Add(int64(len(r.P)))
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
	d.cache.local.BeginReads(reads)
	clear(reads)
	q.mu.Lock()
	q.spare = reads[:0]
	q.mu.Unlock()
}

// Done implements [store.Waiter].
func (r *queuedRead) Done(err error, more bool) {
	if r.whole == nil {
		r.failed = err != nil || !r.src.intact(r.f, r.at, r.p)
	} else {
		c := r.d.cache
		r.failed = !c.completeLocal(r.src, r.f, r.fl, r.whole, err == nil, true)
		if !r.failed {
			copy(r.p, r.whole.data[r.at:])
		}
		c.abandon(r.fl)
		r.whole.release()
	}
	r.g.exit()
	if !r.failed {
		r.w.Done(nil, more)
	}
}

// BatchDone implements [store.Waiter].
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
