package nbd

import (
	"context"

	"miren.dev/runtime/lsvd"
)

// A worker queues the writes that have come together. They are carried out as
// one, by the worker or by the committer that is writing at that time, as soon as
// no further whole request is there. Small reads that are not alone are made
// together, and those that end together are answered with one call.

const (
	// maxQueued bounds how many requests a worker queues before it has them
	// carried out.
	maxQueued = 64
	// smallRead is how much a read may ask for to be queued: another worker
	// would cost more than to copy it.
	smallRead = 16 << 10
)

// queue has the disk carry out the write q with others, and reports false if
// it cannot be so.
func (l *link) queue(q *request) bool {
	if l.disk == nil || q.typ != cmdWrite || q.flags != 0 || l.x.check(q) != nil {
		return false
	}
	q.link = l
	l.all.Add(1)
	if !l.disk.Queue(q.data.b, int64(q.off), q) {
		l.all.Done()
		return false
	}
	l.pending.writes = true
	return true
}

// queueRead keeps the read q to be made with others, and reports false if it
// cannot be so.
func (l *link) queueRead(q *request) bool {
	if l.reader == nil || q.typ != cmdRead || q.n == 0 || q.n > smallRead || l.x.check(q) != nil {
		return false
	}
	q.link, q.data = l, newBuffer(int(q.n))
	l.pending.reads = append(l.pending.reads, lsvd.Read{P: q.data.b, Off: int64(q.off), Completion: q})
	return true
}

// pending holds the requests that a worker has queued in its turn.
type pending struct {
	n      int // how many
	writes bool
	reads  []lsvd.Read
}

// carryOut commits the queued writes and makes the queued reads.
func (l *link) carryOut(ctx context.Context, b pending) {
	if b.writes {
		l.disk.Commit()
		l.out.send()
	}
	if len(b.reads) > 0 {
		l.all.Add(len(b.reads))
		l.reader.ReadBatch(ctx, b.reads)
	}
}

// ready reports whether a whole request can be read without waiting, for it or
// for room: what is under way may wait for what is queued.
func (l *link) ready() bool {
	n := l.r.Buffered()
	if n < requestSize {
		return false
	}
	h, err := l.r.Peek(requestSize)
	var q request
	if err != nil || q.decode(h) != nil || !l.budget.room(q.busy) {
		return false
	}
	return q.typ != cmdWrite || n >= requestSize+int(q.n)
}

// Done answers a request that was queued; the answer is sent when all of those
// that ended with it have theirs.
func (q *request) Done(err error, _ bool) {
	var head [64]byte
	l := q.link
	h, data := head[:0], q.data
	if q.typ == cmdWrite || err != nil {
		data.free()
		data = nil
	}
	switch {
	case err != nil:
		h = l.x.failed(h, q, err)
	case data != nil:
		h = l.x.readHead(h, q, len(data.b))
	default:
		h = appendSimple(h, q, 0)
	}
	l.out.put(q, h, data)
}

// BatchDone implements [lsvd.Completion]. The caller commits for all users of the
// disk, or completes reads of all disks, and must not wait for a client.
func (q *request) BatchDone() {
	l := q.link
	requests.Put(q)
	l.out.sendBy(l.all.Go)
	l.all.Done()
}
