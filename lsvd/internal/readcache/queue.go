package readcache

import (
	"miren.dev/runtime/lsvd/store"
)

// QueueResult is the outcome of a read that was to be queued.
type QueueResult int

const (
	// NotQueued says that the caller must read otherwise.
	NotQueued QueueResult = iota
	// Filled says that it was read from memory.
	Filled
	// Queued says that the completion will be called.
	Queued
)

// QueuedRead is a read of blocks of one frame of a local store.
type QueuedRead struct {
	c     *Cache
	p     []byte
	src   *source
	f, at int     // frame, and where in it
	whole *frame  // the frame is fetched whole; nil: p alone
	fl    *flight // of the frame
}

// Queue fills x from memory, or prepares a read of a local store: it sets r but
// its Completion, for BeginReads. The completion must call Finish of the
// QueuedRead.
func (c *Cache) Queue(x Part, r *store.ObjectRead) (q QueuedRead, result QueueResult) {
	f, at, head := x.head()
	if len(head) < len(x.P) {
		if c.CopyAllCached(x) {
			return q, Filled
		}
		return q, NotQueued
	}
	p, k := x.P, frameKey{x.Segment.Num, uint32(f)}
	if c.get(k, at, p, false) == len(p) {
		return q, Filled
	}
	src := c.sources.get(x.Segment.Num)
	if src == nil || !src.IsPlain(f) || at+len(p) > src.PlainSize(f) {
		return q, NotQueued
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
			return q, Filled
		case !mine:
			c.abandon(fl)
			return q, NotQueued
		}
		whole = newFrame(size)
	}
	c.missed(k)
	start, _ := src.Range(f, f+1)
	r.Key = src.key
	if whole != nil {
		r.P, r.Off = whole.data, start
	} else {
		r.P, r.Off = p, start+int64(at)
	}
	c.storeReads.Add(1)
	c.storeBytes.Add(int64(len(r.P)))
	return QueuedRead{c: c, p: p, src: src, f: f, at: at, whole: whole, fl: fl}, Queued
}

// BeginReads begins reads that Queue prepared.
func (c *Cache) BeginReads(reads []*store.ObjectRead) { c.local.BeginReads(reads) }

// Finish verifies a read that ended with err, completes the flight of its frame,
// and reports whether the blocks were filled.
func (q *QueuedRead) Finish(err error) bool {
	if q.whole == nil {
		return err == nil && q.src.intact(q.f, q.at, q.p)
	}
	ok := q.c.completeLocal(q.src, q.f, q.fl, q.whole, err == nil, true)
	if ok {
		copy(q.p, q.whole.data[q.at:])
	}
	q.c.abandon(q.fl)
	q.whole.release()
	return ok
}
