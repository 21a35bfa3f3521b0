package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"strings"
	"sync"
	"time"

	"miren.dev/runtime/pkg/egress"
	"miren.dev/runtime/pkg/errs"
)

// webServer reads the HTTP requests on connections to port 80, since each may be
// for another host. It is the listener of an HTTP server.
type webServer struct {
	proxy *Proxy
	http  *http.Server
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

// Bounds of HTTP on a connection of a guest.
const (
	maxHeader  = 64 << 10
	httpIdle   = 2 * time.Minute
	maxFarIdle = 1  // connections to the destination that wait for the next request
	maxFar     = 16 // connections to the destination at a time
)

func newWebServer(p *Proxy) *webServer {
	w := &webServer{proxy: p, conns: make(chan net.Conn), done: make(chan struct{})}
	w.http = &http.Server{
		ReadHeaderTimeout: helloTimeout, IdleTimeout: httpIdle, MaxHeaderBytes: maxHeader,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
		Handler:     http.HandlerFunc(w.handle),
		ErrorLog:    log.New(io.Discard, "", 0), // it has the errors of guests
	}
	return w
}

type connKey struct{}

// webConn is a connection that the HTTP server has, or whose TLS it has.
type webConn struct {
	*conn
	server    string // name that the guest wants of TLS; "": plain HTTP
	first     []byte // bytes that the proxy has read and the HTTP server has not
	transport *http.Transport
	closed    chan struct{}
	once      sync.Once
}

// newWebConn returns a connection for take; server is "" for plain HTTP.
func (p *Proxy) newWebConn(c *conn, server string) *webConn {
	wc := &webConn{conn: c, server: server, closed: make(chan struct{})}
	// Of this connection alone, so that it leads nowhere else.
	wc.transport = &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			p.mu.Lock()
			name := c.name
			p.mu.Unlock()
			far, err := p.connect(ctx, c, name)
			if err != nil {
				return nil, err
			}
			return far, nil
		},
		DisableCompression: true, MaxIdleConnsPerHost: maxFarIdle, MaxConnsPerHost: maxFar, MaxResponseHeaderBytes: maxHeader,
	}
	return wc
}

// Read reads what the guest sent.
func (c *webConn) Read(b []byte) (int, error) {
	if len(c.first) > 0 {
		n := copy(b, c.first)
		c.first = c.first[n:]
		return n, nil
	}
	return c.TCPConn.Read(b)
}

// Close is called by the HTTP server.
func (c *webConn) Close() error {
	err := c.TCPConn.Close()
	c.once.Do(func() {
		c.transport.CloseIdleConnections()
		close(c.closed)
	})
	return err
}

// take has the HTTP server serve c, which is wc or the TLS on it, and returns when
// that is closed.
func (w *webServer) take(wc *webConn, c net.Conn) {
	select {
	case w.conns <- c:
		<-wc.closed
	case <-wc.done:
	case <-w.done:
	}
}

// webConnOf returns the guest's connection of a connection of the HTTP server.
func webConnOf(c net.Conn) *webConn {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	return c.(*webConn)
}

func (w *webServer) handle(rw http.ResponseWriter, r *http.Request) {
	c := webConnOf(r.Context().Value(connKey{}).(net.Conn))
	name := hostOf(r.Host)
	record := egress.Record{Protocol: "http", Name: name, Address: c.to.Addr(), Port: c.to.Port()}
	if c.server != "" {
		record.Protocol = "https"
	}
	added, status, err := w.decide(r, c, name)
	record.Allowed, record.Reason, record.Secret = err == nil, reason(err), added.secrets()
	w.proxy.record(c.guest, record)
	if err != nil {
		rw.Header().Set("Connection", "close")
		http.Error(rw, "egress proxy: "+err.Error(), status)
		return
	}
	// The destination may answer before it has the whole request.
	if err := http.NewResponseController(rw).EnableFullDuplex(); err != nil {
		http.Error(rw, err.Error(), http.StatusInternalServerError)
		return
	}
	(&httputil.ReverseProxy{
		Transport: c.transport, FlushInterval: -1, ErrorLog: w.http.ErrorLog,
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.Scheme, p.Out.URL.Host, p.Out.Host = "http", c.to.String(), p.In.Host
			if c.server != "" {
				p.Out.URL.Scheme, p.Out.URL.Host = "https", c.server // the name that its certificate must have
			}
			p.Out.URL.RawQuery = p.In.URL.RawQuery
			for k, v := range p.In.Header {
				if k == "Forwarded" || strings.HasPrefix(k, "X-Forwarded-") { // of the guest, not of this proxy
					p.Out.Header[k] = v
				}
			}
			for _, h := range added {
				p.Out.Header.Set(h.name, h.value)
			}
		},
		ModifyResponse: func(resp *http.Response) error {
			if len(added) > 0 {
				resp.Header.Del("Alt-Svc") // leads to HTTP/3, where the guest would be without the secret
			}
			return nil
		},
		ErrorHandler: func(rw http.ResponseWriter, _ *http.Request, err error) {
			if r.Context().Err() == nil { // the guest still waits
				record.Reason = err.Error()
				w.proxy.record(c.guest, record)
			}
			http.Error(rw, "egress proxy: "+err.Error(), http.StatusBadGateway)
		},
	}).ServeHTTP(rw, r)
}

// decide returns the headers to add to a request, or why it is refused, with the status to answer.
func (w *webServer) decide(r *http.Request, c *webConn, name string) (headers, int, error) {
	if c.server != "" && egress.Canonical(name) != egress.Canonical(c.server) {
		return nil, http.StatusMisdirectedRequest, errs.New(errs.PermissionDenied, "a request for %s came on a TLS connection for %s", printable(name), printable(c.server))
	}
	if err := w.proxy.permit(r.Context(), c.conn, name); err != nil {
		return nil, http.StatusForbidden, err
	}
	if r.Method == http.MethodConnect {
		return nil, http.StatusForbidden, errs.New(errs.PermissionDenied, "CONNECT is not for an address behind the proxy")
	}
	added, err := w.proxy.headersFor(r.Context(), c, name)
	switch {
	case errs.Is(err, errs.PermissionDenied):
		return nil, http.StatusForbidden, err
	case err != nil:
		return nil, http.StatusBadGateway, err
	case len(added) > 0 && r.Method == http.MethodTrace:
		return nil, http.StatusMethodNotAllowed, errs.New(errs.PermissionDenied, "TRACE would return the secret that is added to requests to %s", printable(name))
	}
	return added, 0, nil
}

// hostOf returns the name in a Host header, which may have a port.
func hostOf(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		return name
	}
	return host
}

func (w *webServer) serve() error {
	if err := w.http.Serve(w); !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

func (w *webServer) close() {
	w.once.Do(func() { close(w.done) })
	_ = w.http.Close()
}

// Accept, Close and Addr make webServer a net.Listener.
func (w *webServer) Accept() (net.Conn, error) {
	select {
	case c := <-w.conns:
		return c, nil
	case <-w.done:
		return nil, net.ErrClosed
	}
}

// Close ends Accept.
func (w *webServer) Close() error {
	w.once.Do(func() { close(w.done) })
	return nil
}

// Addr is not used.
func (w *webServer) Addr() net.Addr { return &net.TCPAddr{} }
