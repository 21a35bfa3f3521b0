package ingress

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	admin "miren.dev/runtime/api/ingress"
	"miren.dev/runtime/domain/routes"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/servers/ingress/quicsocket"
)

// handoverProtocol is what a successor switches to on the admin socket.
const handoverProtocol = "runtime-ingress-handover/1"

// Bounds of a handover.
const (
	maxHandedOver   = 200              // sockets; the kernel passes 253
	maxHandoverHead = 64 << 10         // of the message with the sockets, in bytes
	handoverTimeout = 10 * time.Second // until the sockets have arrived
	reportEvery     = 50 * time.Millisecond
)

// socket describes a listening socket that is handed over.
type socket struct {
	Network string `json:"network"` // tcp, udp, or quic: the link that belongs to a udp one
	Address string `json:"address"` // with its real port

	// Of UDP, for quicsocket.Handover.
	Generation byte   `json:"generation,omitempty"`
	Secret     []byte `json:"secret,omitempty"`
}

// report is what a process that has a successor tells it again and again, so that
// the successor can answer for both.
type report struct {
	Table     schema.Token        `json:"table"`
	Draining  bool                `json:"draining,omitempty"` // it accepts no connections any more
	Held      int64               `json:"held,omitempty"`
	Sandboxes []busy              `json:"sandboxes,omitempty"`
	Guests    map[schema.ID]int64 `json:"guests,omitempty"` // requests by previews
	// Services has the load of this moment: the successor is asked for it.
	Services []admin.ServiceLoad `json:"services,omitempty"`
}

// busy counts the requests that a sandbox works on.
type busy struct {
	Sandbox schema.ID `json:"sandbox"`
	Version schema.ID `json:"version,omitempty"`
	N       int64     `json:"n"`
}

// handOver gives the listening sockets to a successor, and then reports until the
// connection or the process ends. The sockets stay in use here too: the successor
// serves when it is told so, or when this process has ended.
func (in *Ingress) handOver(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Upgrade") != handoverProtocol {
		refuse(w, http.StatusBadRequest, errs.InvalidArgument, "the protocol of a handover is "+handoverProtocol)
		return
	}
	in.follower.save() // the successor begins with this table
	nc, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		refuse(w, http.StatusInternalServerError, errs.Internal, err.Error())
		return
	}
	defer nc.Close()
	c, ok := nc.(*net.UnixConn)
	if !ok {
		return
	}
	in.successors.Add(1) // before the successor can serve, and so before this process is told to end
	defer in.successors.Add(-1)
	if err := in.sendSockets(c); err != nil {
		in.cfg.Logger.Warn("cannot hand over", "error", err)
		return
	}
	in.cfg.Logger.Info("handed over the listening sockets")
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, _ = io.Copy(io.Discard, c) // the successor sends nothing, and ends the connection
	}()
	enc := json.NewEncoder(c)
	tick := time.NewTicker(reportEvery)
	defer tick.Stop()
	for {
		_ = c.SetWriteDeadline(time.Now().Add(handoverTimeout))
		if err := enc.Encode(in.report()); err != nil {
			_ = c.Close()
			<-gone
			return
		}
		select {
		case <-tick.C:
		case <-gone:
			return
		case <-in.ended:
			_ = c.Close()
			<-gone
			return
		}
	}
}

// sendSockets answers a successor with one message that has the sockets attached.
func (in *Ingress) sendSockets(c *net.UnixConn) error {
	var list []socket
	var conns []syscall.Conn
	add := func(listeners []net.Listener) {
		for _, l := range listeners {
			if sc, ok := l.(syscall.Conn); ok {
				list, conns = append(list, socket{Network: "tcp", Address: l.Addr().String()}), append(conns, sc)
			}
		}
	}
	add(in.listeners)
	add(in.secure)
	for _, u := range in.http3.handOver() {
		defer u.from.Link.Close()
		list, conns = append(list, u.socket, socket{Network: "quic", Address: u.Address}), append(conns, u.conn, u.from.Link)
	}
	add(in.tcp.listeners())
	if len(list) > maxHandedOver {
		list, conns = list[:maxHandedOver], conns[:maxHandedOver]
	}
	text, err := json.Marshal(list)
	if err != nil {
		return err
	}
	msg := []byte("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + handoverProtocol + "\r\n\r\n")
	msg = append(append(msg, text...), '\n')
	if len(msg) > maxHandoverHead {
		return errs.New(errs.ResourceExhausted, "%d sockets to hand over", len(list))
	}
	if err := c.SetDeadline(time.Now().Add(handoverTimeout)); err != nil {
		return err
	}
	// The descriptors are valid while all Control functions run.
	err = withDescriptors(conns, nil, func(fds []int) error {
		n, _, err := c.WriteMsgUnix(msg, unix.UnixRights(fds...), nil)
		if err == nil && n < len(msg) {
			_, err = c.Write(msg[n:])
		}
		return err
	})
	if err != nil {
		return errs.New(errs.Unavailable, "send the sockets: %w", err)
	}
	return c.SetDeadline(time.Time{})
}

// withDescriptors calls f with the descriptors of conns, which stay open meanwhile.
func withDescriptors(conns []syscall.Conn, fds []int, f func([]int) error) error {
	if len(conns) == 0 {
		return f(fds)
	}
	raw, err := conns[0].SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := raw.Control(func(fd uintptr) { inner = withDescriptors(conns[1:], append(fds, int(fd)), f) }); err != nil {
		return err
	}
	return inner
}

// report returns the state of this process, with that of its own predecessor.
func (in *Ingress) report() report {
	// The position first: the counts are then at least as new.
	r := report{Table: in.position(), Draining: in.draining.Load()}
	r.Sandboxes, r.Guests = in.registry.report()
	r.Services = in.services()
	t := in.table.Load()
	for _, a := range t.apps {
		r.Held += a.waiting.Load()
	}
	for _, g := range t.guests {
		r.Held += g.state.waiting.Load()
	}
	if p := in.pred.last(); p != nil {
		r.Held += p.Held
		r.Sandboxes = append(r.Sandboxes, p.Sandboxes...)
		for id, n := range p.Guests {
			r.Guests[id] += n
		}
	}
	return r
}

// report returns the sandboxes that work on requests, and the previews' requests.
func (r *registry) report() (list []busy, guests map[schema.ID]int64) {
	guests = map[schema.ID]int64{}
	r.mu.Lock()
	defer r.mu.Unlock()
	count := func(b *backend) {
		if n := b.inflight.Load(); n > 0 {
			list = append(list, busy{b.ID, b.Version, n})
		}
	}
	for _, b := range r.backends {
		count(b)
	}
	for id, g := range r.guests {
		for _, b := range g.backends {
			count(b)
		}
		if n := g.active.Load(); n > 0 {
			guests[id] = n
		}
	}
	for b := range r.leaving {
		count(b)
	}
	return list, guests
}

// predecessor is the process whose sockets this one has. It is nil if there is none.
type predecessor struct {
	conn    *net.UnixConn // nil: one of an earlier version, which does not report
	rest    *bufio.Reader
	sockets []handed
	shared  []string      // addresses that it may share by SO_REUSEPORT
	gone    chan struct{} // closed when its reports end
	drains  chan struct{} // closed when it accepts no connections any more

	mu      sync.Mutex
	now     *report // nil: none came, or the process is gone
	changed chan struct{}
}

// handed is a socket of the predecessor.
type handed struct {
	socket
	file *os.File // nil: it is in use
}

// takeOver asks the ingress at an admin socket for its listening sockets. It returns
// nil if no process answers there.
func takeOver(ctx context.Context, path string) (*predecessor, error) {
	if path == "" {
		return nil, nil
	}
	// If there is no older process, the call fails at once; a running one may be
	// slow on a busy machine.
	ask, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	st, err := (admin.Client{Socket: path}).Status(ask)
	if admin.Down(err) {
		return nil, nil
	}
	if err != nil {
		return nil, errs.New(errs.Unavailable, "take over from the running ingress: %w", err)
	}
	p := &predecessor{shared: append(st.Addresses, st.TLSAddresses...), gone: make(chan struct{}), drains: make(chan struct{}), changed: make(chan struct{})}
	if err := p.dial(ask, path); err != nil {
		p.close()
		return nil, errs.New(errs.Unavailable, "take over from the running ingress: %w", err)
	}
	return p, nil
}

func (p *predecessor) dial(ctx context.Context, path string) error {
	var d net.Dialer
	nc, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return err
	}
	p.conn = nc.(*net.UnixConn)
	if err := p.conn.SetDeadline(time.Now().Add(handoverTimeout)); err != nil {
		return err
	}
	if _, err := io.WriteString(p.conn, "POST /handover HTTP/1.1\r\nHost: ingress\r\nConnection: Upgrade\r\nUpgrade: "+handoverProtocol+"\r\nContent-Length: 0\r\n\r\n"); err != nil {
		return err
	}
	buf, oob := make([]byte, maxHandoverHead), make([]byte, unix.CmsgSpace(4*(maxHandedOver+1)))
	n, nOOB, flags, _, err := p.conn.ReadMsgUnix(buf, oob)
	if err != nil {
		return err
	}
	files, err := parseFiles(oob[:nOOB])
	if err == nil && flags&unix.MSG_CTRUNC != 0 {
		err = errors.New("it has too many sockets")
	}
	p.rest = bufio.NewReader(io.MultiReader(bytes.NewReader(buf[:n]), p.conn))
	for _, f := range files {
		p.sockets = append(p.sockets, handed{file: f})
	}
	if err != nil {
		return err
	}
	resp, err := http.ReadResponse(p.rest, nil)
	if err != nil {
		return err
	}
	if resp.StatusCode == http.StatusNotFound { // an earlier version, which shares its addresses
		_ = p.conn.Close()
		p.conn = nil
		return nil
	}
	if resp.StatusCode != http.StatusSwitchingProtocols || resp.Header.Get("Upgrade") != handoverProtocol {
		return errors.New("it answered " + resp.Status)
	}
	line, err := p.rest.ReadSlice('\n')
	if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
		return err
	}
	for line = bytes.Clone(line); err != nil && len(line) < maxHandoverHead; {
		var more []byte
		if more, err = p.rest.ReadSlice('\n'); err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return err
		}
		line = append(line, more...)
	}
	var list []socket
	if err := json.Unmarshal(line, &list); err != nil {
		return err
	}
	if len(list) != len(p.sockets) {
		return errors.New("it sent " + strconv.Itoa(len(p.sockets)) + " of " + strconv.Itoa(len(list)) + " sockets")
	}
	for i := range list {
		p.sockets[i].socket = list[i]
	}
	return p.conn.SetDeadline(time.Time{})
}

// parseFiles returns the files that a control message carries.
func parseFiles(oob []byte) (files []*os.File, err error) {
	controls, err := syscall.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	for _, m := range controls {
		fds, err := syscall.ParseUnixRights(&m)
		if err != nil {
			return files, err
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), "handed over"))
		}
	}
	return files, nil
}

// listener returns the predecessor's listener of an address, nil if it has none. The
// address is that of the socket, whatever the predecessor says of it.
func (p *predecessor) listener(addr string) net.Listener {
	if p == nil {
		return nil
	}
	for i := range p.sockets {
		s := &p.sockets[i]
		if s.file == nil || s.Network != "tcp" {
			continue
		}
		l, err := net.FileListener(s.file)
		if err != nil {
			continue
		}
		if _, ok := l.(*net.TCPListener); ok && sameAddress(l.Addr().String(), addr) {
			s.file.Close()
			s.file = nil
			return l
		}
		l.Close()
	}
	return nil
}

// quicSocket returns the predecessor's UDP socket of an address, and what belongs to it; nil
// if it has none.
func (p *predecessor) quicSocket(addr string) (conn *net.UDPConn, from *quicsocket.Handover) {
	if p == nil {
		return nil, nil
	}
	var udp, link *handed
	for i := range p.sockets {
		if s := &p.sockets[i]; s.file != nil && sameAddress(s.Address, addr) {
			switch s.Network {
			case "udp":
				udp = s
			case "quic":
				link = s
			}
		}
	}
	if udp == nil || link == nil {
		return nil, nil
	}
	c, err := net.FilePacketConn(udp.file)
	udp.file.Close()
	from = &quicsocket.Handover{Generation: udp.Generation, Secret: udp.Secret, Link: link.file}
	udp.file, link.file = nil, nil
	conn, ok := c.(*net.UDPConn)
	if err != nil || !ok {
		from.Link.Close()
		return nil, nil
	}
	return conn, from
}

// release closes the sockets that are not used here, but those of ports that routes of
// TCP may have.
func (p *predecessor) release(but routes.Ports) {
	if p == nil {
		return
	}
	for i := range p.sockets {
		if a, err := net.ResolveTCPAddr("tcp", p.sockets[i].Address); err == nil && but.Has(int64(a.Port)) {
			continue
		}
		if f := p.sockets[i].file; f != nil {
			f.Close()
			p.sockets[i].file = nil
		}
	}
}

func (p *predecessor) close() {
	if p == nil {
		return
	}
	p.release(nil)
	if p.conn != nil {
		p.conn.Close()
	}
}

// follow takes the predecessor's reports until it ends or ctx does.
func (p *predecessor) follow(ctx context.Context) {
	if p == nil || p.conn == nil {
		return
	}
	defer close(p.gone)
	defer p.set(nil)
	defer p.conn.Close()
	stop := context.AfterFunc(ctx, func() { p.conn.Close() })
	defer stop()
	dec := json.NewDecoder(p.rest)
	drains := sync.OnceFunc(func() { close(p.drains) })
	defer drains()
	for {
		var r report
		if dec.Decode(&r) != nil {
			return
		}
		if r.Draining {
			drains()
		}
		p.set(&r)
	}
}

func (p *predecessor) set(r *report) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now = r
	close(p.changed)
	p.changed = make(chan struct{})
}

// last returns the predecessor's last report, nil if it is gone.
func (p *predecessor) last() *report {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now
}

// ended returns a channel that is closed when the predecessor is gone; nil if that
// cannot be seen.
func (p *predecessor) ended() <-chan struct{} {
	if p == nil || p.conn == nil {
		return nil
	}
	return p.gone
}

// stopped returns a channel that is closed when the predecessor accepts no
// connections any more; nil if that cannot be seen.
func (p *predecessor) stopped() <-chan struct{} {
	if p == nil || p.conn == nil {
		return nil
	}
	return p.drains
}

// waitFor waits until the predecessor's table includes a revision, it is gone, or ctx
// ends.
func (p *predecessor) waitFor(ctx context.Context, revision schema.Revision) error {
	for p != nil && p.conn != nil {
		p.mu.Lock()
		now, changed := p.now, p.changed
		p.mu.Unlock()
		if now != nil && now.Table.Revision >= revision {
			return nil
		}
		select {
		case <-p.gone:
			return nil
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
