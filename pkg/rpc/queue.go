package rpc

import (
	"encoding/binary"
	"io"
	"sync"
	"time"
)

// queue holds the frames that one call received and did not read yet. The
// connection's reader pushes; one consumer takes. Frames are kept back to back
// in segments, each frame with 4 bytes of flags and length in front. The
// consumer takes all segments at a time, so that a burst costs one lock.
type queue struct {
	mu      sync.Mutex
	segs    []*buffer
	end     error // no frame comes any more; returned once segs are drained
	abort   error // returned at once
	waiting bool
	window  int64 // current size
	avail   int64 // bytes that the peer may still send
	held    int64 // bytes received and not given back to the connection's window

	// Used by the consumer only.
	cur    []*buffer // the first one is being read
	pos    int
	debt   int64 // bytes consumed and not given back
	waited bool  // the consumer had to wait since the last update
	update time.Time
}

const recordHeader = 4

// Segments have one of two sizes; a frame fits into the large one.
const (
	smallSegment = 2 << 10
	largeSegment = recordHeader + maxPayload
)

var (
	smallSegments = sync.Pool{New: func() any { return &buffer{b: make([]byte, 0, smallSegment)} }}
	largeSegments = sync.Pool{New: func() any { return &buffer{b: make([]byte, 0, largeSegment)} }}
)

func newSegment(n int, first bool) *buffer {
	if first && recordHeader+n <= smallSegment {
		return smallSegments.Get().(*buffer)
	}
	return largeSegments.Get().(*buffer)
}

func putSegment(b *buffer) {
	b.b = b.b[:0]
	if cap(b.b) == smallSegment {
		smallSegments.Put(b)
	} else {
		largeSegments.Put(b)
	}
}

func freeSegments(segs []*buffer) {
	for _, b := range segs {
		putSegment(b)
	}
}

// reset prepares q for a new call.
func (q *queue) reset(window int64) {
	freeSegments(q.segs)
	freeSegments(q.cur)
	q.segs, q.cur, q.pos = q.segs[:0], q.cur[:0], 0
	q.end, q.abort, q.waiting = nil, nil, false
	q.window, q.avail, q.held, q.debt, q.waited = window, window, 0, 0, false
}

// push adds a frame. It reports whether the consumer must be woken, and whether
// the frame was dropped because it has no reader any more.
func (q *queue) push(flags uint8, p []byte) (wake, dropped bool, err error) {
	cost := int64(headerLen + len(p))
	q.mu.Lock()
	defer q.mu.Unlock()
	if cost > q.avail {
		return false, false, protocolError("the peer sent more than the window of a call")
	}
	if q.abort != nil {
		return false, true, nil
	}
	if q.end != nil {
		return false, false, protocolError("data after the end of a stream")
	}
	q.avail -= cost
	q.held += cost
	n := len(q.segs) - 1
	if n < 0 || cap(q.segs[n].b)-len(q.segs[n].b) < recordHeader+len(p) {
		q.segs = append(q.segs, newSegment(len(p), n < 0))
		n++
	}
	seg := q.segs[n]
	seg.b = binary.BigEndian.AppendUint32(seg.b, uint32(len(p))<<8|uint32(flags))
	seg.b = append(seg.b, p...)
	if flags&flagEnd != 0 {
		q.end = io.EOF
	}
	wake = q.waiting
	q.waiting = false
	return wake, false, nil
}

// finish records that no frame comes any more. The first call counts, but an
// error replaces a plain end. It reports whether the consumer must be woken.
func (q *queue) finish(err error, atOnce bool) (wake bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.end == nil || q.end == io.EOF {
		q.end = err
	}
	if atOnce && q.abort == nil {
		q.abort = err
	}
	wake = q.waiting
	q.waiting = false
	return wake
}

// drop discards the held frames and returns their size in bytes.
func (q *queue) drop() int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.abort == nil {
		q.abort = errClosed
	}
	n := q.held
	q.held = 0
	freeSegments(q.segs)
	q.segs = nil
	return n
}

// take returns the next frame, valid until the next call of take. ok is false
// if the consumer must first wait for a wake-up.
func (q *queue) take() (flags uint8, p []byte, ok bool, err error) {
	if len(q.cur) > 0 && q.pos == len(q.cur[0].b) {
		putSegment(q.cur[0])
		q.cur, q.pos = q.cur[1:], 0
	}
	if len(q.cur) == 0 {
		q.mu.Lock()
		switch {
		case q.abort != nil:
			err = q.abort
		case len(q.segs) > 0:
			q.cur, q.segs = q.segs, nil
		case q.end != nil:
			err = q.end
		default:
			q.waiting, q.waited = true, true
		}
		q.mu.Unlock()
		if len(q.cur) == 0 {
			return 0, nil, false, err
		}
	}
	seg := q.cur[0].b
	h := binary.BigEndian.Uint32(seg[q.pos:])
	start := q.pos + recordHeader
	q.pos = start + int(h>>8)
	p = seg[start:q.pos]
	q.debt += int64(headerLen + len(p))
	return uint8(h), p, true, nil
}

// refill gives the window back if enough was read. It returns what the peer
// may send more, and what of that is given back to the connection's window.
// The window is too small, and grows, if the consumer empties half of it
// within two round trips and yet had to wait. grow takes up to n bytes from the
// budget for that.
func (q *queue) refill(limit int64, rtt time.Duration, grow func(n int64) int64) (credit, back int64) {
	if q.debt < q.window/2 {
		return 0, 0
	}
	now := time.Now()
	extra := int64(0)
	if q.waited && q.window < limit && now.Sub(q.update) < 2*rtt {
		extra = grow(min(q.window, limit-q.window))
	}
	q.update, q.waited = now, false
	q.mu.Lock()
	back = min(q.debt, q.held)
	credit = q.debt + extra
	q.debt = 0
	q.window += extra
	q.avail += credit
	q.held -= back
	q.mu.Unlock()
	return credit, back
}

// settle discards the bytes that were read and returns how many of them belong
// to the connection's window.
func (q *queue) settle() int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := q.held
	q.held, q.debt = 0, 0
	return n
}
