package proxy

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/egress"
	"miren.dev/runtime/pkg/errs"
)

// maxHello bounds the bytes in which a ClientHello must end.
const maxHello = 64 << 10

// relay serves a connection to port 80 or 443 of some address.
func (p *Proxy) relay(ctx context.Context, c *conn) {
	to, err := originalDestination(c.TCPConn)
	if err != nil || to == c.LocalAddr().(*net.TCPAddr).AddrPort() { // it was not redirected
		return
	}
	p.mu.Lock()
	c.to = to
	p.mu.Unlock()
	_, policy, ok := p.policyOf(c.guest)
	switch {
	case !ok:
		return
	case policy.Decide("", to) != egress.Denied && !policy.NeedsNames():
		p.pass(ctx, c, egress.Record{Protocol: "tcp"}, nil)
	case to.Port() == egress.PortHTTPS:
		p.relayTLS(ctx, c)
	default:
		wc := p.newWebConn(c, "")
		p.web.take(wc, wc)
	}
}

// relayTLS reads the name of a TLS connection.
func (p *Proxy) relayTLS(ctx context.Context, c *conn) {
	_ = c.SetReadDeadline(time.Now().Add(helloTimeout))
	name, hello, isTLS := readHello(c)
	_ = c.SetReadDeadline(time.Time{})
	r := egress.Record{Protocol: "tls", Name: name}
	if !isTLS {
		r.Protocol = "tcp"
	}
	if _, policy, ok := p.policyOf(c.guest); ok && policy.Terminates(name, c.to.Port()) {
		p.terminate(ctx, c, name, hello)
		return
	}
	p.pass(ctx, c, r, hello)
}

// readHello returns the server name of a TLS connection, "" if it has none, and the bytes read so far.
func readHello(c net.Conn) (name string, read []byte, isTLS bool) {
	var seen bytes.Buffer
	stop := errors.New("the name is known")
	err := tls.Server(helloConn{r: io.TeeReader(io.LimitReader(c, maxHello), &seen)}, &tls.Config{
		GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
			name, isTLS = h.ServerName, true
			return nil, stop
		},
	}).Handshake()
	_ = err // always: the handshake is the destination's matter
	return name, seen.Bytes(), isTLS
}

// helloConn reads only: the alert of the handshake that readHello stops goes nowhere.
type helloConn struct {
	net.Conn
	r io.Reader
}

func (c helloConn) Read(b []byte) (int, error)       { return c.r.Read(b) }
func (c helloConn) Write(b []byte) (int, error)      { return len(b), nil }
func (c helloConn) Close() error                     { return nil }
func (c helloConn) SetDeadline(time.Time) error      { return nil }
func (c helloConn) SetReadDeadline(time.Time) error  { return nil }
func (c helloConn) SetWriteDeadline(time.Time) error { return nil }

// pass passes on a connection that the policy permits, beginning with the bytes in first.
func (p *Proxy) pass(ctx context.Context, c *conn, r egress.Record, first []byte) {
	r.Address, r.Port = c.to.Addr(), c.to.Port()
	far, err := p.connect(ctx, c, r.Name)
	r.Allowed, r.Reason = !errs.Is(err, errs.PermissionDenied), reason(err)
	p.record(c.guest, r)
	if err != nil {
		return
	}
	if _, err := far.Write(first); err != nil {
		return
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		copyHalf(far.TCPConn, c.TCPConn)
	}()
	copyHalf(c.TCPConn, far.TCPConn)
	<-ended
	p.mu.Lock()
	defer p.mu.Unlock()
	c.once.Do(func() { // it ended by itself: no reset
		close(c.done)
		c.TCPConn.Close()
		far.TCPConn.Close()
	})
}

// copyHalf copies until one side ends, and says so to the other.
func copyHalf(to, from *net.TCPConn) {
	_, err := io.Copy(to, from) // by splice
	if err == nil {
		err = to.CloseWrite()
	}
	if err != nil { // the connection was reset: end the other direction too
		_ = to.SetLinger(0)
		to.Close()
		from.Close()
	}
}

func reason(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// connect decides about a connection, for the name that the guest sent, and
// connects to its destination. PermissionDenied if the policy does not permit it.
func (p *Proxy) connect(ctx context.Context, c *conn, name string) (*farConn, error) {
	if err := p.permit(ctx, c, name); err != nil {
		return nil, err
	}
	d := net.Dialer{Timeout: dialTimeout, Control: func(_, address string, _ syscall.RawConn) error {
		to, err := netip.ParseAddrPort(address)
		if err != nil || !p.cfg.Reachable(to.Addr()) {
			return errs.New(errs.PermissionDenied, "sandboxes do not reach %s", address)
		}
		return nil
	}}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // the guest may go meanwhile, or its policy change
		select {
		case <-c.done:
			cancel()
		case <-ctx.Done():
		}
	}()
	dialed, err := d.DialContext(ctx, "tcp4", c.to.String())
	if err != nil {
		var e *errs.Error
		if errors.As(err, &e) {
			return nil, e
		}
		return nil, errs.New(errs.Unavailable, "%w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	g := p.guests[c.guest]
	select {
	case <-c.done:
		g = nil
	default:
	}
	if g == nil || g.policy.Decide(name, c.to) == egress.Denied || g.policy.Terminates(name, c.to.Port()) != c.terminated { // by now
		dialed.Close()
		return nil, errs.New(errs.PermissionDenied, "the network policy of the sandbox was changed")
	}
	far := &farConn{TCPConn: dialed.(*net.TCPConn), proxy: p, of: c}
	c.far[far] = struct{}{}
	return far, nil
}

// permit notes the name of a connection and decides about it.
func (p *Proxy) permit(ctx context.Context, c *conn, name string) error {
	p.mu.Lock()
	c.name = name
	g := p.guests[c.guest]
	verdict := egress.Denied
	if g != nil {
		verdict = g.policy.Decide(name, c.to)
	}
	p.mu.Unlock()
	what := name
	if name == "" {
		what = "a connection without a name"
	}
	switch {
	case verdict == egress.Denied:
		return errs.New(errs.PermissionDenied, "the network policy does not permit %s at %s", printable(what), c.to)
	case !p.cfg.Reachable(c.to.Addr()):
		return errs.New(errs.PermissionDenied, "sandboxes do not reach %s", c.to)
	case verdict == egress.ByName && !p.belongs(ctx, c.guest, name, c.to.Addr()):
		return errs.New(errs.PermissionDenied, "%s is not an address of %s", c.to.Addr(), printable(name))
	}
	return nil
}

// originalDestination returns where a redirected connection was to go.
func originalDestination(c *net.TCPConn) (netip.AddrPort, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return netip.AddrPort{}, err
	}
	var to netip.AddrPort
	var failed error
	err = raw.Control(func(fd uintptr) {
		// A sockaddr_in fits into the structure, and Go has no other call for it.
		mreq, err := unix.GetsockoptIPv6Mreq(int(fd), unix.SOL_IP, unix.SO_ORIGINAL_DST)
		if err != nil {
			failed = err
			return
		}
		port := binary.BigEndian.Uint16(mreq.Multiaddr[2:4])
		to = netip.AddrPortFrom(netip.AddrFrom4([4]byte(mreq.Multiaddr[4:8])), port)
	})
	return to, errors.Join(err, failed)
}
