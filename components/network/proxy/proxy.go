// Package proxy decides about names for the guests of a firewall whose policy
// has rules (package egress of pkg). The firewall redirects to it what such
// guests send to port 53, and to the TCP ports 80 and 443, of any address.
//
//	DNS     It answers the names that the policy permits, with the addresses that the machine's name servers know,
//	        and "no such name" for all others. Only addresses of IPv4 are answered.
//	TLS     The name in the ClientHello decides. The bytes are then passed on unread.
//	HTTP    The host of each request decides.
//	HTTPS   Where the policy injects a secret, the proxy ends the TLS with a certificate of its own authority and
//	        passes the requests on with the secret (inject.go). All other TLS stays closed to it.
//
// A permitted name opens only addresses that it has: those with which a guest's
// question was answered, or with which it would be answered now. So a guest that
// sends a permitted name to another address does not get through.
//
// It cannot see what is within TLS: on a server that serves several domains, a
// guest reaches those behind the same address that the server serves on one
// connection. An encrypted ClientHello shows the name of its outer one, which
// must be permitted.
//
// Of guests whose policy has no rules it may get the questions for names, too: it
// answers those for names of their private network, and passes all others on unchanged.
//
// Connections of a guest to sandboxes on other nodes are redirected to it, too (peer.go).
//
// Guests are known by their addresses, which the firewall does not let them
// forge. Everything that they send is bounded in size and time.
package proxy

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"miren.dev/runtime/pkg/egress"
	"miren.dev/runtime/pkg/errs"
)

// Config of a Proxy.
type Config struct {
	// Servers returns the name servers of the machine, the preferred one first.
	Servers func() []netip.AddrPort
	// Reachable reports whether the firewall lets guests reach an address. The proxy
	// connects to no other address.
	Reachable func(netip.Addr) bool
	// Record, if set, is called with the requests of guests, one call at a time.
	// Its context ends with Run.
	Record func(context.Context, egress.Record)
	// Secret returns the value of the secret that an egress.Injection names, for a request
	// to a host; PermissionDenied if it may not be sent there, NotFound
	// if it was deleted. It is called for each request. nil: there are no secrets.
	Secret func(ctx context.Context, reference, host string) (string, error)
	// Internal answers a question of a guest for a name of its private network; ok is
	// false for other names. nil: there are none.
	Internal func(id, name string) (answer Internal, ok bool)
	// Peer connects a guest to a sandbox on another node, by the address that stands in for
	// it. nil: there are none.
	Peer func(ctx context.Context, id string, to netip.AddrPort) (PeerConn, error)
	// Authority is the file of the authority whose certificates guests see where a
	// secret is injected. It is made at first use.
	Authority string
	// Roots is a file of certificates by which servers may be verified that get a
	// secret, besides those of the machine; empty: none.
	Roots  string
	Logger *slog.Logger
}

// Proxy serves the guests of one firewall. It is safe for concurrent use.
type Proxy struct {
	cfg   Config
	names *names
	log   *accessLog
	web   *webServer
	ca    *authority
	roots roots

	mu     sync.Mutex // guards the fields below, and the guests
	guests map[netip.Addr]*guest
	listen *listeners // nil: closed
}

// guest is a sandbox. Proxy.mu guards its fields.
type guest struct {
	id      string
	policy  egress.Policy
	answers map[string]map[netip.Addr]time.Time // per name, until when an address counts as its own
	conns   map[*conn]struct{}
	asking  int // questions that are being answered
	recent  []egress.Record
}

// Bounds of one guest, and of the proxy.
const (
	maxConns      = 1024 // connections of one guest
	maxAsking     = 64   // questions of one guest at a time
	maxNames      = 1024 // names whose addresses are remembered for one guest
	maxAddresses  = 64   // addresses that are remembered for a name
	maxAllConns   = 16384
	maxAllAsking  = 1024
	answerValid   = 30 * time.Minute // how long an address counts, at least; clients remember it longer than its TTL
	dialTimeout   = 10 * time.Second
	helloTimeout  = 10 * time.Second // for the first bytes of a client
	maxRecentSize = 256              // records that are kept for a guest
)

// New returns a proxy that listens nowhere.
func New(cfg Config) *Proxy {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	p := &Proxy{cfg: cfg, names: newNames(cfg.Servers), guests: map[netip.Addr]*guest{}, log: newAccessLog(cfg.Record), ca: &authority{path: cfg.Authority}, roots: roots{path: cfg.Roots}}
	p.web = newWebServer(p)
	return p
}

// listeners of a proxy.
type listeners struct {
	address netip.Addr
	udp     *net.UDPConn
	tcp     net.Listener // DNS
	web     net.Listener
	peers   net.Listener
}

func (l *listeners) close() error {
	err := errors.Join(l.udp.Close(), l.tcp.Close())
	if l.web != nil {
		err = errors.Join(err, l.web.Close(), l.peers.Close())
	}
	return err
}

// Ports are the ports of a proxy.
type Ports struct {
	DNS   uint16 // UDP and TCP
	Web   uint16 // TCP; of connections to the ports 80 and 443
	Peers uint16 // TCP; of connections to sandboxes on other nodes
}

// Ports that only root can bind are used: while no server runs, no other user
// gets the connections of the guests.
const firstPort, lastPort = 512, 1023

// Listen opens the proxy's ports of an address of the machine, and returns them.
// It may be repeated. Run serves them.
func (p *Proxy) Listen(a netip.Addr) (Ports, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listen != nil && p.listen.address != a {
		_ = p.listen.close() // of an address that is not ours any more
		p.listen = nil
	}
	l := listeners{address: a}
	if p.listen != nil {
		l = *p.listen // the sockets for names, if they were handed over
	}
	if err := l.open(); err != nil {
		return Ports{}, errs.New(errs.FailedPrecondition, "egress proxy: %w", err)
	}
	p.listen = &l
	return Ports{DNS: portOf(l.tcp), Web: portOf(l.web), Peers: portOf(l.peers)}, nil
}

func portOf(l net.Listener) uint16 { return l.Addr().(*net.TCPAddr).AddrPort().Port() }

// Adopt has the proxy answer names on sockets of an address that another process opened. It
// does nothing if the proxy has sockets already.
func (p *Proxy) Adopt(a netip.Addr, udp *net.UDPConn, tcp net.Listener) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listen != nil {
		udp.Close()
		tcp.Close()
		return
	}
	p.listen = &listeners{address: a, udp: udp, tcp: tcp}
}

// Sockets returns the sockets on which names are answered, which stay the proxy's; ok is false
// if it listens nowhere.
func (p *Proxy) Sockets() (udp, tcp syscall.Conn, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listen == nil {
		return nil, nil, false
	}
	return p.listen.udp, p.listen.tcp.(*net.TCPListener), true
}

// ServeNames answers names, and nothing else, until ctx ends. Then it answers the questions that
// it has read already, for at most NamesEnd, and closes its sockets.
func (p *Proxy) ServeNames(ctx context.Context) error {
	p.mu.Lock()
	l := p.listen
	p.mu.Unlock()
	var g errgroup.Group
	g.Go(func() error {
		defer p.Close()
		work, cancel := context.WithCancel(context.WithoutCancel(ctx))
		defer cancel()
		stop := context.AfterFunc(ctx, func() { time.AfterFunc(NamesEnd, cancel) })
		defer stop()
		return p.serveUDP(ctx, work, l.udp)
	})
	g.Go(func() error { return p.serveTCP(ctx, l.tcp, p.converse) })
	return g.Wait()
}

// open listens on a free port for each socket that l lacks. On an error it closes the new sockets.
func (l *listeners) open() (err error) {
	var opened []net.Listener
	for port := uint16(lastPort); l.web == nil || l.peers == nil || l.tcp == nil; port-- {
		if port < firstPort {
			for _, o := range opened {
				o.Close()
			}
			return err
		}
		at := netip.AddrPortFrom(l.address, port)
		var tcp net.Listener
		if tcp, err = net.Listen("tcp4", at.String()); err != nil {
			continue
		}
		switch {
		case l.web == nil:
			l.web = tcp
		case l.peers == nil:
			l.peers = tcp
		default:
			if l.udp, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(at)); err != nil {
				tcp.Close()
				continue
			}
			l.tcp = tcp
		}
		opened = append(opened, tcp)
	}
	return nil
}

// Run serves the ports until ctx ends, and closes them and all connections.
func (p *Proxy) Run(ctx context.Context) error {
	p.mu.Lock()
	l := p.listen
	p.mu.Unlock()
	if l == nil {
		<-ctx.Done()
		return nil
	}
	g, ctx := errgroup.WithContext(ctx)
	asked := make(chan struct{})
	g.Go(func() error {
		defer close(asked)
		return p.serveUDP(ctx, ctx, l.udp)
	})
	g.Go(func() error { return p.serveTCP(ctx, l.tcp, p.converse) })
	g.Go(func() error { return p.serveTCP(ctx, l.web, p.relay) })
	g.Go(func() error { return p.serveTCP(ctx, l.peers, p.relayPeer) })
	g.Go(func() error { return p.web.serve() })
	g.Go(func() error { p.log.deliver(ctx); return nil })
	g.Go(func() error {
		<-ctx.Done()
		<-asked // a standby reads beside it, and does not have the questions that this process has read
		p.Close()
		p.web.close()
		return nil
	})
	return g.Wait()
}

// Close closes the ports and all connections. Filtered guests then reach neither
// names nor the web.
func (p *Proxy) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listen != nil {
		_ = p.listen.close()
		p.listen = nil
	}
	for _, g := range p.guests {
		for c := range g.conns {
			c.close()
		}
	}
}

// Set sets the policy of a guest. Connections that it does not permit are closed.
func (p *Proxy) Set(a netip.Addr, id string, policy egress.Policy) {
	p.mu.Lock()
	defer p.mu.Unlock()
	g := p.guests[a]
	if g == nil || g.id != id {
		p.remove(a)
		g = &guest{id: id, answers: map[string]map[netip.Addr]time.Time{}, conns: map[*conn]struct{}{}}
		p.guests[a] = g
	}
	g.policy = policy
	for c := range g.conns {
		// One that is not connected yet is decided about later.
		if len(c.far) > 0 && (policy.Decide(c.name, c.to) == egress.Denied || policy.Terminates(c.name, c.to.Port()) != c.terminated) {
			c.close()
		}
	}
}

// Remove forgets a guest and closes its connections.
func (p *Proxy) Remove(a netip.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.remove(a)
}

func (p *Proxy) remove(a netip.Addr) {
	g := p.guests[a]
	if g == nil {
		return
	}
	delete(p.guests, a)
	for c := range g.conns {
		c.close()
	}
}

// policyOf returns the policy of the guest with an address.
func (p *Proxy) policyOf(a netip.Addr) (id string, policy egress.Policy, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	g := p.guests[a]
	if g == nil {
		return "", egress.Policy{}, false
	}
	return g.id, g.policy, true
}

// serveTCP calls serve for each connection of a guest, in a goroutine each, and
// waits for them.
func (p *Proxy) serveTCP(ctx context.Context, l net.Listener, serve func(context.Context, *conn)) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	slots := make(chan struct{}, maxAllConns)
	for {
		nc, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return nil
			}
			p.cfg.Logger.Warn("egress proxy cannot accept a connection", "error", err)
			select { // such as for want of file descriptors
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
			continue
		}
		c := p.open(nc.(*net.TCPConn))
		if c == nil {
			nc.Close()
			continue
		}
		select {
		case slots <- struct{}{}:
		default:
			p.forget(c)
			continue
		}
		wg.Go(func() {
			defer func() { <-slots }()
			defer p.forget(c)
			serve(ctx, c)
		})
	}
}

// conn is a connection of a guest.
type conn struct {
	*net.TCPConn
	guest netip.Addr
	to    netip.AddrPort // where the guest meant to connect

	name       string                // that the guest sent; Proxy.mu guards it
	terminated bool                  // the proxy has ended its TLS; Proxy.mu guards it
	peer       bool                  // it leads to a sandbox on another node; Proxy.mu guards it
	far        map[*farConn]struct{} // to the destination; Proxy.mu guards it
	once       sync.Once
	done       chan struct{} // closed by close
}

// farConn is a connection to the destination of a guest's.
type farConn struct {
	*net.TCPConn
	proxy *Proxy
	of    *conn
}

// Close closes and forgets the connection.
func (f *farConn) Close() error {
	f.proxy.mu.Lock()
	defer f.proxy.mu.Unlock()
	delete(f.of.far, f)
	return f.TCPConn.Close()
}

// open returns a connection from a guest, nil if it may have no other one.
func (p *Proxy) open(tcp *net.TCPConn) *conn {
	from := tcp.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
	c := &conn{TCPConn: tcp, guest: from, far: map[*farConn]struct{}{}, done: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	g := p.guests[from]
	if g == nil || p.listen == nil || len(g.conns) >= maxConns {
		return nil
	}
	g.conns[c] = struct{}{}
	return c
}

// forget closes a connection.
func (p *Proxy) forget(c *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c.close()
	if g := p.guests[c.guest]; g != nil {
		delete(g.conns, c)
	}
}

// close ends both sides. Callers hold Proxy.mu.
func (c *conn) close() {
	c.once.Do(func() {
		close(c.done)
		_ = c.TCPConn.SetLinger(0) // a reset: the guest sees that it did not end well
		c.TCPConn.Close()
		for f := range c.far {
			_ = f.TCPConn.Close()
		}
	})
}
