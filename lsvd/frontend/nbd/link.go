package nbd

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/pkg/errs"
)

const (
	// readBuffer is what a connection reads at once: many small writes.
	readBuffer = 256 << 10
	// directPayload is the size from which data skips the buffer.
	directPayload = 32 << 10
	// handover is how long a request may keep the connection's reader before
	// another goroutine takes over; it is noticed within twice the time.
	handover = 2 * time.Millisecond
	// quick is how long requests of a kind take, on average, that are worth
	// no other goroutine.
	quick = 20 * time.Microsecond
	// restTicks is after how many handovers without requests the watch rests.
	restTicks = 100
)

// link is a connection that transmits. One goroutine at a time is its reader.
// A request that is alone, or quick by experience and the last one that has
// come, is carried out by the reader itself: waking another goroutine costs
// more than most requests. So that one slow request does not keep the others waiting, a
// watch passes the role of the reader on when it takes long.
type link struct {
	x      *session
	c      stream
	in     io.Reader     // c, and before it what had come early
	r      *bufio.Reader // of in, for the reader
	budget *budget
	out    *replies
	work   chan *request // to idle workers
	all    sync.WaitGroup
	took   [len(flagsOf)]atomic.Int64 // per command: average nanoseconds
	disk   lsvd.Queuer                // nil if the disk is none
	reader lsvd.Reader                // the same
	queued int                        // requests that wait for begin; of the reader

	// turn is odd while the reader carries out a request. The one that makes
	// it even again, the reader or the watch, decides which goroutine reads on.
	turn   atomic.Uint64
	asleep atomic.Bool // the watch
	wake   chan struct{}

	end   sync.Once
	ended chan struct{}
	err   error // once ended
}

// transmit answers requests until the client disconnects. early is what the
// client sent without waiting for the end of the handshake.
func (x *session) transmit(ctx context.Context, c stream, early []byte) error {
	l := &link{x: x, c: c, in: c, budget: newBudget(), work: make(chan *request), wake: make(chan struct{}, 1), ended: make(chan struct{})}
	if len(early) > 0 {
		l.in = io.MultiReader(bytes.NewReader(early), c)
	}
	l.r = bufio.NewReaderSize(l.in, readBuffer)
	l.out = &replies{c: c, budget: l.budget}
	l.disk, _ = x.export.Disk.(lsvd.Queuer)
	l.reader, _ = x.export.Disk.(lsvd.Reader)
	l.all.Go(func() { l.watch(ctx) })
	l.read(ctx)
	<-l.ended
	close(l.work)
	l.all.Wait()
	return l.err
}

// read reads requests until there are no more or another goroutine does.
func (l *link) read(ctx context.Context) {
	for {
		if !l.settle() {
			return
		}
		q, alone, err := l.next()
		if q == nil {
			if l.queued > 0 {
				l.begin()
			}
			if err != nil {
				l.c.Close() // no client may wait for replies to what was not understood
			}
			l.end.Do(func() { l.err = err; close(l.ended) })
			return
		}
		if l.queue(q) || !alone && l.queueRead(ctx, q) {
			continue
		}
		if l.r.Buffered() == 0 && l.queued == 0 && (alone || l.quick(q)) {
			if !l.run(ctx, q) {
				return
			}
			continue
		}
		select {
		case l.work <- q:
		default:
			l.all.Go(func() {
				for ok := true; ok; q, ok = <-l.work {
					l.x.handle(ctx, l.out, q)
				}
			})
		}
	}
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

// quick reports whether requests like q are. What it says no to, it asks about
// again after a while.
func (l *link) quick(q *request) bool {
	if int(q.typ) >= len(l.took) {
		return true // an error
	}
	avg := l.took[q.typ].Load()
	if avg < int64(quick) {
		return true
	}
	l.took[q.typ].Store(avg - avg>>8)
	return false
}

// run carries out q as the reader, and reports whether the caller still is.
func (l *link) run(ctx context.Context, q *request) bool {
	return l.busy(func() {
		typ, began := int(q.typ), time.Now()
		l.x.handle(ctx, l.out, q)
		if typ < len(l.took) {
			avg := l.took[typ].Load()
			l.took[typ].Store(avg + (int64(time.Since(began))-avg)>>3)
		}
	})
}

// busy calls f as the reader, and reports whether the caller still is.
func (l *link) busy(f func()) bool {
	turn := l.turn.Add(1)
	if l.asleep.CompareAndSwap(true, false) {
		l.wake <- struct{}{}
	}
	f()
	return l.turn.CompareAndSwap(turn, turn+1)
}

// watch makes a new reader when the one there is has been busy for long.
func (l *link) watch(ctx context.Context) {
	tick := time.NewTicker(handover)
	defer tick.Stop()
	last, still := uint64(0), 0
	for {
		select {
		case <-tick.C:
		case <-l.ended:
			return
		}
		turn := l.turn.Load()
		if turn != last {
			last, still = turn, 0
			continue
		}
		if turn%2 == 1 && l.turn.CompareAndSwap(turn, turn+1) {
			l.all.Go(func() { l.read(ctx) })
			continue
		}
		if still++; still < restTicks {
			continue
		}
		tick.Stop()
		l.asleep.Store(true)
		if l.turn.Load() == last || !l.asleep.CompareAndSwap(true, false) {
			select {
			case <-l.wake:
			case <-l.ended:
				return
			}
		}
		still = 0
		tick.Reset(handover)
	}
}
