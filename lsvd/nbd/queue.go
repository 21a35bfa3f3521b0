package nbd

// Writes that have come together are queued by the reader and carried out as
// one, by it or by who is writing at that time, as soon as no further whole
// request is there.

// maxQueued bounds how many writes the reader queues before it has them
// carried out.
const maxQueued = 64

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
	l.queued++
	return true
}

// settle has what is queued carried out, unless more will be queued at once.
// It reports whether the caller still is the reader.
func (l *link) settle() bool {
	if l.queued == 0 || l.queued < maxQueued && l.ready() {
		return true
	}
	l.queued = 0
	return l.busy(l.disk.Commit)
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

// Done answers a write that was queued; the answer is sent when all of those
// written with it have theirs.
func (q *request) Done(err error, _ bool) {
	var head [32]byte
	l := q.link
	q.data.free()
	h := head[:0]
	if err != nil {
		h = l.x.failed(h, q, err)
	} else {
		h = appendSimple(h, q, 0)
	}
	l.out.put(q, h)
}

// Told implements [lsvd.Waiter].
func (q *request) Told() {
	l := q.link
	requests.Put(q)
	l.out.send()
	l.all.Done()
}
