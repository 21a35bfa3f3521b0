package nbd

import (
	"context"

	"miren.dev/runtime/lsvd"
)

// A worker queues the writes that the client has sent together. The worker, or the
// committer that is writing at that time, carries them out as one record as soon as the
// connection has no further whole request. The disk reads small requests that came
// together in one batch, and one call sends the replies that are ready together.

const (
	// maxQueued is the number of queued requests at which a worker commits them.
	maxQueued = 64
	// smallRead is the largest read that is queued, in bytes: below it a wake-up of
	// another worker costs more than the copy.
	smallRead = 16 << 10
)

// queue adds the write q to the queued ones. It reports false if the disk cannot
// carry q out with others.
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

// queueRead adds the read q to the queued ones. It reports false if the disk cannot
// read q with others.
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

// ready reports whether the worker can read a whole request without waiting for the
// client or for the budget. It must not wait: requests under way may wait for queued ones.
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

// Done answers a queued request. BatchDone sends the reply with those of all requests
// that ended together.
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
