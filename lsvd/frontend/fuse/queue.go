package fuse

import (
	"golang.org/x/sys/unix"

	"miren.dev/runtime/lsvd"
)

// A worker does not wait for a write: it queues the write at the disk, with the
// buffer that has its data. If no committer is writing at that time, the worker
// commits the queue itself; else the committer writes the queue as one record and
// answers each write. So with many writes at a time one worker reads them, another
// writes many with one call, and no goroutine has to be woken.
//
// Small reads that came together are read together: those of blocks that are not
// in memory are read with one call. If a flush is under way that covers all writes before, its
// goroutine answers. Where a flush follows every write, the worker begins it
// before it is asked for.

// queueWrite has the disk take the write q, and reports false if it cannot do so;
// commit must follow.
func (c *Conn) queueWrite(q *request) bool {
	b, in, n := q.buffer, q.in(), q.more()
	if c.queuer == nil || len(in) < arguments[opWrite] || n != int(ne.Uint32(in[16:])) {
		return false
	}
	b.unique, b.size, b.read = q.h.unique, n, false
	c.requests.Add(1)
	if !c.queuer.Queue(b.data[:n], int64(ne.Uint64(in[8:])), b) {
		c.requests.Done()
		return false
	}
	return true
}

// smallRead reports whether the arguments are those of a small read of the disk.
func (c *Conn) smallRead(in []byte) bool {
	if len(in) < arguments[opRead] {
		return false
	}
	off, n := readRange(in)
	return n > 0 && n <= smallRequest && off >= 0 && off <= c.disk.Size()-int64(n)
}

// readRange returns the range of a read with the arguments.
func readRange(in []byte) (off int64, n int) {
	return int64(ne.Uint64(in[8:])), int(ne.Uint32(in[16:]))
}

// carryOutBatch carries out and answers the requests of a batch. No request waits for
// another one, unless both are writes.
func (c *Conn) carryOutBatch(b batch) {
	switch {
	case len(b.reads) > 0 && (b.writes || b.last != nil):
		c.requests.Go(func() { c.carryOutReads(b.reads) })
	case len(b.reads) > 0:
		c.carryOutReads(b.reads)
	}
	switch {
	case b.writes && b.last != nil:
		c.requests.Go(c.commit)
	case b.writes:
		c.commit()
	}
	if b.last != nil {
		c.carryOut(b.last)
	}
}

// commit has the disk carry out the queued writes.
func (c *Conn) commit() {
	c.queuer.Commit()
	if c.flusher != nil && c.flusher.FlushLikely() {
		c.flusher.FlushEarly()
	}
}

// join joins the flush q to one that is under way, and reports false if none is.
func (c *Conn) join(q *request) bool {
	if c.flusher == nil {
		return false
	}
	c.requests.Add(1)
	if !c.flusher.Join(&joinedFlush{c: c, unique: q.h.unique}) {
		c.requests.Done()
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
func (j *joinedFlush) BatchDone() { j.c.requests.Done() }

// carryOutReads makes small reads together.
func (c *Conn) carryOutReads(reads []request) {
	if c.reader == nil || len(reads) == 1 {
		for i := range reads[1:] {
			c.requests.Go(func() { c.carryOut(&reads[i+1]) })
		}
		c.carryOut(&reads[0])
		return
	}
	all := make([]lsvd.Read, len(reads))
	for i, q := range reads {
		off, n := readRange(q.in())
		q.unique, q.size, q.read = q.h.unique, n, true
		all[i] = lsvd.Read{P: q.data[:n], Off: off, Completion: q.buffer}
	}
	c.requests.Add(len(all))
	c.reader.ReadBatch(c.serving, all)
}

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
	c.putBuffer(b)
	c.requests.Done()
}
