package ingress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/servers/ingress/quicsocket"
)

// Bounds of HTTP/3. What a connection may make the ingress keep in memory is about
// quicConnWindow, and a head for each of quicStreams.
const (
	quicStreams      = 128     // requests of a connection at the same time
	quicUniStreams   = 8       // HTTP/3 has three
	quicStreamWindow = 1 << 20 // of a body that the sandbox has not read, in bytes
	quicConnWindow   = 2 << 20
	// quicHandshakes is the number of handshakes under way from which clients must show that
	// packets reach them at their address (Retry).
	quicHandshakes = 64
	// quicSilence ends a connection whose client answers no packet.
	quicSilence = time.Minute
	// quicKeepAlive is after which silence the client is asked, so that an answer may be silent
	// for long.
	quicKeepAlive = 20 * time.Second
	// quicRetry is after how long a UDP port that another program has is tried again.
	quicRetry = 2 * time.Second
	// altSvcAge is how long a client may remember that there is HTTP/3.
	altSvcAge = 24 * time.Hour
	// retryQuiet is how long after an answer to Retry another one may come.
	retryQuiet = 2 * time.Second
	// goAwayQuiet is how long a connection that was asked to end stays open without a
	// request, so that the client hears of it before it sends the next.
	goAwayQuiet = 5 * time.Second
)

const http3Magic = "runtime-ingress-http3 1 "

var errQUICRefused = errors.New("no new connections are accepted")

// http3Server serves HTTP/3 at the UDP ports of the HTTPS addresses.
type http3Server struct {
	in      *Ingress
	srv     *http3.Server
	secret  quicsocket.Secret
	addrs   []string        // of HTTPS
	accept  context.Context // ended when no connection is accepted any more
	stop    context.CancelFunc
	refuses atomic.Bool  // new connections are refused
	retried atomic.Int64 // when a client last had to show its address; Unix time in nanoseconds
	pending atomic.Int64 // handshakes
	conns   atomic.Int64
	active  atomic.Int64 // requests
	ended   atomic.Int64 // when the last request ended; Unix time in nanoseconds
	altSvc  atomic.Pointer[[]string]

	mu      sync.Mutex
	sockets map[string]*quicsocket.Socket // by address
	closers []io.Closer
	accepts sync.WaitGroup
}

// listenHTTP3 opens the UDP ports. One that another program has is tried again by run.
func (in *Ingress) listenHTTP3() {
	if in.cfg.NoHTTP3 || len(in.secure) == 0 {
		return
	}
	h := &http3Server{in: in, sockets: map[string]*quicsocket.Socket{}}
	h.accept, h.stop = context.WithCancel(context.Background())
	h.srv = &http3.Server{Handler: h, MaxHeaderBytes: in.cfg.MaxHeaderBytes, IdleTimeout: in.cfg.IdleTimeout, Logger: slog.New(slog.DiscardHandler)}
	h.secret = h.loadSecret()
	for _, l := range in.secure {
		addr := l.Addr().String()
		h.addrs = append(h.addrs, addr)
		if err := h.open(addr); err != nil {
			in.cfg.Logger.Warn("no HTTP/3: the UDP port of ingress.https_address cannot be opened; clients use HTTP/2 until it is free, or set ingress.http3 to false", "address", addr, "error", err)
		}
	}
	in.http3 = h
}

// open opens the UDP port of an address, or takes over that of the predecessor.
func (h *http3Server) open(addr string) error {
	conn, from := h.in.pred.quicSocket(addr)
	if conn == nil {
		var lc net.ListenConfig
		c, err := lc.ListenPacket(context.Background(), "udp", addr)
		if err != nil {
			return err
		}
		conn = c.(*net.UDPConn)
	}
	s, err := quicsocket.New(conn, h.secret, from, h.in.metrics.forwarded)
	if err != nil {
		conn.Close()
		return err
	}
	h.mu.Lock()
	h.sockets[addr] = s
	h.mu.Unlock()
	return nil
}

// loadSecret returns the secret of the process before, a new one if there is none.
func (h *http3Server) loadSecret() (s quicsocket.Secret) {
	path, log := h.in.cfg.HTTP3File, h.in.cfg.Logger
	if path == "" {
		return quicsocket.NewSecret()
	}
	err := loadFile(path, http3Magic, &s)
	if err == nil {
		err = s.Check()
	}
	if err == nil {
		return s
	}
	if !errs.Is(err, errs.NotFound) {
		log.Error("the saved secret of HTTP/3 cannot be used, making another", "error", err)
	}
	s = quicsocket.NewSecret()
	if err := saveFile(path, http3Magic, s); err != nil {
		log.Error("the secret of HTTP/3 cannot be saved", "error", err)
	}
	return s
}

// run serves until accept ends.
func (h *http3Server) run() {
	if h == nil {
		return
	}
	served := map[string]bool{}
	for {
		missing := false
		for _, addr := range h.addrs {
			if served[addr] {
				continue
			}
			s := h.socket(addr)
			if s == nil {
				err := h.open(addr)
				if err != nil {
					missing = missing || !errors.Is(err, os.ErrPermission) // this process has given up the right to open it
					continue
				}
				s = h.socket(addr)
				h.in.cfg.Logger.Info("the UDP port is free now: HTTP/3 is served", "address", addr)
			}
			served[addr] = true
			h.serve(addr, s)
		}
		var again <-chan time.Time
		if missing {
			again = time.After(quicRetry)
		}
		select {
		case <-again:
		case <-h.accept.Done():
			h.accepts.Wait()
			return
		}
	}
}

// socket returns the socket of an address, nil if it is not open.
func (h *http3Server) socket(addr string) *quicsocket.Socket {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.sockets[addr]
}

// serve accepts connections of a socket.
func (h *http3Server) serve(addr string, s *quicsocket.Socket) {
	tr := s.Transport()
	tr.VerifySourceAddress, tr.ConnContext = h.verify, h.admit
	l, err := tr.ListenEarly(http3.ConfigureTLSConfig(h.in.keys.tlsConfig()), &quic.Config{
		MaxIdleTimeout: quicSilence, KeepAlivePeriod: quicKeepAlive, HandshakeIdleTimeout: h.in.cfg.ReadHeaderTimeout / 2,
		InitialStreamReceiveWindow: quicStreamWindow / 4, MaxStreamReceiveWindow: quicStreamWindow,
		InitialConnectionReceiveWindow: quicConnWindow / 4, MaxConnectionReceiveWindow: quicConnWindow,
		MaxIncomingStreams: quicStreams, MaxIncomingUniStreams: quicUniStreams,
		Allow0RTT: false, // a request of 0-RTT can be repeated by an attacker
	})
	if err != nil {
		h.in.cfg.Logger.Error("no HTTP/3", "address", addr, "error", err)
		return
	}
	s.Start()
	h.mu.Lock()
	h.closers = append(h.closers, l, tr)
	h.mu.Unlock()
	h.announce(addr)
	h.accepts.Go(func() {
		if err := h.srv.ServeListener(&quicAcceptor{l, h}); !errors.Is(err, http.ErrServerClosed) {
			h.in.cfg.Logger.Error("HTTP/3 is served no longer", "address", addr, "error", err)
		}
	})
}

// announce has answers by HTTPS name the port of an address.
func (h *http3Server) announce(addr string) {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return
	}
	one := fmt.Sprintf(`h3=":%s"; ma=%d`, port, int(altSvcAge/time.Second))
	if old := h.altSvc.Load(); old != nil {
		one = (*old)[0] + ", " + one
	}
	h.altSvc.Store(&[]string{one})
}

// announceHTTP3 has the client of HTTPS use HTTP/3 from its next connection on. The sandbox
// may say otherwise.
func (x *exchange) announceHTTP3(h http.Header) {
	if x.in.http3 == nil || x.r.TLS == nil || x.r.ProtoMajor > 2 || h["Alt-Svc"] != nil {
		return
	}
	if v := x.in.http3.altSvc.Load(); v != nil {
		h["Alt-Svc"] = *v
	}
}

// verify reports whether a client must show that packets reach it at its address.
func (h *http3Server) verify(net.Addr) bool {
	if h.pending.Load() < quicHandshakes {
		return false
	}
	h.retried.Store(time.Now().UnixNano())
	return true
}

// quicConn is a connection from its first packet on.
type quicConn struct{ accepted func() }

type quicConnKey struct{}

// admit counts a connection that begins, or refuses it.
func (h *http3Server) admit(ctx context.Context, _ *quic.ClientInfo) (context.Context, error) {
	if h.refuses.Load() {
		return nil, errQUICRefused
	}
	if h.in.conns.Add(1) > int64(h.in.cfg.MaxConnections) {
		h.in.conns.Add(-1)
		h.in.metrics.refused.Inc()
		return nil, errQUICRefused
	}
	h.conns.Add(1)
	h.pending.Add(1)
	c := &quicConn{accepted: sync.OnceFunc(func() { h.pending.Add(-1) })}
	context.AfterFunc(ctx, func() {
		c.accepted()
		h.conns.Add(-1)
		h.in.conns.Add(-1)
	})
	return context.WithValue(ctx, quicConnKey{}, c), nil
}

// quicAcceptor accepts connections until the server stops accepting.
type quicAcceptor struct {
	*quic.EarlyListener
	h *http3Server
}

func (a *quicAcceptor) Accept(context.Context) (*quic.Conn, error) {
	c, err := a.EarlyListener.Accept(a.h.accept)
	if a.h.accept.Err() != nil && err != nil {
		return nil, quic.ErrServerClosed
	}
	if err != nil {
		return nil, err
	}
	if n, ok := c.Context().Value(quicConnKey{}).(*quicConn); ok {
		n.accepted()
	}
	return c, nil
}

// ServeHTTP serves a request of HTTP/3.
func (h *http3Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.active.Add(1)
	defer func() {
		h.ended.Store(time.Now().UnixNano())
		h.active.Add(-1)
	}()
	if r.Method == http.MethodConnect { // quic-go has the protocol in another place than net/http
		if r.Proto != "HTTP/3.0" {
			r.Header[protocolHeader] = []string{r.Proto}
			r.Proto = "HTTP/3.0"
		}
		h.in.ServeHTTP(w, r)
		return
	}
	if err := findBody(w, r, h.in.cfg.ReadHeaderTimeout); err != nil {
		panic(http.ErrAbortHandler) // the client ended the request, or did not
	}
	h.in.ServeHTTP(w, r)
}

// findBody finds out whether a request without a length has a body, if its method usually
// has none.
func findBody(w http.ResponseWriter, r *http.Request, limit time.Duration) error {
	if r.ContentLength == 0 {
		r.Body = http.NoBody
		return nil
	}
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodDelete, http.MethodOptions, http.MethodTrace:
	default: // its body may begin when the answer has
		return nil
	}
	if r.ContentLength > 0 {
		return nil
	}
	c := http.NewResponseController(w)
	_ = c.SetReadDeadline(time.Now().Add(limit))
	var b [1]byte
	n, err := r.Body.Read(b[:])
	switch {
	case n > 0:
		r.Body = &peekedBody{r.Body, true, b[0]}
	case err == io.EOF:
		r.Body, r.ContentLength = http.NoBody, 0
	case err != nil:
		return err
	}
	return c.SetReadDeadline(time.Time{})
}

// peekedBody is a body of which one byte was read.
type peekedBody struct {
	io.ReadCloser
	has  bool
	byte byte
}

func (p *peekedBody) Read(b []byte) (int, error) {
	if !p.has || len(b) == 0 {
		return p.ReadCloser.Read(b)
	}
	b[0], p.has = p.byte, false
	return 1, nil
}

// count returns the number of connections.
func (h *http3Server) count() int64 {
	if h == nil {
		return 0
	}
	return h.conns.Load()
}

// drain lets requests finish, and has clients connect again: first handshakes end, then
// GOAWAY names the requests that are still heard.
func (h *http3Server) drain(ctx context.Context, limit time.Duration) {
	if h == nil {
		return
	}
	handshakes, cancel := context.WithTimeout(ctx, limit/4)
	begin := time.Now()
	h.await(handshakes, func() bool {
		given, read := h.successor()
		h.refuses.Store(!given)
		if !given {
			return h.pending.Load() == 0
		}
		// Packets that were read before may begin a connection in a moment; an answer to
		// Retry comes with the id of this process.
		return !read && h.pending.Load() == 0 && time.Since(begin) > 2*reportEvery && time.Since(time.Unix(0, h.retried.Load())) > retryQuiet
	})
	cancel()
	h.stop()
	h.accepts.Wait()
	asked := time.Now()
	ended := make(chan error, 1)
	go func() { ended <- h.srv.Shutdown(ctx) }()
	quiet, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		h.await(quiet, func() bool {
			last := time.Unix(0, max(h.ended.Load(), asked.UnixNano()))
			return h.active.Load() == 0 && time.Since(last) > goAwayQuiet
		})
		if quiet.Err() == nil {
			h.srv.Close()
		}
	}()
	if err := <-ended; err != nil && h.active.Load() > 0 {
		h.in.cfg.Logger.Warn("requests of HTTP/3 were cut off at the end of the drain time", "error", err)
	}
}

// successor reports whether another process has the sockets, and whether this one still reads
// one of them.
func (h *http3Server) successor() (given, read bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.sockets {
		if s.HasSuccessor() {
			given, read = true, read || !s.HandedOver()
		}
	}
	return given, read
}

// await waits until done reports true, or ctx ends.
func (h *http3Server) await(ctx context.Context, done func() bool) {
	tick := time.NewTicker(reportEvery)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// close ends everything. Requests have ended.
func (h *http3Server) close() {
	if h == nil {
		return
	}
	h.stop()
	h.accepts.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.closers {
		c.Close()
	}
	for _, s := range h.sockets {
		s.Close()
	}
}

// handedUDP is a UDP socket for a successor.
type handedUDP struct {
	socket
	conn *net.UDPConn
	from *quicsocket.Handover
}

// handOver returns the sockets for a successor. The caller closes their links.
func (h *http3Server) handOver() (list []handedUDP) {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for addr, s := range h.sockets {
		f, err := s.HandOver()
		if err != nil {
			h.in.cfg.Logger.Warn("cannot hand over HTTP/3", "address", addr, "error", err)
			continue
		}
		list = append(list, handedUDP{socket{Network: "udp", Address: addr, Generation: f.Generation, Secret: f.Secret}, s.UDPConn, f})
	}
	return list
}
