package nbd

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"sync"

	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/pkg/errs"
)

const (
	// readBuffer is what a connection reads at once: many small writes.
	readBuffer = 256 << 10
	// directPayload is the size from which data skips the buffer.
	directPayload = 32 << 10
	// workers is how many goroutines a connection has: as many requests are
	// carried out at a time, besides those that are queued.
	workers = 32
)

// link is a connection that transmits. Its workers take turns to read a request
// and carry it out, so no goroutine hands a request to another.
type link struct {
	x      *session
	c      stream
	in     io.Reader // c, and before it what had come early
	budget *budget
	out    *replies
	all    sync.WaitGroup
	disk   lsvd.Queuer // nil if the disk is none
	reader lsvd.Reader // the same

	reading sync.Mutex    // held by the worker that reads requests, for all below
	r       *bufio.Reader // of in
	pending pending
	ended   bool
	err     error // once ended
}

// transmit answers requests until the client disconnects. early is what the
// client sent without waiting for the end of the handshake.
func (x *session) transmit(ctx context.Context, c stream, early []byte) error {
	l := &link{x: x, c: c, in: c, budget: newBudget()}
	if len(early) > 0 {
		l.in = io.MultiReader(bytes.NewReader(early), c)
	}
	l.r = bufio.NewReaderSize(l.in, readBuffer)
	l.out = &replies{c: c, budget: l.budget}
	l.disk, _ = x.export.Disk.(lsvd.Queuer)
	l.reader, _ = x.export.Disk.(lsvd.Reader)
	for range workers {
		l.all.Go(func() { l.work(ctx) })
	}
	l.all.Wait()
	return l.err
}

// work reads requests and carries them out, until there are no more.
func (l *link) work(ctx context.Context) {
	for more := true; more; {
		l.reading.Lock()
		var q *request
		q, more = l.read()
		b := l.pending
		l.pending = pending{}
		l.reading.Unlock()
		if b.writes && b.reads != nil { // none waits for the others
			writes := pending{writes: true}
			l.all.Go(func() { l.carryOut(ctx, writes) })
			b.writes = false
		}
		switch {
		case b.n == 0:
		case q != nil:
			l.all.Go(func() { l.carryOut(ctx, b) })
		default:
			l.carryOut(ctx, b)
		}
		if q != nil {
			l.x.handle(ctx, l.out, q)
		}
	}
}

// read reads requests and queues them, until one cannot be queued, which it
// returns, or the queued requests must begin. It reports false when there are no more.
// The caller holds reading.
func (l *link) read() (*request, bool) {
	for !l.ended {
		q, alone, err := l.next()
		if q == nil {
			if err != nil {
				l.c.Close() // no client may wait for replies to what was not understood
			}
			l.ended, l.err = true, err
			break
		}
		if !l.queue(q) && (alone || !l.queueRead(q)) {
			return q, true
		}
		l.pending.n++
		if l.pending.n == maxQueued || !l.ready() {
			return nil, true
		}
	}
	return nil, false
}

// next reads a request; nil without an error is the end. It waits while too
// many are not answered.
func (l *link) next() (q *request, alone bool, err error) {
	h, err := l.r.Peek(requestSize)
	if err != nil {
		if errors.Is(err, io.EOF) && len(h) == 0 {
			return nil, false, nil // without good-bye, between requests
		}
		return nil, false, errs.Wrap(err, "read request")
	}
	q = requests.Get().(*request)
	if err := q.decode(h); err != nil {
		return nil, false, err
	}
	if q.typ == cmdDisconnect {
		return nil, false, nil
	}
	if _, err := l.r.Discard(requestSize); err != nil {
		return nil, false, errs.Wrap(err, "read request")
	}
	alone = l.budget.take(q.busy)
	if q.typ == cmdWrite {
		q.data = newBuffer(int(q.n))
		if err := l.payload(q.data.b); err != nil {
			return nil, false, errs.Wrap(err, "read payload")
		}
	}
	return q, alone, nil
}

// payload fills p: what is not in the buffer yet and is large does not go
// through it.
func (l *link) payload(p []byte) error {
	if n := min(l.r.Buffered(), len(p)); len(p)-n >= directPayload {
		if _, err := io.ReadFull(l.r, p[:n]); err != nil {
			return err
		}
		_, err := io.ReadFull(l.in, p[n:])
		return err
	}
	_, err := io.ReadFull(l.r, p)
	return err
}
