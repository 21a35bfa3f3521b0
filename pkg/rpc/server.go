package rpc

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/trace"
)

// ServerOptions configure a server.
type ServerOptions struct {
	// Authorizer decides about every method that is not public; nil: DefaultRoles.
	Authorizer Authorizer
	// ProjectOf returns the name of the project that a request concerns. It is
	// asked for callers whose roles are bound to projects; nil refuses these
	// callers. Its errors become the call's, such as NotFound for an entity
	// that does not exist.
	ProjectOf func(context.Context, Target) (string, error)
	// TLS is needed for listeners that are not unix sockets. It must require
	// TLS 1.3 and verify client certificates if given (identity.ServerTLS).
	TLS *tls.Config
	// Refuse returns the reason why an identity has no access any more, such as
	// a revoked certificate, or nil. It is asked when a connection begins, and
	// by Recheck. It must not block. nil: no identity is refused.
	Refuse func(Identity) error
	// Auditor is told of calls that change something, and of refused ones; nil:
	// calls are not recorded.
	Auditor Auditor
	Limits  Limits
	// Conns bounds the connections by class.
	Conns  ConnLimits
	Logger *slog.Logger
	// Traces begins a span for each call, below that of the caller; nil: none.
	Traces *trace.Tracer
}

var errShutdown = errs.New(errs.Unavailable, "the server is shutting down")

// handshakeTimeout bounds the time until a connection is authenticated.
const handshakeTimeout = 10 * time.Second

// lingerTimeout is how long Shutdown waits for idle peers to hang up.
const lingerTimeout = 500 * time.Millisecond

// maxIdleWorkers is how many idle goroutines are kept for the next calls.
const maxIdleWorkers = 64

// Server serves the registered services on any number of listeners.
type Server struct {
	opts    ServerOptions
	limits  Limits
	methods map[string]*boundMethod
	base    context.Context
	stop    context.CancelFunc

	work chan *serverCall
	idle atomic.Int32

	mu        sync.Mutex
	conns     map[*conn]Identity
	admission admission
	listeners map[net.Listener]struct{}
	draining  bool
	closed    bool
	wg        sync.WaitGroup // counts connections and workers
}

type boundMethod struct {
	*Method
	impl any
}

// NewServer makes a server without services.
func NewServer(opts ServerOptions) (*Server, error) {
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if opts.Authorizer == nil {
		opts.Authorizer = DefaultRoles
	}
	if opts.TLS != nil && opts.TLS.MinVersion < tls.VersionTLS13 {
		return nil, errs.New(errs.InvalidArgument, "rpc: the server needs TLS 1.3 as the lowest version")
	}
	lim := opts.Limits.withDefaults()
	if err := lim.validate(); err != nil {
		return nil, err
	}
	conns := opts.Conns.withDefaults()
	if err := conns.validate(); err != nil {
		return nil, err
	}
	s := &Server{
		admission: admission{limits: conns, count: map[class]int{}}, opts: opts, limits: lim, methods: map[string]*boundMethod{}, work: make(chan *serverCall),
		conns: map[*conn]Identity{}, listeners: map[net.Listener]struct{}{},
	}
	s.base, s.stop = context.WithCancel(context.Background())
	return s, nil
}

// Register adds a service; generated code calls it. It must not be called
// after Serve, nor twice for one service.
func (s *Server) Register(svc *Service, impl any) {
	for _, m := range svc.Methods {
		if s.methods[m.Full] != nil {
			panic("rpc: " + m.Full + " is registered twice")
		}
		if m.Permission == "" {
			panic("rpc: " + m.Full + " has no permission")
		}
		s.methods[m.Full] = &boundMethod{Method: m, impl: impl}
	}
}

// Methods returns every method, by name.
func (s *Server) Methods() []MethodInfo {
	var out []MethodInfo
	for _, m := range s.methods {
		out = append(out, m.MethodInfo)
	}
	slices.SortFunc(out, func(a, b MethodInfo) int { return strings.Compare(a.Full, b.Full) })
	return out
}

// Connections returns the number of open connections.
func (s *Server) Connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

// Serve accepts connections until Shutdown or Close, then returns nil. It
// closes l. On a unix socket the caller's identity comes from its credentials,
// elsewhere from its client certificate.
func (s *Server) Serve(l net.Listener) error { return s.serve(l, s.greet) }

// ServeAs is Serve for a unix socket whose peers all get the identity id,
// whatever their credentials are: it limits a program that needs few
// permissions.
func (s *Server) ServeAs(l net.Listener, id Identity) error {
	if l.Addr().Network() != "unix" {
		_ = l.Close()
		return errs.New(errs.InvalidArgument, "rpc: %s is not a unix socket", l.Addr())
	}
	return s.serve(l, func(nc net.Conn) (net.Conn, Identity, error) { return nc, id, nil })
}

func (s *Server) serve(l net.Listener, greet greeter) error {
	if l.Addr().Network() != "unix" && s.opts.TLS == nil {
		_ = l.Close()
		return errs.New(errs.InvalidArgument, "rpc: %s needs TLS", l.Addr())
	}
	s.mu.Lock()
	if s.draining {
		s.mu.Unlock()
		_ = l.Close()
		return nil
	}
	s.listeners[l] = struct{}{}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.listeners, l)
		s.mu.Unlock()
		_ = l.Close()
	}()
	var delay time.Duration
	for {
		nc, err := l.Accept()
		if err == nil {
			delay = 0
			s.adopt(nc, classOf(nc), greet)
			continue
		}
		s.mu.Lock()
		draining := s.draining
		s.mu.Unlock()
		if draining {
			return nil
		}
		if errors.Is(err, net.ErrClosed) {
			return errs.New(errs.Unavailable, "rpc: accept on %s: %w", l.Addr(), err)
		}
		// The process is out of files, or the connection died at once: continue
		// after a pause.
		delay = min(max(2*delay, 5*time.Millisecond), time.Second)
		s.opts.Logger.Warn("rpc accept failed", "address", l.Addr().String(), "error", err, "retry_in", delay)
		select {
		case <-time.After(delay):
		case <-s.base.Done():
		}
	}
}

// greeter authenticates the peer, and may wrap the connection.
type greeter func(nc net.Conn) (net.Conn, Identity, error)

// adopt serves a connection unless the server is closing or its class is full.
func (s *Server) adopt(nc net.Conn, cl class, greet greeter) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining || !s.admission.begin(nc, cl) {
		if !s.draining {
			s.refused(nc, cl)
		}
		_ = nc.Close()
		return false
	}
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		s.serveConn(nc, cl, greet)
	}()
	return true
}

// refused logs that a class is full; for anonymous peers only at debug level,
// since they must not fill the log.
func (s *Server) refused(nc net.Conn, cl class) {
	level := slog.LevelWarn
	if cl == classAnonymous {
		level = slog.LevelDebug
	}
	s.opts.Logger.Log(s.base, level, "rpc connection refused", "peer", nc.RemoteAddr().String(), "class", string(cl), "limit", s.admission.limits.of(cl))
}

// serveConn serves one connection from handshake to end.
func (s *Server) serveConn(raw net.Conn, cl class, greet greeter) {
	stop := context.AfterFunc(s.base, func() { _ = raw.Close() })
	defer stop()
	nc, id, err := greet(raw)
	cl, admitted := s.identified(raw, cl, id, err)
	if !admitted {
		s.opts.Logger.Debug("rpc handshake failed", "peer", raw.RemoteAddr().String(), "error", err)
		_ = raw.Close()
		return
	}
	var c *conn
	defer func() {
		s.mu.Lock()
		delete(s.conns, c)
		s.admission.leave(cl)
		s.mu.Unlock()
	}()
	lim := s.limits
	if !id.known() {
		lim = lim.forNobody()
	}
	c = newConn(nc, false, lim)
	peer := peerOf(raw, cl)
	c.onCall = func(st *stream, h rawCallHeader, flags uint8, body []byte) {
		c.lastCall.Store(int64(time.Since(c.began)))
		s.dispatch(id, peer, st, h, flags, body)
	}
	if err := c.handshake(handshakeTimeout); err != nil {
		s.opts.Logger.Debug("rpc handshake failed", "peer", raw.RemoteAddr().String(), "error", err)
		_ = raw.Close()
		return
	}
	stop()
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		_ = raw.Close()
		return
	}
	s.conns[c] = id
	draining := s.draining
	if cl == classAnonymous {
		s.wg.Go(func() { c.closeIdle(s.admission.limits.AnonymousIdle) })
	}
	if !id.Expires.IsZero() {
		s.wg.Go(func() { c.closeExpired(id) })
	}
	s.mu.Unlock()
	if draining {
		c.goAway()
	}
	if s.opts.Refuse != nil { // it may have changed since the handshake
		if err := s.opts.Refuse(id); err != nil {
			c.refuse(err)
			s.wg.Go(func() { c.closeRefused(err) })
		}
	}
	err = c.run()
	s.opts.Logger.Debug("rpc connection ended", "peer", nc.RemoteAddr().String(), "identity", id.String(), "error", err)
}

// identified returns the class of a connection whose greeting ended with err,
// and whether the server admits it.
func (s *Server) identified(raw net.Conn, cl class, id Identity, err error) (class, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case cl == classHandshake && err != nil:
		s.admission.forget(raw)
		return cl, false
	case cl == classHandshake:
		cl, ok := s.admission.identified(raw, id)
		if !ok {
			s.refused(raw, cl)
		}
		return cl, ok
	case err != nil:
		s.admission.leave(cl)
		return cl, false
	}
	return cl, true
}

// greet is the greeter of listeners.
func (s *Server) greet(nc net.Conn) (net.Conn, Identity, error) {
	if u, ok := nc.(*net.UnixConn); ok {
		id, err := socketIdentity(u)
		return nc, id, err
	}
	if s.opts.TLS == nil {
		return nil, Identity{}, errs.New(errs.Internal, "a connection that is neither a unix socket nor to be TLS")
	}
	t, err := serverTLS(s.base, nc, s.refusing(s.opts.TLS), handshakeTimeout)
	if err != nil {
		return nil, Identity{}, err
	}
	return t, tlsIdentity(t.ConnectionState()), nil
}

// serverCall is one call being served.
type serverCall struct {
	s         *Server
	st        *stream
	method    *boundMethod
	name      string // the name of a method that does not exist
	identity  Identity
	peer      Peer
	grant     Grant
	requestID string
	trace     string
	body      *buffer // the request; nil if it comes in DATA frames
	ctx       callContext
	traced    context.Context // ctx, with the span of the call; set by run

	request  any // read, and refused
	audit    *AuditCall
	endAudit func(error) error
}

func (sc *serverCall) streaming() bool { return sc.method != nil && sc.method.Streaming != nil }

// dispatch hands a call to a worker.
func (s *Server) dispatch(id Identity, peer Peer, st *stream, h rawCallHeader, flags uint8, body []byte) {
	sc := &serverCall{
		s: s, st: st, method: s.methods[string(h.method)], identity: id, peer: peer, requestID: string(h.requestID), trace: string(h.trace),
	}
	if sc.method == nil {
		sc.name = string(h.method)
	}
	sc.ctx.call = sc
	if h.timeout > 0 {
		sc.ctx.deadline = time.Now().Add(time.Duration(h.timeout) * time.Microsecond)
	}
	if flags&flagBody == 0 {
		sc.body = getBuffer()
		sc.body.b = append(sc.body.b, body...)
	}
	c := st.c
	c.mu.Lock()
	st.serve = sc
	switch { // the call may have ended before it had this context
	case c.err != nil:
		st.failLocked(c.err)
	case c.refused != nil:
		st.failLocked(c.refused)
	case c.draining && sc.streaming():
		st.failLocked(errShutdown)
	}
	c.mu.Unlock()
	select {
	case s.work <- sc:
	default:
		s.wg.Add(1)
		go s.worker(sc)
	}
}

func (s *Server) worker(sc *serverCall) {
	defer s.wg.Done()
	for {
		sc.run()
		if s.idle.Add(1) > maxIdleWorkers {
			s.idle.Add(-1)
			return
		}
		select {
		case sc = <-s.work:
			s.idle.Add(-1)
		case <-s.base.Done():
			return
		}
	}
}

// cancel ends the call's context, and what the handler sends and receives.
func (sc *serverCall) cancel(err, cause error) {
	if sc.ctx.cancel(err, cause) && err == context.DeadlineExceeded {
		// A caller that cancels for another reason ends the stream too.
		c := sc.st.c
		c.mu.Lock()
		sc.st.ended = true
		wake(sc.st.sendReady)
		c.mu.Unlock()
		sc.st.q.finish(errs.New(errs.DeadlineExceeded, "the deadline passed: %w", err), true)
		wake(sc.st.notify)
	}
}

// run authorises, calls the handler and replies.
func (sc *serverCall) run() {
	span := sc.begin()
	var resp any
	outcome, err := NotStarted, sc.check()
	if err == nil {
		outcome = Failed
		resp, err = sc.handle()
		if cause := sc.ctx.endedBy(); cause != nil && errs.Is(err, errs.Canceled) {
			err = cause
		}
	}
	outcome, err = sc.audited(outcome, err)
	var bad *decodeError
	if errors.As(err, &bad) {
		outcome, err = NotStarted, bad.err
	} else if outcome == Failed && err != nil && sc.ctx.endedBy() != nil {
		outcome = Unknown // the handler was interrupted
	}
	putBuffer(sc.body)
	sc.body = nil
	if err != nil && errs.ClassOf(err) == errs.Internal {
		sc.s.opts.Logger.Error("rpc call failed", "method", sc.method.Full, "identity", sc.identity.String(), "request_id", sc.requestID, "error", err)
	}
	span.End(err)
	sc.reply(resp, err, outcome)
	sc.ctx.cancel(context.Canceled, nil)
}

// begin begins the span of the call.
func (sc *serverCall) begin() (span trace.Span) {
	sc.traced = &sc.ctx
	if sc.method == nil { // a name that anybody may have made up
		return span
	}
	sc.traced, span = sc.s.opts.Traces.Begin(&sc.ctx, sc.trace, sc.method.Full, trace.Server)
	span.Text("runtime.request_id", sc.requestID)
	return span
}

func (sc *serverCall) check() error {
	if sc.method == nil {
		return errs.New(errs.Unimplemented, "the server has no method %s", cut(sc.name, 200)).WithHint("install the same version of runtime on both sides")
	}
	if sc.ctx.Err() != nil {
		return sc.ctx.endedBy()
	}
	return sc.authorize()
}

func (sc *serverCall) handle() (resp any, err error) {
	defer func() {
		if p := recover(); p != nil {
			sc.s.opts.Logger.Error("rpc handler panicked", "method", sc.method.Full, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			resp, err = nil, errs.New(errs.Internal, "the server failed while handling %s", sc.method.Full)
		}
	}()
	if sc.method.Streaming == nil {
		return sc.method.Unary(sc.traced, sc.method.impl, sc)
	}
	sc.ctx.Done() // so that the deadline takes effect
	return nil, sc.method.Streaming(sc.traced, sc.method.impl, sc, &serverStream{sc.st, sc})
}

// reply ends the call.
func (sc *serverCall) reply(resp any, err error, outcome Outcome) {
	st, c := sc.st, sc.st.c
	b := getBuffer()
	defer putBuffer(b)
	h := header{typ: frameReply, id: st.id}
	if err == nil && !sc.streaming() {
		if err = b.encode(resp); err == nil && len(b.b) > maxInline {
			if err = st.sendMessage(b.b); err == nil {
				h.flags, b.b = flagBody, b.b[:0]
			}
		}
		if err != nil {
			outcome = Unknown // the call took place, but the caller does not learn its outcome
		}
	}
	if err != nil {
		b.b = b.b[:0]
		h.flags = flagError
		appendError(b, err, outcome)
	}
	h.length = len(b.b)
	c.mu.Lock()
	if c.streams[st.id] == st {
		c.removeLocked(st)
		c.appendLocked(h, b.b, nil)
		if sc.streaming() {
			c.leaveLocked()
		} else {
			c.pushLocked()
		}
	}
	// Goroutines of the handler that outlive it may wait for the stream.
	wake(st.sendReady)
	c.mu.Unlock()
	c.giveBack(st.q.drop())
	wake(st.notify)
}

// Shutdown drains the server: it accepts no new connections or calls and ends
// streams (their callers resume elsewhere); other calls continue until ctx
// ends.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	s.draining = true
	for l := range s.listeners {
		_ = l.Close()
	}
	var conns []*conn
	for c := range s.conns {
		conns = append(conns, c)
	}
	s.mu.Unlock()
	for _, c := range conns {
		c.goAway()
		c.endStreams(errShutdown)
	}
	var err error
	for _, c := range conns {
		select {
		case <-c.whenIdle():
		case <-ctx.Done():
			err = ctxError(ctx)
		}
	}
	// Give the callers time to read the answers and hang up.
	gone := time.NewTimer(lingerTimeout)
	defer gone.Stop()
	for _, c := range conns {
		select {
		case <-c.closed:
			continue
		case <-gone.C:
		case <-ctx.Done():
		}
		break
	}
	s.Close()
	return err
}

// endStreams ends every call with streams.
func (c *conn) endStreams(why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, st := range c.streams {
		if st.serve != nil && st.serve.streaming() {
			st.failLocked(why)
		}
	}
}

// Close ends every connection and waits until the handlers have returned.
func (s *Server) Close() {
	s.mu.Lock()
	s.draining, s.closed = true, true
	for l := range s.listeners {
		_ = l.Close()
	}
	var conns []*conn
	for c := range s.conns {
		conns = append(conns, c)
	}
	s.mu.Unlock()
	s.stop()
	for _, c := range conns {
		c.goAway()
		c.close(errShutdown)
	}
	s.wg.Wait()
}
