package fuse

import (
	"golang.org/x/sys/unix"
)

// A reader does not wait for a write: it queues the write at the disk, with the
// buffer that has its data, and goes on with another buffer. If no committer is
// writing at that time, the reader commits the queue itself; else the committer
// writes the queue as one record and answers each write. So with many writes at a
// time one reader reads them, another writes many with one call, and no goroutine
// has to be woken.
//
// The same holds for flushes: if one is under way that covers all writes before,
// its goroutine answers. Where a flush follows every write, the reader begins it
// before it is asked for.

// queueWrite has the disk take the write of h, and reports false if it cannot do
// so. n is how long it is; commit must follow.
func (r *reader) queueWrite(h head, in []byte, n int) bool {
	c := r.c
	if c.queuer == nil || len(in) < arguments[opWrite] || n != int(ne.Uint32(in[16:])) {
		return false
	}
	next, _ := c.getBuffer() // without memory there is the way that waits
	if next == nil {
		return false
	}
	b := r.buffer
	b.unique, b.size, b.read = h.unique, n, false
	c.writes.Add(1)
	if !c.queuer.Queue(b.data[:n], int64(ne.Uint64(in[8:])), b) {
		c.writes.Done()
		c.putBuffer(next)
		return false
	}
	r.buffer = next
	if n <= smallRequest {
		c.smallRun.extend()
	} else {
		c.largeRequest()
	}
	return true
}

// commit has the disk carry out what was queued; last says that no other
// reader waits in the kernel.
func (c *Conn) commit(last bool) {
	c.writing.Add(1)
	if last {
		c.stall.arm()
	}
	c.queuer.Commit()
	c.writerReturns()
	if c.flusher != nil && c.flusher.FlushLikely() {
		if c.idle.Load() == 0 {
			c.wakeReader() // for the request that is likely to come
		}
		c.doing.Add(-1)
		c.flusher.FlushEarly()
		c.doing.Add(1)
	}
}

// join joins the flush of h to one that is under way, and reports false if none
// is.
func (c *Conn) join(h head) bool {
	if c.flusher == nil {
		return false
	}
	c.writes.Add(1)
	if !c.flusher.Join(&joinedFlush{c: c, unique: h.unique}) {
		c.writes.Done()
		return false
	}
	return true
}

// joinedFlush is a flush that another goroutine carries out.
type joinedFlush struct {
	c      *Conn
	unique uint64
}

// Done answers the flush.
func (j *joinedFlush) Done(err error, _ bool) {
	b := buffer{c: j.c, out: make([]byte, outHead)}
	if err == nil {
		b.finish(j.unique, nil, 0)
	} else if j.c.serving.Err() == nil {
		j.c.opts.Logger.Error("request failed", "volume", j.c.Name, "operation", opFsync, "error", err)
		b.finish(j.unique, nil, unix.EIO)
	} // else it is for the successor
}

// BatchDone implements [lsvd.Completion].
func (j *joinedFlush) BatchDone() { j.c.writes.Done() }

// Done answers a write that was queued, or a read.
func (b *buffer) Done(err error, more bool) {
	c := b.c
	b.out = b.out[:outHead]
	switch {
	case err == nil && b.read:
		reply(b.out, b.unique, 0, b.size)
		c.answers.add(b, more)
	case err == nil:
		b.out = ne.AppendUint32(b.out, uint32(b.size))
		b.out = ne.AppendUint32(b.out, 0)
		reply(b.out, b.unique, 0, len(b.out)-outHead)
		c.answers.add(b, more)
	case c.serving.Err() == nil:
		op := uint32(opWrite)
		if b.read {
			op = opRead
		}
		c.opts.Logger.Error("request failed", "volume", c.Name, "operation", op, "error", err)
		b.finish(b.unique, nil, unix.EIO)
	} // else it is for the successor
}

// content is the data of the answer, nil if it is not a read.
func (b *buffer) content() []byte {
	if !b.read {
		return nil
	}
	return b.data[:b.size]
}

// BatchDone gives the buffer back.
func (b *buffer) BatchDone() {
	c := b.c
	c.answers.flush()
	if b.read {
		c.reading.Add(-1)
	}
	c.putBuffer(b)
	c.writes.Done()
}
