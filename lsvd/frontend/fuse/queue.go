package fuse

import (
	"golang.org/x/sys/unix"
)

// Writes are not waited for: the reader has the disk queue one, with the
// buffer it is in, and goes on with another buffer. If nobody writes at that
// time, it does so itself, at once; else who writes takes the queue as one
// record and answers each. So with many writes at a time one reader is busy
// reading them, one writing many with one call, and nobody has to be woken.
//
// The same holds for flushes: if one is under way that covers what was written,
// who carries it out answers. Where they come after every write, who wrote
// begins the flush before it is asked for.

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
			c.wakeReader() // for the one who will ask
		}
		c.doing.Add(-1)
		c.flusher.FlushEarly()
		c.doing.Add(1)
	}
}

// join has the flush of h answered by who is at it, and reports false if
// nobody is.
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

// joinedFlush is a flush that somebody else carries out.
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

// BatchDone implements [lsvd.Waiter].
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
