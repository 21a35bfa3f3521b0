package fuse

import (
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/lsvd"
)

// While all requests are small and need not wait, a single reader is enough. It
// batches the requests that are there already: it begins the reads of blocks that
// are not in memory with one call, answers the others with one call, and then
// carries out the writes. To copy the requests costs less than to wake another
// reader. And as it is the only one, it may poll for the next request before it
// sleeps: poll.go.

const (
	// smallRequest is how long a request may be for another one to wait while it is copied.
	smallRequest = 16 << 10
	// batchMost is how many requests a batch has at most.
	batchMost = 32
	// beginMost is how many reads a batch has before they begin: to begin many
	// with one call costs less for each, but the first of them wait.
	beginMost = 16
	// replyBatch is how many reads from memory are answered with one call, so that
	// their callers go on while others are read.
	replyBatch = 8
	// singleAfter is how many requests of that kind come in a row before a single reader does.
	singleAfter = 64
)

// smallRequestRun counts the small requests that need not wait since the last one
// that was not such.
type smallRequestRun struct{ n atomic.Int64 }

// isLong reports whether the run is so long that a single reader is enough.
func (s *smallRequestRun) isLong() bool { return s.n.Load() >= singleAfter }

// extend notes a small request that need not wait.
func (s *smallRequestRun) extend() { s.n.Add(1) }

// shorten notes a small request that must wait, but not for the reader: if it is
// more than one in four for a while, the run ends.
func (s *smallRequestRun) shorten() { s.n.Store(min(s.n.Load(), 2*singleAfter) - 4) }

// end ends the run, and reports whether a single reader was enough until then.
func (s *smallRequestRun) end() bool { return s.n.Load() > 0 && s.n.Swap(0) >= singleAfter }

// batchRequests handles the request of n bytes that was read, and those that are
// there already, as long as they are small: it queues writes, and begins reads or
// answers them. It returns the length of the request that remains to be handled,
// 0 if none does, and whether commit must follow.
//
// The reader counts as one that waits in the kernel, and no other reader may: then
// it can read each request that it has seen there. Only if the request was
// interrupted meanwhile does the reader wait, and checkStall finishes its batch.
func (r *reader) batchRequests(n int) (left int, queued bool) {
	c := r.c
	if !c.smallRun.isLong() {
		return n, false
	}
	c.batching.Store(true) // before idle is read: a reader that comes now sees it, or is counted
	defer c.batching.Store(false)
	defer c.beginReads()
	if c.idle.Load() != 1 {
		return n, false
	}
	reads := 0
	for i := 1; ; i++ {
		if n < len(r.head) || c.stopping.Load() {
			return n, queued
		}
		h, in := parseHead(r.head), r.head[inHead:]
		switch size := n - len(r.head); {
		case h.op == opWrite && size <= smallRequest && r.queueWrite(h, in, size):
			queued = true
			c.stall.arm()
		case h.op == opRead && (r.queueRead(h, in) || r.inBackground(h, in)):
			c.stall.arm()
			reads++
		default:
			return n, queued
		}
		if i == batchMost || !ready(c.fd) {
			return 0, queued
		}
		if reads == beginMost {
			c.beginReads()
			reads = 0
		}
		var errno unix.Errno
		if n, errno = r.read(); errno != 0 {
			return 0, queued // the next read meets the same error
		}
	}
}

// ready reports whether there is a request; tests change it.
var ready = func(fd int) bool {
	n, _ := pending(fd)
	return n > 0
}

// readCached reads for a request into the reader's buffer, if it is small
// and all is in memory, and says whether it has.
func (r *reader) readCached(in []byte) bool {
	c := r.c
	off, n, ok := smallRead(in)
	if !ok || c.reader == nil || !c.hits.try() {
		return false
	}
	ok = c.reader.ReadCached(r.data[:n], off)
	c.hits.note(ok)
	r.size = n
	return ok
}

// inBackground carries out the read h in a goroutine of its own, if it is small.
func (r *reader) inBackground(h head, in []byte) bool {
	c := r.c
	if _, _, ok := smallRead(in); !ok || c.reader == nil {
		return false
	}
	next, _ := c.getBuffer()
	if next == nil {
		return false
	}
	x := &reader{buffer: r.buffer}
	r.buffer = next
	c.smallRun.shorten()
	c.writes.Go(func() {
		c.doing.Add(1)
		x.carryOut(h, in, 0)
		c.doing.Add(-1)
		c.putBuffer(x.buffer)
	})
	return true
}

// smallRead is what a read asks for, if that is little.
func smallRead(in []byte) (off int64, n int, ok bool) {
	if len(in) < arguments[opRead] {
		return 0, 0, false
	}
	off, n = int64(ne.Uint64(in[8:])), int(ne.Uint32(in[16:]))
	return off, n, off >= 0 && n > 0 && n <= smallRequest
}

// queueRead has the disk read for h without waiting, if it is small, and reports
// false if it cannot do so. The reader goes on with another buffer, and
// beginReads must follow.
func (r *reader) queueRead(h head, in []byte) bool {
	c := r.c
	off, n, ok := smallRead(in)
	if !ok || c.reader == nil {
		return false
	}
	next, _ := c.getBuffer()
	if next == nil {
		return false
	}
	b := r.buffer
	b.unique, b.size, b.read = h.unique, n, true
	c.writes.Add(1)
	c.reading.Add(1)
	switch c.reader.QueueRead(c.serving, b.data[:n], off, b) {
	case lsvd.NotQueued:
		c.writes.Done()
		c.reading.Add(-1)
		c.putBuffer(next)
		return false
	case lsvd.Filled:
		c.replies.mu.Lock()
		c.replies.bufs = append(c.replies.bufs, b)
		n := len(c.replies.bufs)
		c.replies.mu.Unlock()
		if n >= replyBatch {
			c.sendReplies()
		}
	}
	r.buffer = next
	c.smallRun.extend()
	return true
}

// readyReplies are the buffers of reads whose answers are ready.
type readyReplies struct {
	mu   sync.Mutex
	bufs []*buffer
}

// beginReads begins the queued reads, and answers those that are done.
func (c *Conn) beginReads() {
	if c.reader == nil {
		return
	}
	c.reader.BeginReads()
	c.sendReplies()
}

// sendReplies answers the reads whose answers are ready.
func (c *Conn) sendReplies() {
	t := &c.replies
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, b := range t.bufs {
		b.Done(nil, i+1 < len(t.bufs))
	}
	for i, b := range t.bufs {
		t.bufs[i] = nil
		b.BatchDone()
	}
	t.bufs = t.bufs[:0]
}

// hitPredictor predicts whether a read is likely to be answered from memory: a
// lookup that misses costs a little each time.
type hitPredictor struct {
	tries   atomic.Int32 // tries
	skipped atomic.Uint32
}

const (
	// predictorMost is how many tries a hit gives.
	predictorMost = 16
	// predictorEvery is how often to try without a prediction.
	predictorEvery = 16
)

func (l *hitPredictor) try() bool { return l.tries.Load() > 0 || l.skipped.Add(1)%predictorEvery == 0 }

func (l *hitPredictor) note(lucky bool) {
	if lucky {
		if l.tries.Load() < predictorMost {
			l.tries.Store(predictorMost)
		}
	} else if l.tries.Load() > 0 {
		l.tries.Add(-1)
	}
}
