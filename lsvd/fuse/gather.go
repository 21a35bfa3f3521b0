package fuse

import (
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/lsvd/internal/aio"
)

// If there have been only small requests for a while that need not wait, writes
// and reads of what is in memory, a single reader does: it gathers those that
// are there already, answers the reads with one call, and then writes the
// writes. To copy them costs less than to wake another reader. And as it is the
// only one, it may look for the next request before it sleeps: poll.go.

const (
	// smallRequest is how long a request may be for another one to wait while it is copied.
	smallRequest = 16 << 10
	// gatherMost is how many requests are gathered before they are carried out.
	gatherMost = 32
	// singleAfter is how many requests of that kind come in a row before a single reader does.
	singleAfter = 64
)

// streak counts the small requests that need not wait since the last other one.
type streak struct{ n atomic.Int64 }

// long reports whether there were so many that a single reader does.
func (s *streak) long() bool { return s.n.Load() >= singleAfter }

// quick notes a small request that need not wait.
func (s *streak) quick() { s.n.Add(1) }

// end notes another request, and reports whether a single reader did until then.
func (s *streak) end() bool { return s.n.Load() > 0 && s.n.Swap(0) >= singleAfter }

// gather takes the request of n bytes that was read, and those that are there
// already, if there are only small ones: it queues writes, and answers reads.
// It returns the length of the request that is left to be handled, 0 if none
// is, and whether commit must follow.
//
// The reader counts as one that waits in the kernel, and nobody else may: then
// what it has seen there, it can read. Only if the kernel has given that request
// up meanwhile does the reader wait, and look ends what it has taken.
func (r *reader) gather(n int) (left int, queued bool) {
	c := r.c
	if !c.streak.long() {
		return n, false
	}
	c.gathering.Store(true) // before the look at idle: who comes now sees it, or is seen
	defer c.gathering.Store(false)
	defer c.tell()
	if c.idle.Load() != 1 {
		return n, false
	}
	for i := 1; ; i++ {
		if n < len(r.head) || c.stopping.Load() {
			return n, queued
		}
		h, in := parseHead(r.head), r.head[inHead:]
		switch size := n - len(r.head); {
		case h.op == opWrite && size <= smallRequest && r.queue(h, in, size):
			queued = true
			c.watch.arm()
		case h.op == opRead && r.readCached(h, in):
			c.streak.quick()
			r.later(h)
			c.watch.arm()
		default:
			return n, queued
		}
		if i == gatherMost || !ready(c.fd) {
			return 0, queued
		}
		var errno unix.Errno
		if n, errno = r.read(); errno != 0 {
			return 0, queued // who reads next sees it
		}
	}
}

// ready reports whether there is a request; tests change it.
var ready = func(fd int) bool {
	n, _ := pending(fd)
	return n > 0
}

// readCached reads for the request h into the reader's buffer, if it is small
// and all is in memory, and says whether it has.
func (r *reader) readCached(h head, in []byte) bool {
	c := r.c
	if c.cached == nil || len(in) < arguments[opRead] || !c.memory.try() {
		return false
	}
	off, n := int64(ne.Uint64(in[8:])), int(ne.Uint32(in[16:]))
	if off < 0 || n <= 0 || n > smallRequest {
		return false
	}
	ok := c.cached.ReadCached(r.data[:n], off)
	c.memory.note(ok)
	r.unique, r.size = h.unique, n
	return ok
}

// later has tell answer the read h with what is in the buffer, and goes on
// with another one.
func (r *reader) later(h head) {
	c := r.c
	r.out = r.out[:outHead]
	next, _ := c.take()
	if next == nil {
		r.finish(h.unique, r.data[:r.size], 0)
		return
	}
	c.writes.Add(1)
	c.told.mu.Lock()
	c.told.bufs = append(c.told.bufs, r.buffer)
	c.told.mu.Unlock()
	r.buffer = next
}

// told are the buffers of reads that are to be answered.
type told struct {
	mu   sync.Mutex
	bufs []*buffer
}

// tell answers the reads that were gathered.
func (c *Conn) tell() {
	t := &c.told
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.bufs) == 0 {
		return
	}
	var batch *aio.Batch
	if len(t.bufs) > 1 {
		batch = aio.NewBatch()
	}
	for _, b := range t.bufs {
		reply(b.out, b.unique, 0, b.size)
		if batch == nil {
			b.answer(b.data[:b.size])
		} else {
			batch.AddVec(c.fd, b.parts(b.data[:b.size]))
		}
	}
	if batch != nil {
		batch.Submit(func(i int, errno unix.Errno) { t.bufs[i].answered(errno) })
	}
	for _, b := range t.bufs {
		c.give(b)
		c.writes.Done()
	}
	clear(t.bufs)
	t.bufs = t.bufs[:0]
}

// luck is whether reads are likely to be answered from memory: to look there
// in vain costs a little each time.
type luck struct {
	left  atomic.Int32 // tries
	tries atomic.Uint32
}

const (
	// luckMost is how many tries one that was lucky gives at least.
	luckMost = 16
	// luckEvery is how often to try nevertheless.
	luckEvery = 16
)

func (l *luck) try() bool { return l.left.Load() > 0 || l.tries.Add(1)%luckEvery == 0 }

func (l *luck) note(lucky bool) {
	if lucky {
		if l.left.Load() < luckMost {
			l.left.Store(luckMost)
		}
	} else if l.left.Load() > 0 {
		l.left.Add(-1)
	}
}
