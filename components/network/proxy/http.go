package proxy

import (
	"context"
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
	maxFarIdle = 1 // connections to the destination that wait for the next request
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

// webConn is a connection that the HTTP server has.
type webConn struct {
	*conn
	transport *http.Transport
	closed    chan struct{}
	once      sync.Once
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

// take has the HTTP server serve a connection, and returns when it is closed.
func (w *webServer) take(c *conn) {
	wc := &webConn{conn: c, closed: make(chan struct{})}
	// Of this connection alone, so that it leads nowhere else.
	wc.transport = &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			w.proxy.mu.Lock()
			name := c.name
			w.proxy.mu.Unlock()
			return w.proxy.connect(ctx, c, name)
		},
		DisableCompression: true, MaxIdleConnsPerHost: maxFarIdle, MaxResponseHeaderBytes: maxHeader,
	}
	select {
	case w.conns <- wc:
		<-wc.closed
	case <-c.done:
	case <-w.done:
	}
}

func (w *webServer) handle(rw http.ResponseWriter, r *http.Request) {
	c := r.Context().Value(connKey{}).(*webConn)
	name := hostOf(r.Host)
	record := egress.Record{Protocol: "http", Name: name, Address: c.to.Addr(), Port: c.to.Port()}
	err := w.proxy.permit(r.Context(), c.conn, name)
	if err == nil && r.Method == http.MethodConnect {
		err = errs.New(errs.PermissionDenied, "CONNECT is not for an address behind the proxy")
	}
	record.Allowed, record.Reason = err == nil, reason(err)
	w.proxy.record(c.guest, record)
	if err != nil {
		rw.Header().Set("Connection", "close")
		http.Error(rw, err.Error(), http.StatusForbidden)
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
			p.Out.URL.RawQuery = p.In.URL.RawQuery
			for k, v := range p.In.Header {
				if k == "Forwarded" || strings.HasPrefix(k, "X-Forwarded-") { // of the guest, not of this proxy
					p.Out.Header[k] = v
				}
			}
		},
		ErrorHandler: func(rw http.ResponseWriter, _ *http.Request, err error) {
			http.Error(rw, "egress proxy: "+err.Error(), http.StatusBadGateway)
		},
	}).ServeHTTP(rw, r)
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
