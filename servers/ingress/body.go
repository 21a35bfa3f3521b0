package ingress

import (
	"errors"
	"io"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/net/http/httpguts"
)

// bodyCopy sends a request body while the answer is awaited.
type bodyCopy struct {
	done  chan struct{}
	err   error // valid after done
	skip  chan struct{}
	ready chan struct{}
	once  sync.Once

	mu   sync.Mutex
	got  bool // the answer has begun
	late bool // the answer has ended: the deadlines of finish stay
}

func startBody(x *exchange, c *upConn) *bodyCopy {
	b := &bodyCopy{done: make(chan struct{}), skip: make(chan struct{}), ready: make(chan struct{})}
	if !x.out.expect {
		close(b.ready)
		b.once.Do(func() {})
	}
	go func() {
		defer close(b.done)
		select {
		case <-b.ready:
		case <-b.skip:
			b.err = errSkipBody
			return
		case <-time.After(continueWait):
		}
		bp := bufferPool.Get().(*[]byte)
		b.err = copyBody(c.Conn, &x.out, x.maxBody, *bp, func(more bool) { b.bound(x, c, more) })
		bufferPool.Put(bp)
		b.mu.Lock()
		if b.err == nil && !b.got {
			x.expectAnswer(c.Conn)
		}
		b.mu.Unlock()
		var w *sandboxWriteError
		if b.err != nil && (!errors.As(b.err, &w) || errors.Is(b.err, os.ErrDeadlineExceeded)) {
			c.Conn.Close() // the sandbox must not mistake a part for the whole body
		}
	}()
	return b
}

// bound limits the time until the next piece of the body has arrived, or has been
// sent. If there is no more, it removes the limits: net/http and the pool of
// connections go on with both connections.
func (b *bodyCopy) bound(x *exchange, c *upConn, more bool) {
	var at time.Time
	if x.in.cfg.BodyTimeout <= 0 {
		return
	}
	if more {
		at = time.Now().Add(x.in.cfg.BodyTimeout)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.late {
		return
	}
	_ = http.NewResponseController(x.w).SetReadDeadline(at)
	_ = c.Conn.SetWriteDeadline(at)
}

// stuck reports whether the sandbox stopped reading the body.
func (b *bodyCopy) stuck() bool {
	if b == nil {
		return false
	}
	select {
	case <-b.done:
		var w *sandboxWriteError
		return errors.As(b.err, &w) && errors.Is(b.err, os.ErrDeadlineExceeded)
	default:
		return false
	}
}

// proceed is the sandbox's 100 Continue.
func (b *bodyCopy) proceed() {
	if b != nil {
		b.once.Do(func() { close(b.ready) })
	}
}

// answered records that the answer has begun: no deadline is set for its begin
// any more.
func (b *bodyCopy) answered() {
	if b != nil {
		b.mu.Lock()
		b.got = true
		b.mu.Unlock()
	}
}

// failed returns the error if copying the body ended the exchange.
func (b *bodyCopy) failed() error {
	select {
	case <-b.done:
		var w *sandboxWriteError
		if b.err != nil && !errors.As(b.err, &w) {
			return b.err
		}
	default:
	}
	return nil
}

// finish ends the copy, after giving the client at most lateBody to send the
// rest. It reports whether the whole body was sent.
func (b *bodyCopy) finish(x *exchange, c *upConn) bool {
	select {
	case <-b.done:
		return b.err == nil
	default:
	}
	close(b.skip)
	if x.started && !x.aborted {
		x.flush()
	}
	b.mu.Lock()
	b.late = true
	_ = http.NewResponseController(x.w).SetReadDeadline(time.Now().Add(lateBody))
	// The sandbox may have stopped reading.
	_ = c.Conn.SetWriteDeadline(time.Now().Add(lateBody))
	b.mu.Unlock()
	<-b.done
	if b.err == nil {
		_ = http.NewResponseController(x.w).SetReadDeadline(time.Time{})
	}
	return false
}

// copyBody sends the client's body, chunked if length is negative. It calls bound
// before each read and write, and with false after the last.
func copyBody(w io.Writer, o *outgoing, limit int64, buf []byte, bound func(more bool)) error {
	body := o.r.Body
	var sent int64
	// Leave room before the data for a chunk's size, and after it for its end.
	const room = 10
	for {
		bound(true)
		n, err := body.Read(buf[room : len(buf)-2])
		if n > 0 {
			if sent += int64(n); limit > 0 && sent > limit {
				return errBodyTooLarge
			}
			out := buf[room : room+n]
			if o.length < 0 {
				var size [room]byte
				s := strconv.AppendInt(size[:0], int64(n), 16)
				s = append(s, "\r\n"...)
				start := room - len(s)
				copy(buf[start:], s)
				copy(buf[room+n:], "\r\n")
				out = buf[start : room+n+2]
			}
			bound(true)
			if _, werr := w.Write(out); werr != nil {
				return &sandboxWriteError{werr}
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return &clientReadError{err}
		}
	}
	if o.length >= 0 {
		bound(false)
		return nil
	}
	end := append(buf[:0], "0\r\n"...)
	for name, values := range o.r.Trailer {
		if !httpguts.ValidTrailerHeader(name) {
			continue
		}
		for _, v := range values {
			end = appendField(end, name, v)
		}
	}
	if _, err := w.Write(append(end, "\r\n"...)); err != nil {
		return &sandboxWriteError{err}
	}
	bound(false)
	return nil
}

type sandboxWriteError struct{ error }
type clientReadError struct{ error }

func (e *clientReadError) Unwrap() error   { return e.error }
func (e *sandboxWriteError) Unwrap() error { return e.error }
