package ingress

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"net/url"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http/httpguts"
)

const (
	// h2Idle is how long a connection to a sandbox stays open without a request.
	h2Idle = time.Minute
	// h2Ping is after which silence a sandbox that speaks HTTP/2 is asked whether it
	// lives.
	h2Ping = 10 * time.Second
)

// h2 returns the transport of a sandbox that speaks HTTP/2 without TLS.
func (b *backend) h2() *http.Transport {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.transport == nil {
		p := &http.Protocols{}
		p.SetUnencryptedHTTP2(true)
		b.transport = &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				c, err := b.dial(ctx, b.Address)
				if err != nil {
					return nil, &dialError{err}
				}
				return c, nil
			},
			Protocols: p, DisableCompression: true, IdleConnTimeout: h2Idle, MaxResponseHeaderBytes: maxResponseHead,
			HTTP2: &http.HTTP2Config{SendPingTimeout: h2Ping, PingTimeout: unheard},
		}
	}
	return b.transport
}

// closeH2 closes the connections that carry no request. b.mu is not held.
func (b *backend) closeH2() {
	b.mu.Lock()
	t := b.transport
	b.mu.Unlock()
	if t != nil {
		t.CloseIdleConnections()
	}
}

// attemptH2 is attempt for a sandbox that speaks HTTP/2.
func (x *exchange) attemptH2(b *backend) error {
	if x.stream != nil {
		return &answerError{errH2CUpgrade}
	}
	ctx, cancel := context.WithCancelCause(x.r.Context())
	defer cancel(nil)
	slow := time.AfterFunc(time.Hour, func() { cancel(os.ErrDeadlineExceeded) })
	slow.Stop()
	defer slow.Stop()
	sent := func() { // the answer must begin now
		if x.answerWithin > 0 {
			slow.Reset(x.answerWithin)
		}
	}
	req, err := x.h2Request(ctx)
	if err != nil {
		return &answerError{err}
	}
	req.URL.Host = cmp.Or(b.Address, string(b.ID)) // one on a runner has none
	var body *h2Body
	if x.out.length != 0 {
		body = &h2Body{x: x, sent: sent, silent: mayBeSilent(x.r.Header.Get("Content-Type"))}
		req.Body, req.ContentLength = body, x.out.length
		defer body.finish()
	} else {
		sent()
	}
	resp, err := b.h2().RoundTrip(req)
	if err != nil {
		return x.noH2Answer(ctx, b, body, err)
	}
	defer resp.Body.Close()
	b.markUp()
	slow.Stop()
	if body != nil {
		body.answered()
	}
	if resp.StatusCode < 200 || resp.StatusCode > 999 { // the client of HTTP/2 takes any number
		return &answerError{fmt.Errorf("it answered with the status %d", resp.StatusCode)}
	}
	h := x.w.Header()
	for name, values := range resp.Header {
		if !hop(name) {
			h[name] = values
		}
	}
	re := &response{status: resp.StatusCode, length: resp.ContentLength, body: resp.Body, trailers: nil}
	for name := range resp.Trailer {
		re.trailers = append(re.trailers, name)
	}
	if len(re.trailers) > 0 {
		delete(h, "Content-Length") // with it HTTP/1.1 has no trailers
	}
	if x.r.Method == http.MethodHead || resp.Body == http.NoBody || re.length == 0 {
		re.body = nil
	}
	begin := func() error {
		x.w.WriteHeader(re.status)
		if re.body == nil {
			return nil
		}
		return x.relayH2(re, cancel)
	}
	x.head(re)
	if x.gate != nil {
		err = x.gate.relay(x, b, re, begin)
	} else {
		err = begin()
	}
	if err != nil {
		x.flush()
		x.aborted = true
		return err
	}
	if re.body == nil && len(resp.Trailer) > 0 {
		x.flush() // chunked, so that the answer has room for trailers
	}
	for name, values := range resp.Trailer {
		if !httpguts.ValidTrailerHeader(name) {
			continue
		}
		if !contains(re.trailers, name) {
			name = http.TrailerPrefix + name
		}
		h[name] = values
	}
	// What has neither body nor trailers is not flushed: its head must end the stream,
	// as clients of gRPC expect it of an error.
	if x.bounded {
		x.flush()
		_ = http.NewResponseController(x.w).SetWriteDeadline(time.Time{})
	}
	return nil
}

// h2Request makes the request that the sandbox gets, from the head that HTTP/1.1
// would have.
func (x *exchange) h2Request(ctx context.Context) (*http.Request, error) {
	_, lines, _ := bytes.Cut(x.out.appendHead(nil, x.trusted), []byte("\r\n"))
	h, err := textproto.NewReader(bufio.NewReader(bytes.NewReader(lines))).ReadMIMEHeader()
	if err != nil {
		return nil, err
	}
	for _, name := range []string{"Host", "Connection", "Upgrade", "Transfer-Encoding", "Content-Length", "Trailer", "Expect"} {
		delete(h, name)
	}
	if h["User-Agent"] == nil {
		h["User-Agent"] = []string{""} // none, instead of Go's
	}
	u := &url.URL{Scheme: "http", Path: x.r.URL.Path, RawPath: x.r.URL.RawPath, RawQuery: x.r.URL.RawQuery, ForceQuery: x.r.URL.ForceQuery}
	req := &http.Request{Method: x.r.Method, URL: u, Host: x.r.Host, Header: http.Header(h), Proto: "HTTP/2.0", ProtoMajor: 2}
	if len(x.r.Trailer) > 0 {
		req.Trailer = x.r.Trailer // filled when the body has ended
	}
	return req.WithContext(ctx), nil
}

// noH2Answer returns the reason why no answer came.
func (x *exchange) noH2Answer(ctx context.Context, b *backend, body *h2Body, err error) error {
	var dial *dialError
	switch {
	case errors.Is(context.Cause(ctx), os.ErrDeadlineExceeded):
		return &answerError{os.ErrDeadlineExceeded}
	case x.r.Context().Err() != nil:
		return &clientReadError{x.r.Context().Err()}
	case body != nil && body.failed() != nil:
		return body.failed()
	case errors.As(err, &dial) && (body == nil || !body.begun.Load()):
		b.markDown()
		return dial
	}
	return &answerError{err}
}

// relayH2 copies the body of an answer and sends each piece at once.
func (x *exchange) relayH2(re *response, cancel context.CancelCauseFunc) error {
	bp := bufferPool.Get().(*[]byte)
	defer bufferPool.Put(bp)
	var silence *time.Timer
	if x.limit > 0 {
		silence = time.AfterFunc(x.limit, func() { cancel(os.ErrDeadlineExceeded) })
		defer silence.Stop()
	}
	x.flush()
	for {
		if silence != nil {
			silence.Reset(x.limit)
		}
		n, err := re.body.Read(*bp)
		if n > 0 {
			if silence != nil {
				silence.Stop()
			}
			x.offer()
			m, werr := x.w.Write((*bp)[:n])
			x.bytes += int64(m)
			if werr != nil {
				return &clientReadError{werr}
			}
			if err == nil {
				x.flush()
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// h2Body is the body of a request on its way to a sandbox. One goroutine of the
// transport reads it.
type h2Body struct {
	x      *exchange
	sent   func() // called at the end if no answer has begun
	silent bool   // pauses are normal
	begun  atomic.Bool

	mu   sync.Mutex
	n    int64
	err  error // why it ended early
	done bool
	got  bool // the answer has begun
}

func (b *h2Body) Read(p []byte) (int, error) {
	b.begun.Store(true)
	b.mu.Lock()
	if b.done {
		b.mu.Unlock()
		return 0, errSkipBody
	}
	if t := b.x.in.cfg.BodyTimeout; t > 0 && !b.silent {
		_ = http.NewResponseController(b.x.w).SetReadDeadline(time.Now().Add(t))
	}
	b.mu.Unlock()
	n, err := b.x.r.Body.Read(p)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.done {
		return n, errSkipBody
	}
	b.n += int64(n)
	switch {
	case b.x.maxBody > 0 && b.n > b.x.maxBody:
		b.err = errBodyTooLarge
		return 0, b.err
	case err == io.EOF:
		b.done = true
		if b.x.in.cfg.BodyTimeout > 0 && !b.silent {
			_ = http.NewResponseController(b.x.w).SetReadDeadline(time.Time{})
		}
		if !b.got {
			b.sent()
		}
	case err != nil:
		b.err = &clientReadError{err}
	}
	return n, err
}

// Close is called by the transport when it needs no more. finish ends the body.
func (b *h2Body) Close() error { return nil }

func (b *h2Body) failed() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err
}

func (b *h2Body) answered() {
	b.mu.Lock()
	b.got = true
	b.mu.Unlock()
}

// finish ends a read under way, since the exchange has ended.
func (b *h2Body) finish() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.done {
		b.done = true
		_ = http.NewResponseController(b.x.w).SetReadDeadline(time.Now())
	}
}
