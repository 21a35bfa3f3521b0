package ingress

import (
	"bufio"
	"context"
	"errors"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/schema"
)

// Bounds of the connections to one sandbox.
const (
	maxIdleConns = 512
	// idleConnLife is below the keep-alive time of common servers (Node and
	// uvicorn: 5 s), so that they rarely close a connection while it is used.
	idleConnLife = 4 * time.Second
	// downTime is how long requests avoid a sandbox that could not be dialled.
	downTime = time.Second
	// unheard is how long a sandbox's kernel may leave sent data unanswered
	// before its connections are ended. A live kernel acknowledges the data, or
	// announces a full window, however slow the app is. A sandbox that vanished
	// together with its network sends not even a refusal; without this bound a
	// request to it would wait for ResponseHeaderTimeout. (TCP_USER_TIMEOUT
	// does not tell such a sandbox from an app that does not read.)
	unheard = 8 * time.Second
	// probeAfter is when a connection that only waits is probed.
	probeAfter = 10 * time.Second
)

// errGone ends an exchange whose sandbox stopped acknowledging data.
var errGone = errors.New("the sandbox is gone: what is sent to it is not acknowledged")

// newDialer returns a dialer for connections to sandboxes.
func newDialer(timeout time.Duration) *net.Dialer {
	return &net.Dialer{
		Timeout:         timeout,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: probeAfter, Interval: unheard / 2, Count: 2},
	}
}

// backend is a sandbox that takes requests, with its connections. It outlives
// tables: it stays in the registry until its last request has ended.
type backend struct {
	Sandbox
	dial     func(ctx context.Context, address string) (net.Conn, error)
	inflight atomic.Int64
	downTill atomic.Int64 // Unix nanoseconds

	mu        sync.Mutex
	open      map[*upConn]struct{} // all connections
	idle      []*upConn            // unused connections, newest last
	transport *http.Transport      // of a sandbox that speaks HTTP/2; nil: it was not used
	closed    bool                 // the backend is replaced or removed: keep no idle connections
}

func (b *backend) down(now time.Time) bool {
	till := b.downTill.Load()
	return till != 0 && now.UnixNano() < till
}

func (b *backend) markDown() { b.downTill.Store(time.Now().Add(downTime).UnixNano()) }
func (b *backend) markUp() {
	if b.downTill.Load() != 0 {
		b.downTill.Store(0)
	}
}

// upConn is a connection to a sandbox. One goroutine reads from it, one may
// write to it.
type upConn struct {
	net.Conn
	of     *backend
	br     *bufio.Reader
	raw    syscall.RawConn
	peek   func(fd uintptr) bool // made once, so that a call of alive allocates nothing
	quiet  bool                  // result of peek
	reused bool
	since  time.Time // start of the idle time

	silent time.Time   // since when sent data is not acknowledged; used by sweep only
	gone   atomic.Bool // sent data was not acknowledged for unheard
}

var readerPool = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, 8<<10) }}

// get returns an idle connection that is still open, or dials.
func (b *backend) get(ctx context.Context, fresh bool) (*upConn, error) {
	for !fresh {
		c := b.popIdle()
		if c == nil {
			break
		}
		if c.alive() {
			c.reused = true
			return c, nil
		}
		c.discard()
	}
	nc, err := b.dial(ctx, b.Address)
	if err != nil {
		return nil, err
	}
	c := &upConn{Conn: nc, of: b}
	if sc, ok := nc.(syscall.Conn); ok {
		c.raw, _ = sc.SyscallConn()
		c.peek = c.look
	}
	c.br = readerPool.Get().(*bufio.Reader)
	c.br.Reset(nc)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open == nil {
		b.open = map[*upConn]struct{}{}
	}
	b.open[c] = struct{}{}
	return c, nil
}

func (b *backend) popIdle() *upConn {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := len(b.idle)
	if n == 0 {
		return nil
	}
	c := b.idle[n-1]
	b.idle[n-1] = nil
	b.idle = b.idle[:n-1]
	return c
}

// put gives back a connection that carries no request.
func (b *backend) put(c *upConn) {
	c.since = time.Now()
	b.mu.Lock()
	// One without a file descriptor is not reused, for alive knows nothing of it.
	if keep := !b.closed && c.raw != nil && len(b.idle) < maxIdleConns; keep {
		b.idle = append(b.idle, c)
		b.mu.Unlock()
		return
	}
	b.mu.Unlock()
	c.discard()
}

// sweep closes connections that were idle for too long (all idle ones if the
// backend is closed), and ends exchanges with a sandbox that stopped
// acknowledging data.
func (b *backend) sweep(before time.Time, closed bool) {
	b.mu.Lock()
	open := slices.Collect(maps.Keys(b.open))
	b.closed = closed
	n := 0
	for n < len(b.idle) && (closed || b.idle[n].since.Before(before)) {
		n++
	}
	old := append([]*upConn(nil), b.idle[:n]...)
	rest := copy(b.idle, b.idle[n:])
	clear(b.idle[rest:])
	b.idle = b.idle[:rest]
	b.mu.Unlock()
	for _, c := range old {
		c.discard()
	}
	if closed {
		b.closeH2()
	}
	now := time.Now()
	for _, c := range open {
		c.hear(now)
	}
}

// hear checks whether the peer acknowledges sent data. If it has not for
// unheard, reads and writes fail, also those under way.
func (c *upConn) hear(now time.Time) {
	if c.raw == nil {
		return
	}
	var heard time.Time
	silent := false
	_ = c.raw.Control(func(fd uintptr) { // the connection was closed meanwhile
		i, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil {
			return
		}
		// Both times start again when the peer acknowledges.
		silent = i.Retransmits > 0 || i.Probes > 0
		heard = now.Add(-time.Duration(i.Last_ack_recv) * time.Millisecond)
	})
	switch {
	case !silent:
		c.silent = time.Time{}
	case heard.After(c.silent):
		c.silent = now
	case now.Sub(c.silent) >= unheard:
		c.gone.Store(true)
		_ = c.SetDeadline(now)
	}
}

// discard closes an idle or finished connection. Nothing else may use it.
func (c *upConn) discard() {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	c.Close()
	if c.br != nil {
		c.br.Reset(nil)
		readerPool.Put(c.br)
		c.br = nil
	}
}

// alive reports whether an idle connection is still usable: the peer has
// neither closed it nor sent data unasked.
func (c *upConn) alive() bool {
	if time.Since(c.since) > idleConnLife || c.br.Buffered() > 0 {
		return false
	}
	if c.raw == nil {
		return true
	}
	c.quiet = false
	return c.raw.Read(c.peek) == nil && c.quiet
}

func (c *upConn) look(fd uintptr) bool {
	var b [1]byte
	_, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
	c.quiet = err == unix.EAGAIN || err == unix.EINTR
	return true
}

// registry holds what outlives a table: sandboxes with their connections and
// counts, and the counters of apps.
type registry struct {
	dial    func(ctx context.Context, address string) (net.Conn, error)
	metrics *metrics
	// dialService is Config.DialService.
	dialService func(ctx context.Context, sandbox schema.ID, port int) (net.Conn, error)

	mu       sync.Mutex
	backends map[schema.ID]*backend
	apps     map[schema.ID]*appState
	loads    map[Service]*load
	wakes    wakes
	guests   map[schema.ID]*guestState
	previews map[schema.ID]*previewState
	changed  []*previewState     // replaced since the last retain
	gates    map[schema.ID]*gate // of the routes with settings
	// leaving holds replaced or removed sandboxes with requests in flight.
	leaving map[*backend]struct{}
}

func newRegistry(dial func(context.Context, string) (net.Conn, error), m *metrics) *registry {
	return &registry{
		dial: dial, metrics: m, backends: map[schema.ID]*backend{}, apps: map[schema.ID]*appState{}, loads: map[Service]*load{},
		guests: map[schema.ID]*guestState{}, previews: map[schema.ID]*previewState{}, gates: map[schema.ID]*gate{}, leaving: map[*backend]struct{}{},
	}
}

func (r *registry) backend(s Sandbox) *backend {
	r.mu.Lock()
	defer r.mu.Unlock()
	b := r.backends[s.ID]
	if b != nil && b.Sandbox == s {
		return b
	}
	if b != nil {
		r.leaving[b] = struct{}{}
	}
	b = &backend{Sandbox: s, dial: r.dial}
	if s.Port != 0 {
		b.dial = func(ctx context.Context, _ string) (net.Conn, error) { return r.dialService(ctx, s.ID, int(s.Port)) }
	}
	r.backends[s.ID] = b
	return b
}

func (r *registry) app(a App) *appState {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.apps[a.ID]
	if s == nil || s.name != a.Name {
		s = newAppState(a, r.metrics)
		r.apps[a.ID] = s
	}
	return s
}

// stats returns the metrics of a service of an app.
func (r *registry) stats(a App, service string) *serviceStats {
	s := r.app(a)
	r.mu.Lock()
	defer r.mu.Unlock()
	return s.service(r.metrics.services, service)
}

// retain drops the sandboxes and apps that s lacks. It is called when a table
// of s is in place.
func (r *registry) retain(s *State) {
	sandboxes := make(map[schema.ID]bool, len(s.Sandboxes))
	for _, sb := range s.Sandboxes {
		sandboxes[sb.ID] = true
	}
	apps := make(map[schema.ID]bool, len(s.Apps))
	for _, a := range s.Apps {
		apps[a.ID] = true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, b := range r.backends {
		if !sandboxes[id] {
			delete(r.backends, id)
			r.leaving[b] = struct{}{}
		}
	}
	r.retainPreviews(s)
	r.retainGates(s)
	r.retainLoads(s)
	for id, a := range r.apps {
		if !apps[id] {
			delete(r.apps, id)
			a.forget(r.metrics)
		}
	}
}

// sweep closes old idle connections and forgets sandboxes that have ended.
func (r *registry) sweep() {
	before := time.Now().Add(-idleConnLife)
	r.mu.Lock()
	staying := slices.Collect(maps.Values(r.backends))
	for _, g := range r.guests {
		staying = slices.AppendSeq(staying, maps.Values(g.backends))
	}
	leaving := slices.Collect(maps.Keys(r.leaving))
	maps.DeleteFunc(r.leaving, func(b *backend, _ struct{}) bool { return b.inflight.Load() == 0 })
	r.mu.Unlock()
	for _, b := range staying {
		b.sweep(before, false)
	}
	for _, b := range leaving {
		b.sweep(before, true)
	}
}

// close closes the connections to sandboxes that carry no request.
func (r *registry) close() {
	r.mu.Lock()
	all := slices.Collect(maps.Values(r.backends))
	for _, g := range r.guests {
		all = slices.AppendSeq(all, maps.Values(g.backends))
	}
	all = slices.AppendSeq(all, maps.Keys(r.leaving))
	r.mu.Unlock()
	for _, b := range all {
		b.sweep(time.Now(), true)
	}
}

// inflight returns the number of requests on each sandbox of a version ("": of
// every version).
func (r *registry) inflight(version schema.ID) map[schema.ID]int64 {
	out := map[schema.ID]int64{}
	r.mu.Lock()
	defer r.mu.Unlock()
	count := func(b *backend) {
		if n := b.inflight.Load(); version == "" || b.Version == version {
			out[b.ID] += n
		}
	}
	for _, b := range r.backends {
		count(b)
	}
	for _, g := range r.guests {
		for _, b := range g.backends {
			count(b)
		}
	}
	for b := range r.leaving {
		count(b)
	}
	return out
}
