package rpc

import (
	"context"
	"io"
	"net"
	"sync"
	"time"

	"miren.dev/runtime/pkg/errs"
)

// A tunnel is a connection for calls in the other direction, which is carried by
// a stream of raw bytes of a call: a program that can be reached by no address
// dials, makes such a call, and serves what comes through it.

// NewTunnel returns the connection that the raw bytes of a stream carry, which r
// and w are of. end is called once, when the connection is closed: it must end the
// call of the stream.
func NewTunnel(r io.Reader, w io.Writer, end func()) net.Conn { return &tunnel{r: r, w: w, end: end} }

// tunnel is a connection over a stream. A deadline that passes closes it: the
// connections of this package use no other.
type tunnel struct {
	r    io.Reader
	w    io.Writer
	end  func()
	once sync.Once

	mu      sync.Mutex
	timer   *time.Timer
	writeBy time.Time // zero: writes have no deadline
}

func (t *tunnel) Read(p []byte) (int, error) {
	n, err := t.r.Read(p)
	if err != nil {
		_ = t.Close()
	}
	return n, err
}

func (t *tunnel) Write(p []byte) (int, error) {
	t.mu.Lock()
	by := t.writeBy
	t.mu.Unlock()
	if !by.IsZero() {
		late := time.AfterFunc(time.Until(by), func() { _ = t.Close() })
		defer late.Stop()
	}
	return t.w.Write(p)
}

func (t *tunnel) Close() error {
	t.once.Do(func() {
		t.stopTimer()
		t.end()
	})
	return nil
}

func (t *tunnel) stopTimer() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.timer != nil {
		t.timer.Stop()
		t.timer = nil
	}
}

func (t *tunnel) LocalAddr() net.Addr  { return tunnelAddr{} }
func (t *tunnel) RemoteAddr() net.Addr { return tunnelAddr{} }

// SetDeadline implements net.Conn.
func (t *tunnel) SetDeadline(at time.Time) error {
	t.stopTimer()
	if at.IsZero() {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.timer = time.AfterFunc(time.Until(at), func() { _ = t.Close() })
	return nil
}

// SetReadDeadline implements net.Conn. A connection sets one only to end its
// reader.
func (t *tunnel) SetReadDeadline(at time.Time) error { return t.SetDeadline(at) }

// SetWriteDeadline implements net.Conn: for writes that begin later.
func (t *tunnel) SetWriteDeadline(at time.Time) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.writeBy = at
	return nil
}

type tunnelAddr struct{}

func (tunnelAddr) Network() string { return "tunnel" }
func (tunnelAddr) String() string  { return "tunnel" }

// ServeConn serves one connection, whose peer has the identity id, until it ends.
func (s *Server) ServeConn(nc net.Conn, id Identity) error {
	s.mu.Lock()
	if s.draining || !s.admission.begin(nc, classLocal) {
		s.mu.Unlock()
		_ = nc.Close()
		return errShutdown
	}
	s.wg.Add(1)
	s.mu.Unlock()
	defer s.wg.Done()
	s.serveConn(nc, classLocal, func(net.Conn) (net.Conn, Identity, error) { return nc, id, nil })
	return nil
}

// Adopt serves a connection from the network, which another protocol has opened
// and authenticated as id, and returns. It counts as one with a certificate. It
// closes nc on an error, such as Unavailable if
// there are too many.
func (s *Server) Adopt(nc net.Conn, id Identity) error {
	if !id.known() {
		_ = nc.Close()
		return errs.New(errs.Unauthenticated, "the connection has no identity")
	}
	if !s.adopt(nc, classCertified, func(net.Conn) (net.Conn, Identity, error) { return nc, id, nil }) {
		return errs.New(errs.Unavailable, "the server takes no more connections")
	}
	return nil
}

// NewConnClient returns a client that calls over nc and fails when that ends:
// it has no way to connect again. It owns nc.
func NewConnClient(nc net.Conn, opts ClientOptions) (*Client, error) {
	opts.RetryFor = -1
	opts = opts.withDefaults()
	if err := opts.Limits.validate(); err != nil {
		_ = nc.Close()
		return nil, err
	}
	c := newConn(nc, true, opts.Limits)
	if err := c.handshake(handshakeTimeout); err != nil {
		_ = nc.Close()
		return nil, errs.New(errs.Unavailable, "handshake through a tunnel: %w", err)
	}
	cl := newClient(opts)
	cl.target = target{network: "tunnel", address: nc.RemoteAddr().String()}
	cl.dialer = func(context.Context) (*conn, error) {
		return nil, errs.New(errs.Unavailable, "the connection has ended")
	}
	cl.cur.Store(c)
	cl.wg.Add(1)
	go func() {
		defer cl.wg.Done()
		_ = c.run()
	}()
	return cl, nil
}
