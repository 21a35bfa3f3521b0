package ingress

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"miren.dev/runtime/domain/routes"
)

// tcpPort has the routes of a port: one for every connection, or those of server names.
type tcpPort struct {
	every    *tcpRule
	exact    map[string]*tcpRule
	wildcard map[string]*tcpRule // by suffix with its dot
}

// find returns the rule for the server name of a connection, nil if there is none.
func (p *tcpPort) find(name string) *tcpRule {
	switch {
	case p == nil:
		return nil
	case p.every != nil:
		return p.every
	}
	if r := p.exact[name]; r != nil {
		return r
	}
	for rest := name; ; {
		i := strings.IndexByte(rest, '.')
		if i < 0 {
			return nil
		}
		if r := p.wildcard[rest[i:]]; r != nil {
			return r
		}
		rest = rest[i+1:]
	}
}

// hasTLS reports whether the connections of a port begin with TLS.
func (p *tcpPort) hasTLS() bool { return p != nil && (p.every == nil || p.every.TLS) }

// newTCPPorts returns the ports of routes. Of routes that contradict each other the older one
// counts: domain/routes refuses the younger, but cannot prevent one that is made otherwise.
func newTCPPorts(list []TCPRoute, claims *routes.Claims, targetOf func(r TCPRoute) *target) map[int64]*tcpPort {
	byAge := slices.Clone(list)
	slices.SortFunc(byAge, func(a, b TCPRoute) int {
		return cmp.Or(cmp.Compare(a.Created, b.Created), strings.Compare(string(a.ID), string(b.ID)))
	})
	ports := map[int64]*tcpPort{}
	for _, r := range byAge {
		host := strings.ToLower(r.Host)
		if host != "" && !claims.Add(host, r.Project) {
			continue
		}
		tg := targetOf(r)
		if tg == nil {
			continue // the app was deleted or is not listed yet
		}
		p, rule := ports[r.Port], newTCPRule(r, tg)
		switch {
		case p == nil && host == "":
			ports[r.Port] = &tcpPort{every: rule}
			continue
		case p == nil:
			p = &tcpPort{exact: map[string]*tcpRule{}, wildcard: map[string]*tcpRule{}}
			ports[r.Port] = p
		case host == "" || p.every != nil:
			continue
		}
		if strings.HasPrefix(host, "*.") {
			p.wildcard[host[1:]] = rule
		} else {
			p.exact[host] = rule
		}
	}
	return ports
}

// Requests with which a client of PostgreSQL begins, before TLS. The first 4 bytes of each are
// its length.
const (
	pgRequestSize = 8
	pgTLS         = 80877103 // it wants TLS
	pgGSS         = 80877104 // it wants GSSAPI, and asks for TLS when that is refused
)

// maxPgRequests bounds the requests before TLS.
const maxPgRequests = 2

// helloConn is a connection whose client has sent the hello of TLS. Reads begin with it.
type helloConn struct {
	net.Conn
	hello    []byte
	name     string // server name in normal form; "": none
	postgres bool   // the client asked for TLS as PostgreSQL does
}

func (c *helloConn) Read(b []byte) (int, error) {
	if len(c.hello) > 0 {
		n := copy(b, c.hello)
		c.hello = c.hello[n:]
		return n, nil
	}
	return c.Conn.Read(b)
}

// CloseWrite closes the direction to the client.
func (c *helloConn) CloseWrite() error {
	if half, ok := halfOf(c.Conn); ok {
		return half.CloseWrite()
	}
	return c.Conn.Close()
}

var errHelloRead = errors.New("the hello has been read")

// readHello reads the hello of TLS, for which a client has the time that the head of a request
// has.
func (in *Ingress) readHello(ctx context.Context, c net.Conn) (*helloConn, error) {
	_ = c.SetDeadline(time.Now().Add(in.cfg.ReadHeaderTimeout))
	defer func() { _ = c.SetDeadline(time.Time{}) }()
	out := &helloConn{Conn: c}
	var first [pgRequestSize]byte
	for n := 0; ; n++ {
		if _, err := io.ReadFull(c, first[:]); err != nil {
			return nil, err
		}
		if binary.BigEndian.Uint32(first[:]) != pgRequestSize || n == maxPgRequests {
			break // the first byte of TLS is 22
		}
		answer := byte('N')
		switch binary.BigEndian.Uint32(first[4:]) {
		case pgGSS:
		case pgTLS:
			answer, out.postgres = 'S', true
		default:
			return nil, errors.New("no TLS")
		}
		if _, err := c.Write([]byte{answer}); err != nil {
			return nil, err
		}
	}
	var seen bytes.Buffer
	from := io.TeeReader(io.MultiReader(bytes.NewReader(first[:]), c), &seen)
	err := tls.Server(&silentConn{c, from}, &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
		out.name = normalHost(h.ServerName)
		return nil, errHelloRead
	}}).HandshakeContext(ctx)
	if !errors.Is(err, errHelloRead) {
		return nil, err
	}
	out.hello = seen.Bytes()
	return out, nil
}

// silentConn reads from elsewhere, and sends nothing.
type silentConn struct {
	net.Conn
	from io.Reader
}

func (c *silentConn) Read(b []byte) (int, error)  { return c.from.Read(b) }
func (c *silentConn) Write(b []byte) (int, error) { return len(b), nil }
func (c *silentConn) Close() error                { return nil }

// unrecognizedName is the alert of TLS for a name that no route has.
var unrecognizedName = []byte{21, 3, 1, 0, 2, 2, 112}

// refuseName tells a client that its name has no route.
func (in *Ingress) refuseName(c net.Conn) {
	_ = c.SetWriteDeadline(time.Now().Add(in.cfg.DialTimeout))
	_, _ = c.Write(unrecognizedName) // the connection ends in any case
}

// passHello asks a service that ends TLS for it as the client did: with PostgreSQL a request
// comes before the hello.
func (in *Ingress) passHello(up net.Conn) error {
	_ = up.SetDeadline(time.Now().Add(in.cfg.ReadHeaderTimeout))
	defer func() { _ = up.SetDeadline(time.Time{}) }()
	request := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, pgRequestSize), pgTLS)
	if _, err := up.Write(request); err != nil {
		return err
	}
	var answer [1]byte
	if _, err := io.ReadFull(up, answer[:]); err != nil {
		return err
	}
	if answer[0] != 'S' {
		return errors.New("the service refused TLS")
	}
	return nil
}
