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
	// readBuffer is the size of a connection's read buffer in bytes: it holds many small writes.
	readBuffer = 256 << 10
	// directPayload is the size from which data skips the buffer.
	directPayload = 32 << 10
	// workers is the number of goroutines of a connection. Each carries out one
	// request at a time; queued requests come on top.
	workers = 32
)

// link is a connection that transmits. Its workers take turns to read a request
// and carry it out, so no goroutine hands a request to another.
type link struct {
	x      *session
	c      stream
	in     io.Reader // the early bytes of the client, then c
	budget *budget
	out    *replies
	all    sync.WaitGroup
	disk   lsvd.Queuer // nil: the disk cannot queue writes
	reader lsvd.Reader // nil: the disk cannot queue reads

	reading sync.Mutex    // held by the worker that reads requests, for all below
	r       *bufio.Reader // of in
	pending pending
	ended   bool
	err     error // set when the connection has ended
}

// transmit answers requests until the client disconnects. early has the bytes that the
// client sent before the handshake had ended.
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

// work reads requests and carries them out until the connection ends.
func (l *link) work(ctx context.Context) {
	for more := true; more; {
		l.reading.Lock()
		var q *request
		q, more = l.read()
		b := l.pending
		l.pending = pending{}
		l.reading.Unlock()
		if b.writes && b.reads != nil { // no request waits for the others
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
// returns, or the queued requests must begin. It reports false when the connection has ended.
// The caller holds reading.
func (l *link) read() (*request, bool) {
	for !l.ended {
		q, alone, err := l.next()
		if q == nil {
			if err != nil {
				l.c.Close() // a request that the server did not understand gets no reply, so no client may wait for one
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

// next reads a request; nil without an error is the end of the connection. It waits
// while the connection has too many unanswered requests.
func (l *link) next() (q *request, alone bool, err error) {
	h, err := l.r.Peek(requestSize)
	if err != nil {
		if errors.Is(err, io.EOF) && len(h) == 0 {
			return nil, false, nil // the client hung up between two requests
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

// payload fills p from the read buffer. It reads the bytes that the buffer lacks straight
// into p if they are many.
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
