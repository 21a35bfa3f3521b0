package rpc

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	mathrand "math/rand/v2"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/trace"
)

// ClientOptions configure a client.
type ClientOptions struct {
	// TLS verifies the server and presents the client's certificate
	// (identity.ClientTLS). It is required unless the target is a unix socket.
	TLS    *tls.Config
	Limits Limits
	// DialTimeout bounds one attempt to connect; 0: 5 s.
	DialTimeout time.Duration
	// RetryFor is how long a call retries: to reach a server that is away, or
	// to repeat a call that is safe to repeat; 0: 5 s. Negative: no retry.
	RetryFor time.Duration
}

// Client is a connection to one server. It reconnects when the connection is
// lost, and is safe for concurrent use.
type Client struct {
	target target
	dialer func(ctx context.Context) (*conn, error)
	opts   ClientOptions

	prefix string // prefix of request ids
	calls  atomic.Uint64

	cur    atomic.Pointer[conn]
	mu     sync.Mutex
	dial   *dialing
	closed error // why it was closed; nil: it was not
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// dialing is one attempt to connect that several calls await.
type dialing struct {
	done chan struct{}
	c    *conn
	err  error
}

var _ Conn = (*Client)(nil)

// NewClient returns a client that connects with its first call. Targets are
// unix:///path, /path, tls://host:port and host:port.
func NewClient(addr string, opts ClientOptions) (*Client, error) {
	t, err := parseTarget(addr)
	if err != nil {
		return nil, err
	}
	opts = opts.withDefaults()
	if err := opts.Limits.validate(); err != nil {
		return nil, err
	}
	cl := newClient(opts)
	cl.target = t
	cl.dialer = func(ctx context.Context) (*conn, error) { return t.dial(ctx, opts.TLS, opts.Limits, opts.DialTimeout) }
	return cl, nil
}

func (o ClientOptions) withDefaults() ClientOptions {
	if o.DialTimeout == 0 {
		o.DialTimeout = 5 * time.Second
	}
	if o.RetryFor == 0 {
		o.RetryFor = 5 * time.Second
	}
	o.Limits = o.Limits.withDefaults()
	return o
}

func newClient(opts ClientOptions) *Client {
	cl := &Client{opts: opts, prefix: rand.Text()[:12] + "-"}
	cl.ctx, cl.cancel = context.WithCancel(context.Background())
	return cl
}

// Dial returns a client that has connected; it tries once.
func Dial(ctx context.Context, addr string, opts ClientOptions) (*Client, error) {
	cl, err := NewClient(addr, opts)
	if err != nil {
		return nil, err
	}
	if _, err := cl.conn(ctx); err != nil {
		cl.Close()
		return nil, err
	}
	return cl, nil
}

// DialBy is Dial for a server that is reached through another protocol: open
// returns a connection on which the server expects RPC, each time that the client
// needs one. name is what errors call the server.
func DialBy(ctx context.Context, name string, open func(context.Context) (net.Conn, error), opts ClientOptions) (*Client, error) {
	opts = opts.withDefaults()
	if err := opts.Limits.validate(); err != nil {
		return nil, err
	}
	cl := newClient(opts)
	cl.target = target{network: "other", address: name}
	cl.dialer = func(ctx context.Context) (*conn, error) {
		ctx, cancel := context.WithTimeout(ctx, opts.DialTimeout)
		defer cancel()
		nc, err := open(ctx)
		if err != nil {
			return nil, err
		}
		stop := context.AfterFunc(ctx, func() { _ = nc.Close() })
		defer stop()
		c := newConn(wholeConn{nc}, true, opts.Limits)
		if err := c.handshake(opts.DialTimeout); err != nil {
			_ = nc.Close()
			return nil, errs.New(errs.Unavailable, "handshake with %s: %w", name, err)
		}
		return c, nil
	}
	if _, err := cl.conn(ctx); err != nil {
		cl.Close()
		return nil, err
	}
	return cl, nil
}

// wholeConn is a connection that does not know how much of a Write that failed
// the peer has.
type wholeConn struct{ net.Conn }

func (c wholeConn) Write(p []byte) (int, error) {
	_, err := c.Conn.Write(p)
	return len(p), err // all of it may have arrived
}

// Close ends the connection; calls under way fail.
func (cl *Client) Close() { cl.CloseWith(errs.New(errs.Canceled, "the client was closed")) }

// CloseWith is Close for a reason, with which calls under way and later ones fail.
func (cl *Client) CloseWith(why error) {
	cl.mu.Lock()
	if cl.closed == nil {
		cl.closed = why
	}
	cl.mu.Unlock()
	cl.cancel()
	if c := cl.cur.Load(); c != nil {
		c.close(why)
	}
	cl.wg.Wait()
}

// conn returns a connection that accepts calls. An error means that the call
// was not started.
func (cl *Client) conn(ctx context.Context) (*conn, error) {
	if c := cl.cur.Load(); c != nil && c.usable() {
		return c, nil
	}
	cl.mu.Lock()
	if why := cl.closed; why != nil {
		cl.mu.Unlock()
		return nil, withOutcome(why, NotStarted)
	}
	if c := cl.cur.Load(); c != nil && c.usable() {
		cl.mu.Unlock()
		return c, nil
	}
	d := cl.dial
	if d == nil {
		d = &dialing{done: make(chan struct{})}
		cl.dial = d
		cl.wg.Add(1)
		go func() {
			defer cl.wg.Done()
			cl.connect(d)
		}()
	}
	cl.mu.Unlock()
	select {
	case <-d.done:
		return d.c, withOutcome(d.err, NotStarted)
	case <-ctx.Done():
		return nil, withOutcome(ctxError(ctx), NotStarted)
	}
}

func (cl *Client) connect(d *dialing) {
	d.c, d.err = cl.dialer(cl.ctx)
	cl.mu.Lock()
	cl.dial = nil
	if d.err == nil {
		cl.wg.Add(1)
		go func() {
			defer cl.wg.Done()
			_ = d.c.run()
		}()
		if cl.closed != nil {
			d.c.fail(cl.closed)
		} else {
			cl.cur.Store(d.c)
		}
	}
	cl.mu.Unlock()
	close(d.done)
}

// Call implements Conn. For as long as Options.RetryFor it repeats a call that
// no server started, and an idempotent call whose outcome is unknown.
func (cl *Client) Call(ctx context.Context, m *MethodInfo, req, resp any) error {
	idempotent := m.Idempotent || ctx.Value(keyIdempotent) != nil
	id := cl.requestID(ctx)
	ctx, span := trace.Start(ctx, m.Full, trace.Client)
	err := cl.retry(ctx, idempotent, func(c *conn) error { return c.call(ctx, m, id, req, resp) })
	span.End(err)
	return err
}

// Open implements Conn. It repeats only a call that was not started. Its span is
// the opening; that of the server lasts as long as the stream.
func (cl *Client) Open(ctx context.Context, m *MethodInfo, req any) (Stream, error) {
	var s Stream
	id := cl.requestID(ctx)
	ctx, span := trace.Start(ctx, m.Full, trace.Client)
	err := cl.retry(ctx, false, func(c *conn) (err error) {
		s, err = c.open(ctx, m, id, req)
		return err
	})
	span.End(err)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// requestID returns the id of ctx, or a fresh one, the same for every attempt.
func (cl *Client) requestID(ctx context.Context) string {
	if id := RequestID(ctx); id != "" {
		return id
	}
	var b [48]byte
	return string(strconv.AppendUint(append(b[:0], cl.prefix...), cl.calls.Add(1), 36))
}

// Delays between attempts.
const (
	firstDelay = 20 * time.Millisecond
	maxDelay   = time.Second
)

func (cl *Client) retry(ctx context.Context, idempotent bool, f func(c *conn) error) error {
	if ctx.Err() != nil { // a connection would send the call before it looks
		return withOutcome(ctxError(ctx), NotStarted)
	}
	var began time.Time
	for attempt := 0; ; attempt++ {
		c, err := cl.conn(ctx)
		if err == nil {
			err = f(c)
		}
		if err == nil || ctx.Err() != nil || !repeatable(err, idempotent) {
			return err
		}
		if attempt == 0 {
			began = time.Now()
		}
		delay := time.Duration(float64(min(maxDelay, firstDelay<<min(attempt, 10))) * (0.5 + mathrand.Float64()))
		if time.Since(began)+delay > cl.opts.RetryFor {
			return err
		}
		t := time.NewTimer(delay)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return err
		case <-cl.ctx.Done():
			t.Stop()
			return err
		}
	}
}

// repeatable reports whether a call that ended in err may be made again.
func repeatable(err error, idempotent bool) bool {
	switch OutcomeOf(err) {
	case NotStarted:
		return errs.Is(err, errs.Unavailable) || errs.Is(err, errs.ResourceExhausted) && errs.Detail(err, detailRefused) != ""
	case Unknown:
		return idempotent && errs.Is(err, errs.Unavailable)
	}
	return false
}

// detailRefused marks a call that was refused because there were too many.
const detailRefused = "refused"
