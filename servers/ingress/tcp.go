package ingress

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pires/go-proxyproto"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/domain/routes"
	"miren.dev/runtime/pkg/schema"
)

// TCPRoute maps a port of the ingress to a service.
type TCPRoute struct {
	ID      schema.ID     `json:"id"`
	Project schema.ID     `json:"project,omitempty"`
	Port    int64         `json:"port"`
	App     schema.ID     `json:"app"`
	Service string        `json:"service"`
	Allow   string        `json:"allow,omitempty"` // networks, with commas; a string, for a TCPRoute is comparable
	Idle    time.Duration `json:"idle"`
	Proxy   bool          `json:"proxy,omitempty"` // send a PROXY header
	TLS     bool          `json:"tls,omitempty"`   // end TLS

	Host        string          `json:"host,omitempty"`        // server name of TLS, exact or *.suffix; "": every connection
	Passthrough bool            `json:"passthrough,omitempty"` // the service ends TLS
	Created     schema.Revision `json:"created,omitempty"`     // of routes that contradict each other the older one counts
}

func tcpRouteOf(r *app.TCPRoute) (TCPRoute, bool) {
	return TCPRoute{ID: r.ID, Project: r.Project, Port: r.Spec.Port, App: schema.ID(r.Spec.App), Service: r.Spec.Service, Allow: strings.Join(r.Spec.Allow, ","),
		Idle: r.Spec.IdleTimeout, Proxy: r.Spec.ProxyProtocol, TLS: r.Spec.TLS,
		Host: r.Spec.Host, Passthrough: r.Spec.Passthrough, Created: r.CreateRevision}, true
}

// tcpRule is a route of TCP with its target.
type tcpRule struct {
	TCPRoute
	target *target
	allow  []netip.Prefix
	broken bool // it cannot be carried out: no connection is admitted
}

func newTCPRule(r TCPRoute, tg *target) *tcpRule {
	rule := &tcpRule{TCPRoute: r, target: tg, broken: r.Passthrough && r.Host == ""}
	if r.Allow == "" {
		return rule
	}
	for s := range strings.SplitSeq(r.Allow, ",") {
		p, err := app.ParseNetwork(s)
		rule.broken = rule.broken || err != nil
		rule.allow = append(rule.allow, p)
	}
	return rule
}

// permits reports whether a client may connect now.
func (r *tcpRule) permits(c net.Conn) bool {
	return !r.broken && (r.allow == nil || isTrusted(r.allow, c.RemoteAddr().String())) && r.target.away == ""
}

// tcpPorts are the listeners of the routes of TCP.
type tcpPorts struct {
	in      *Ingress
	allowed routes.Ports
	wake    chan struct{}

	mu   sync.Mutex
	open map[int64]net.Listener
}

// acceptRetry is the time between a failed accept and the next one.
const acceptRetry = 10 * time.Millisecond

// tcpRetry is after how long a port that could not be opened is tried again.
const tcpRetry = time.Second

func (p *tcpPorts) changed() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// run opens and closes ports as the tables say until ctx ends. Then it closes all.
func (p *tcpPorts) run(ctx context.Context) {
	var accepting, serving sync.WaitGroup
	failing := map[int64]bool{}
	for ctx.Err() == nil {
		want := p.in.table.Load().tcp
		p.mu.Lock()
		for port, l := range p.open {
			if want[port] == nil {
				l.Close()
				delete(p.open, port)
			}
		}
		var retry <-chan time.Time
		for port := range want {
			if p.open[port] != nil {
				continue
			}
			l, err := p.listen(ctx, port)
			if err != nil {
				if retry = time.After(tcpRetry); !failing[port] {
					p.in.cfg.Logger.Error("cannot open the port of a route", "port", port, "error", err)
				}
				failing[port] = true
				continue
			}
			delete(failing, port)
			p.open[port] = l
			accepting.Go(func() { p.accept(ctx, l, port, &serving) })
		}
		p.mu.Unlock()
		p.in.pred.release(nil) // this table needs none of the others
		select {
		case <-p.wake:
		case <-retry:
		case <-ctx.Done():
		}
	}
	p.mu.Lock()
	for port, l := range p.open {
		l.Close()
		delete(p.open, port)
	}
	p.mu.Unlock()
	accepting.Wait()
	serving.Wait() // the drain ends the tunnels
}

func (p *tcpPorts) listen(ctx context.Context, port int64) (net.Listener, error) {
	if !p.allowed.Has(port) {
		return nil, errors.New("it is not among ingress.tcp_ports")
	}
	host, _, err := net.SplitHostPort(p.in.cfg.Addrs[0])
	if err != nil {
		return nil, err
	}
	addr := net.JoinHostPort(host, strconv.FormatInt(port, 10))
	if l := p.in.pred.listener(addr); l != nil {
		return l, nil
	}
	return listenOne(ctx, addr, "the port of the route", nil)
}

// listeners returns the open ports, for a successor.
func (p *tcpPorts) listeners() (out []net.Listener) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.open {
		out = append(out, l)
	}
	return out
}

func (p *tcpPorts) accept(ctx context.Context, l net.Listener, port int64, serving *sync.WaitGroup) {
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // such as no file descriptor: an open connection may end meanwhile
			select {
			case <-time.After(acceptRetry):
			case <-ctx.Done():
			}
			continue
		}
		if p.in.conns.Add(1) > int64(p.in.cfg.MaxConnections) {
			p.in.conns.Add(-1)
			p.in.metrics.refused.Inc()
			c.Close()
			continue
		}
		serving.Go(func() {
			defer p.in.conns.Add(-1)
			defer c.Close()
			p.in.serveTCP(c, port)
		})
	}
}

// serveTCP leads a connection to a sandbox.
func (in *Ingress) serveTCP(c net.Conn, port int64) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	in.tunnels.add(c, c) // so that the drain can end it also while it waits
	defer func() { in.tunnels.remove(c) }()
	var (
		hold      holdState
		tried     []*backend
		elsewhere int // of tried: those that another server reaches
		hello     *helloConn
		name      string
	)
	replace := func(by net.Conn) {
		in.tunnels.add(by, by)
		in.tunnels.remove(c)
		c = by
	}
	defer hold.end()
	for {
		t := in.table.Load()
		p := t.tcp[port]
		if p.hasTLS() && hello == nil {
			if p.every != nil && !p.every.permits(c) {
				return
			}
			h, err := in.readHello(ctx, c)
			if err != nil {
				return
			}
			hello, name = h, h.name
			replace(h)
			continue // the table may be another
		}
		r := p.find(name)
		if r == nil && p != nil && hello != nil {
			in.refuseName(c)
		}
		if r == nil || !r.permits(c) {
			return
		}
		_, opened := c.(*tls.Conn)
		if opened && r.Passthrough { // since it was opened
			return
		}
		if r.TLS && !opened {
			secure := tls.Server(c, in.keys.tcpConfig(r.Project))
			if in.handshake(ctx, secure) != nil {
				return
			}
			replace(secure)
		}
		b, ld := r.target.pick(tried)
		if b == nil {
			retry := len(tried) > 0
			if r.target.remote() || elsewhere > 0 && elsewhere == len(tried) {
				return // no wait changes it
			}
			tried, elsewhere = tried[:0], 0
			if r.target.version == "" && !r.target.deploying || hold.wait(ctx, in, r.target.app, ld, t.changed, retry) != nil {
				return
			}
			continue
		}
		b.inflight.Add(1)
		if in.table.Load() != t {
			b.inflight.Add(-1)
			continue
		}
		up, err := b.dial(ctx, b.Address)
		if err != nil {
			b.inflight.Add(-1)
			b.markDown()
			r.target.app.dial.Inc()
			tried = append(tried, b)
			if onOtherServer(err) {
				elsewhere++
			}
			continue
		}
		b.markUp()
		hold.end()
		ld.requests.Add(1)
		r.target.app.inflight.Inc()
		in.relayTCP(c, up, r, hello)
		r.target.app.inflight.Dec()
		b.inflight.Add(-1)
		return
	}
}

// handshake ends TLS with a client that must answer in the time that the header of a
// request has.
func (in *Ingress) handshake(ctx context.Context, c *tls.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, in.cfg.ReadHeaderTimeout)
	defer cancel()
	return c.HandshakeContext(ctx)
}

// relayTCP copies both ways until both have ended, or neither made progress for the
// idle time.
func (in *Ingress) relayTCP(c, up net.Conn, r *tcpRule, hello *helloConn) {
	defer up.Close()
	in.tunnels.add(c, up)
	if r.Proxy {
		_ = up.SetWriteDeadline(time.Now().Add(in.cfg.DialTimeout))
		if _, err := proxyproto.HeaderProxyFromAddrs(2, c.RemoteAddr(), c.LocalAddr()).WriteTo(up); err != nil {
			return
		}
		_ = up.SetWriteDeadline(time.Time{})
	}
	if r.Passthrough && hello.postgres && in.passHello(up) != nil {
		return
	}
	var last atomic.Int64
	last.Store(time.Now().UnixNano())
	done := make(chan struct{}, 2)
	copyTo := func(dst, src net.Conn) {
		defer func() { done <- struct{}{} }()
		_, err := io.Copy(&active{dst, &last}, src)
		if half, ok := halfOf(dst); ok && err == nil && half.CloseWrite() == nil {
			return
		}
		dst.Close()
		src.Close()
	}
	go copyTo(up, c)
	go copyTo(c, up)
	idle := time.NewTimer(r.Idle)
	defer idle.Stop()
	for ended := 0; ended < 2; {
		select {
		case <-done:
			ended++
		case <-idle.C:
			if left := r.Idle - time.Since(time.Unix(0, last.Load())); left > 0 {
				idle.Reset(left)
				continue
			}
			c.Close()
			up.Close()
		}
	}
}

// active notes the time of each write.
type active struct {
	net.Conn
	last *atomic.Int64
}

func (a *active) Write(p []byte) (int, error) {
	a.last.Store(time.Now().UnixNano())
	n, err := a.Conn.Write(p)
	a.last.Store(time.Now().UnixNano())
	return n, err
}
