package ingress

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"miren.dev/runtime/pkg/schema"
)

// Sizes of the copy buffers.
const (
	copyBuffer = 32 << 10
	// smallBody is the size up to which a body is read whole before the request
	// is sent. Head and body then leave in one write, without a second
	// goroutine.
	smallBody = 16 << 10
	// spliceFrom is the size of the rest of a body from which the kernel copies
	// it (splice).
	spliceFrom = 256 << 10
	// splicePiece is how much the kernel copies before deadlines are set again.
	splicePiece = 512 << 10
	// continueWait is how long the sandbox may take to say 100 Continue; after
	// it the body is sent anyway.
	continueWait = time.Second
	// lateBody is how long the ingress reads the rest of a request body after
	// the sandbox has answered without it.
	lateBody = 500 * time.Millisecond
	// maxInformational bounds the 1xx answers before the answer.
	maxInformational = 16
)

var (
	errBodyTooLarge = errors.New("request body is larger than allowed")
	errSkipBody     = errors.New("the sandbox answered without the body")

	bufferPool = sync.Pool{New: func() any { b := make([]byte, copyBuffer); return &b }}
)

// dialError says that no byte was sent.
type dialError struct{ error }

func (e *dialError) Unwrap() error { return e.error }

// staleError says that a reused connection broke before the answer began.
type staleError struct{ error }

func (e *staleError) Unwrap() error { return e.error }

// answerError says that the sandbox's answer is not valid HTTP.
type answerError struct{ error }

func (e *answerError) Unwrap() error { return e.error }

// exchange is one request that is being relayed.
type exchange struct {
	in      *Ingress
	w       http.ResponseWriter
	r       *http.Request
	out     outgoing
	stream  *stream // of a WebSocket by HTTP/2 or HTTP/3; nil: none
	trusted bool
	small   []byte // start of the body, read ahead
	haveAll bool   // small is the whole body

	stats        *serviceStats // of the service that serves; nil: none
	gate         *gate         // of the route whose settings hold; nil: none
	maxBody      int64
	answerWithin time.Duration

	begun   time.Time     // when a sandbox was first tried; zero: none was
	first   time.Time     // when the answer began
	version schema.ID     // of the sandbox that was tried last
	sandbox schema.ID     // that was tried last
	limit   time.Duration // how long the sandbox may be silent within its answer; 0: unlimited
	bounded bool          // the client's connection has a write deadline

	started  bool // the client has the head of the answer
	aborted  bool // the sandbox's answer ended early
	status   int
	bytes    int64
	upgraded bool
}

// attempt sends the request to b and relays the answer. After a *dialError or a
// *staleError the caller may attempt again. After any other error, either the
// client has an answer (started) or the caller can still send one.
func (x *exchange) attempt(b *backend, fresh bool) (err error) {
	ctx := x.r.Context()
	if x.sandbox = b.ID; x.begun.IsZero() {
		x.begun = time.Now()
	}
	if b.H2C {
		return x.attemptH2(b)
	}
	c, err := b.get(ctx, fresh)
	if err != nil {
		if ctx.Err() == nil {
			b.markDown()
		}
		return &dialError{err}
	}
	b.markUp()
	reusable := false
	nc := c.Conn
	stop := context.AfterFunc(ctx, func() { nc.Close() })
	var body *bodyCopy
	defer func() {
		if body != nil && !body.finish(x, c) {
			reusable = false
		}
		if stop() && reusable && c.br.Buffered() == 0 {
			b.put(c)
		} else {
			c.discard()
		}
	}()

	if x.out.length > 0 && x.out.length <= smallBody && !x.out.expect && !x.haveAll {
		if err := x.readSmall(); err != nil {
			return &clientReadError{err}
		}
	}
	bp := bufferPool.Get().(*[]byte)
	defer bufferPool.Put(bp)
	head := append(x.out.appendHead((*bp)[:0], x.trusted), x.small...)
	_, werr := nc.Write(head)
	if werr == nil && x.out.length != 0 && !x.haveAll {
		_ = http.NewResponseController(x.w).EnableFullDuplex() // HTTP/1.1 supports it
		body = startBody(x, c)
	}

	if body == nil {
		x.expectAnswer(nc)
	}
	var re response
	for n := 0; ; n++ {
		lines, err := readHead(c.br)
		if err != nil {
			return x.noAnswer(c, body, err, werr)
		}
		var http11 bool
		if re.status, http11, lines, err = parseStatus(lines); err != nil {
			return &answerError{err}
		}
		if re.status >= 200 || re.status == http.StatusSwitchingProtocols {
			err := re.parseInto(x.w.Header(), lines, http11)
			if err == nil {
				err = x.stream.check(re.status, x.w.Header())
			}
			if err != nil {
				clear(x.w.Header())
				return &answerError{err}
			}
			break
		}
		if n == maxInformational {
			return &answerError{errors.New("too many informational answers")}
		}
		if re.status == http.StatusContinue {
			body.proceed()
			continue
		}
		h := x.w.Header()
		if err := re.parseInto(h, lines, http11); err != nil {
			clear(h)
			return &answerError{err}
		}
		x.w.WriteHeader(re.status)
		clear(h)
	}
	body.answered()
	if x.answerWithin > 0 {
		_ = nc.SetReadDeadline(time.Time{})
	}
	if re.status == http.StatusSwitchingProtocols {
		if x.out.upgrade == "" || !strings.EqualFold(re.upgrade, x.out.upgrade) {
			clear(x.w.Header())
			return &answerError{errors.New("the protocol was switched without being asked")}
		}
		return x.tunnel(c, &re)
	}
	re.frame(c, x.r.Method)
	if err := x.relay(c, &re, bp); err != nil {
		return err
	}
	reusable = re.keepAlive
	return nil
}

// readSmall reads the whole body of a request before it is sent.
func (x *exchange) readSmall() error {
	x.small = make([]byte, x.out.length)
	limit := x.in.cfg.BodyTimeout
	control := http.NewResponseController(x.w)
	for n := 0; n < len(x.small); {
		if limit > 0 {
			_ = control.SetReadDeadline(time.Now().Add(limit))
		}
		m, err := x.r.Body.Read(x.small[n:])
		if n += m; n < len(x.small) && err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
	}
	if limit > 0 {
		_ = control.SetReadDeadline(time.Time{})
	}
	x.haveAll = true
	return nil
}

// expectAnswer limits the time until the answer begins. It is called when the
// whole request has been sent.
func (x *exchange) expectAnswer(c net.Conn) {
	if t := x.answerWithin; t > 0 {
		_ = c.SetReadDeadline(time.Now().Add(t))
	}
}

// noAnswer returns the reason why no answer came, given readErr.
func (x *exchange) noAnswer(c *upConn, body *bodyCopy, readErr, writeErr error) error {
	gone := x.r.Context().Err()
	if body != nil {
		if gone != nil || errors.Is(readErr, net.ErrClosed) {
			<-body.done // copyBody ended the exchange as its last step, or ends with it
		}
		if err := body.failed(); err != nil {
			return err
		}
	}
	if gone != nil {
		return &clientReadError{gone}
	}
	switch {
	case c.gone.Load():
		readErr = errGone
	case body.stuck():
		return &answerError{os.ErrDeadlineExceeded}
	case errors.Is(readErr, os.ErrDeadlineExceeded), errors.Is(readErr, errHeadTooLarge):
		return &answerError{readErr}
	case writeErr != nil:
		readErr = writeErr
	}
	if c.reused && body == nil && idempotent(x.r) {
		return &staleError{readErr}
	}
	return readErr
}

// relay copies the answer to the client.
func (x *exchange) relay(c *upConn, re *response, bp *[]byte) error {
	x.head(re)
	h := x.w.Header()
	var err error
	if x.gate != nil {
		own := *re // what send needs is on the heap, for routes with settings only
		err = x.gate.relay(x, c.of, &own, func() error { return x.relayBody(c, &own, bp) })
	} else {
		err = x.relayBody(c, re, bp)
	}
	if err == nil && re.chunked && re.body != nil {
		first := true
		err = readTrailers(c.br, func(name, value string) {
			if first {
				x.flush() // chunked, so that the answer has room for trailers
				first = false
			}
			if !contains(re.trailers, name) {
				name = http.TrailerPrefix + name
			}
			h.Add(name, value)
		})
	}
	if err != nil {
		if x.bounded {
			x.offer()
		}
		x.flush() // this much arrived; ServeHTTP ends the connection early
		x.aborted = true
		return err
	}
	if x.limit > 0 {
		_ = c.Conn.SetReadDeadline(time.Time{})
	}
	if x.bounded {
		x.offer()
		x.flush()
		_ = http.NewResponseController(x.w).SetWriteDeadline(time.Time{})
	}
	return nil
}

// head completes the head of the answer.
func (x *exchange) head(re *response) {
	h := x.w.Header()
	if _, ok := h["X-Request-Id"]; !ok {
		h["X-Request-Id"] = []string{x.out.requestID}
	}
	if _, ok := h["Content-Type"]; !ok {
		h["Content-Type"] = nil // keep net/http from guessing a content type
	}
	for _, t := range re.trailers {
		h.Add("Trailer", t)
	}
	x.sendElsewhere(h)
	x.announceHTTP3(h)
	x.started, x.status, x.first = true, re.status, time.Now()
	x.limit = max(x.in.cfg.BodyTimeout, 0)
	if mayBeSilent(h.Get("Content-Type")) {
		x.limit = 0
	}
}

// relayBody sends the head and the body of the answer.
func (x *exchange) relayBody(c *upConn, re *response, bp *[]byte) error {
	x.w.WriteHeader(re.status)
	switch {
	case re.body == nil:
		return nil
	case re.length > 0:
		return x.relayLength(c, re.length, bp)
	}
	return x.relayStream(c, re, bp)
}

// mayBeSilent reports whether an answer of this type is a stream in which pauses
// are normal.
func mayBeSilent(contentType string) bool {
	return strings.HasPrefix(contentType, "text/event-stream") || strings.HasPrefix(contentType, "application/grpc")
}

// await limits the time until the sandbox sends more of its answer.
func (x *exchange) await(c *upConn) {
	if x.limit > 0 {
		_ = c.Conn.SetReadDeadline(time.Now().Add(x.limit))
	}
}

// offer limits the time until the client has read the bytes that are written next.
func (x *exchange) offer() {
	if t := x.in.cfg.BodyTimeout; t > 0 {
		_ = http.NewResponseController(x.w).SetWriteDeadline(time.Now().Add(t))
		x.bounded = true
	}
}

func (x *exchange) flush() {
	if f, ok := x.w.(http.Flusher); ok {
		f.Flush()
	}
}

// relayLength copies n bytes, and flushes when it would wait for more.
func (x *exchange) relayLength(c *upConn, n int64, bp *[]byte) error {
	unflushed := false
	for n > 0 {
		if buffered := c.br.Buffered(); buffered > 0 {
			p, _ := c.br.Peek(int(min(int64(buffered), n)))
			if n > int64(len(p)) {
				x.offer() // a short answer fits into buffers of the kernel
			}
			m, err := x.w.Write(p)
			x.bytes += int64(m)
			if err != nil {
				return &clientReadError{err}
			}
			_, _ = c.br.Discard(len(p)) // these bytes are buffered
			n -= int64(len(p))
			unflushed = true
			continue
		}
		if n >= spliceFrom {
			if rf, ok := x.w.(io.ReaderFrom); ok {
				// The deadline is for the piece, since how far it is cannot be seen.
				x.offer()
				x.await(c)
				piece := min(n, splicePiece)
				m, err := rf.ReadFrom(&io.LimitedReader{R: c.Conn, N: piece})
				x.bytes += m
				if n -= m; err == nil && m < piece {
					err = io.ErrUnexpectedEOF
				}
				if err != nil {
					return err
				}
				continue
			}
		}
		if unflushed {
			x.flush()
			unflushed = false
		}
		p := (*bp)[:min(int64(copyBuffer), n)]
		x.await(c)
		m, err := c.Conn.Read(p)
		if m > 0 {
			x.offer()
			k, werr := x.w.Write(p[:m])
			x.bytes += int64(k)
			if werr != nil {
				return &clientReadError{werr}
			}
			n -= int64(m)
			unflushed = true
		}
		if err != nil && n > 0 {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
	}
	return nil
}

// relayStream copies a body of unknown length and sends each piece at once.
func (x *exchange) relayStream(c *upConn, re *response, bp *[]byte) error {
	if c.br.Buffered() == 0 {
		x.flush()
	}
	if len(re.trailers) > 0 {
		x.flush()
	}
	for {
		x.await(c)
		m, err := re.body.Read((*bp)[:copyBuffer])
		if m > 0 {
			x.offer()
			k, werr := x.w.Write((*bp)[:m])
			x.bytes += int64(k)
			if werr != nil {
				return &clientReadError{werr}
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		x.flush()
	}
}
