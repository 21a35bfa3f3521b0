package network

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"miren.dev/runtime/components/network/proxy"
	"miren.dev/runtime/pkg/atomicfile"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/instance"
)

// A Standby answers the names of sandboxes while no server runs. It lives in a process that
// outlives the server, and holds the sockets on which the server answers them. So a question
// that arrives while no process reads waits in the socket.
//
// It listens on a SOCK_SEQPACKET socket. Each message is JSON, and may have the UDP and the TCP
// socket attached:
//
//	standby  {subnet} with the sockets, or {} if it holds none: at once
//	server   {hold, subnet} with the sockets: the standby stops to answer, and holds these
//	standby  {held}
//	server   {leave}: another standby holds them now
//
// When the server's connection ends, the standby answers names from the server's files:
// network-apps.json and the leases. No process changes these files while no server runs. The
// standby does not record the questions.
type Standby struct {
	in     *instance.Instance
	logger *slog.Logger
	l      *net.UnixListener

	mu    sync.Mutex // guards the fields below
	held  *nameSockets
	owner *net.UnixConn // when this connection ends, the standby answers; nil: it does not wait for an end
	stop  func()        // ends answering, and waits; nil: the standby does not answer
	ended bool
}

// standbyMessage is a message of either side.
type standbyMessage struct {
	Subnet netip.Prefix `json:"subnet,omitzero"`
	Hold   bool         `json:"hold,omitempty"`
	Held   bool         `json:"held,omitempty"`
	Leave  bool         `json:"leave,omitempty"`
}

const (
	standbyNetwork = "unixpacket"
	// standbyTimeout bounds one step of an exchange between server and standby.
	standbyTimeout    = 5 * time.Second
	maxStandbyMessage = 4096
)

// nameSockets are the sockets on which names are answered, at the first address of a subnet.
type nameSockets struct {
	subnet   netip.Prefix
	udp, tcp *os.File
}

func (n *nameSockets) close() {
	if n != nil {
		n.udp.Close()
		n.tcp.Close()
	}
}

// adopt has a proxy answer on the sockets.
func (n *nameSockets) adopt(p *proxy.Proxy) error {
	udp, err := net.FilePacketConn(n.udp)
	if err != nil {
		return err
	}
	tcp, err := net.FileListener(n.tcp)
	if err != nil {
		udp.Close()
		return err
	}
	u, isUDP := udp.(*net.UDPConn)
	t, isTCP := tcp.(*net.TCPListener)
	if !isUDP || !isTCP {
		udp.Close()
		tcp.Close()
		return errors.New("the sockets are not of UDP and TCP")
	}
	p.Adopt(n.subnet.Addr().Next(), u, t)
	return nil
}

func standbySocket(in *instance.Instance) string { return in.Socket("names.sock") }

// NewStandby listens for the server in place of an earlier standby. Only processes of this
// user, and root, connect. Close it if Run is not called.
func NewStandby(in *instance.Instance, logger *slog.Logger) (*Standby, error) {
	path := standbySocket(in)
	mine := path + "." + time.Now().Format("150405.000000000")
	l, err := net.ListenUnix(standbyNetwork, &net.UnixAddr{Name: mine, Net: standbyNetwork})
	if err != nil {
		return nil, errs.New(errs.FailedPrecondition, "names of sandboxes: %w", err)
	}
	l.SetUnlinkOnClose(false)
	err = os.Chmod(mine, 0o600)
	if err == nil {
		// So that a server always finds one. Not by atomicfile: no socket outlives a crash of the machine.
		err = os.Rename(mine, path)
	}
	if err != nil {
		l.Close()
		os.Remove(mine)
		return nil, errs.New(errs.FailedPrecondition, "names of sandboxes: %w", err)
	}
	return &Standby{in: in, logger: logger, l: l}, nil
}

// Close stops listening.
func (s *Standby) Close() { s.l.Close() }

// Run serves until ctx ends.
func (s *Standby) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		<-ctx.Done()
		s.l.Close()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.ended = true
		s.rest()
		s.held.close()
		s.held = nil
		return nil
	})
	for {
		c, err := s.l.AcceptUnix()
		switch {
		case ctx.Err() != nil:
			return g.Wait()
		case err != nil:
			s.logger.Warn("the standby for names of sandboxes cannot accept a connection", "error", err)
			select { // such as for want of file descriptors
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
			continue
		}
		g.Go(func() error {
			stop := context.AfterFunc(ctx, func() { c.Close() })
			defer stop()
			s.attend(c)
			return nil
		})
	}
}

// attend serves one server.
func (s *Standby) attend(c *net.UnixConn) {
	defer c.Close()
	s.mu.Lock()
	err := sendSockets(c, s.held)
	s.mu.Unlock()
	for err == nil {
		var m standbyMessage
		var got *nameSockets
		if m, got, err = receive(c); err != nil {
			break
		}
		s.mu.Lock()
		switch {
		case m.Hold && got != nil && !s.ended:
			s.rest()
			s.held.close()
			s.held, s.owner = got, c
			err = send(c, standbyMessage{Held: true})
		case m.Leave && s.owner == c:
			s.held.close()
			s.held, s.owner = nil, nil
			got.close()
		default:
			got.close()
		}
		s.mu.Unlock()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.owner != c || s.ended {
		return
	}
	s.owner = nil
	if err := s.answer(); err != nil {
		s.logger.Error("names of sandboxes are not answered until the server runs again", "error", err)
		return
	}
	s.logger.Info("the server is gone: this process answers the names of sandboxes")
}

// rest ends answering. Callers hold s.mu.
func (s *Standby) rest() {
	if s.stop != nil {
		s.stop()
		s.stop = nil
	}
}

// answer begins to answer names. Callers hold s.mu.
func (s *Standby) answer() error {
	m := New(Config{Instance: s.in, Logger: s.logger})
	m.subnet = s.held.subnet
	m.loadApps()
	if err := m.readLeases(); err != nil {
		return err
	}
	if err := s.held.adopt(m.proxy); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := m.proxy.ServeNames(ctx); err != nil {
			s.logger.Error("names of sandboxes are answered no longer", "error", err)
		}
	}()
	s.stop = func() { cancel(); <-ended }
	return nil
}

// readLeases reads the sandboxes of a server that is gone, and changes nothing.
func (m *Manager) readLeases() error {
	entries, err := os.ReadDir(m.leaseDir())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return errs.New(errs.Unavailable, "list addresses: %w", err)
	}
	for _, e := range entries {
		if atomicfile.IsTemp(e.Name()) {
			continue
		}
		b, err := os.ReadFile(filepath.Join(m.leaseDir(), e.Name()))
		var l lease
		if err == nil {
			l, err = readLease(b)
		}
		if err != nil { // the next server reports it
			continue
		}
		m.leases[e.Name()] = l
	}
	for id, l := range m.leases {
		if l.Name != id { // the server ended while the sandbox took a parked connection
			delete(m.leases, l.Name)
		}
	}
	for id, l := range m.leases {
		if l.Address.IsValid() {
			m.proxy.Set(l.Address, id, m.policyOf(id, l.Policy))
		}
	}
	return nil
}

// sendSockets sends n, which may be nil.
func sendSockets(c *net.UnixConn, n *nameSockets) error {
	if n == nil {
		return send(c, standbyMessage{})
	}
	return send(c, standbyMessage{Subnet: n.subnet}, n.udp, n.tcp)
}

// send sends a message with descriptors of sockets.
func send(c *net.UnixConn, m standbyMessage, sockets ...syscall.Conn) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if err := c.SetWriteDeadline(time.Now().Add(standbyTimeout)); err != nil {
		return err
	}
	var with func(rest []syscall.Conn, fds []int) error
	with = func(rest []syscall.Conn, fds []int) error { // the descriptors are valid while all Control functions run
		if len(rest) == 0 {
			var rights []byte
			if len(fds) > 0 {
				rights = unix.UnixRights(fds...)
			}
			_, _, err := c.WriteMsgUnix(b, rights, nil)
			return err
		}
		raw, err := rest[0].SyscallConn()
		if err != nil {
			return err
		}
		var inner error
		if err := raw.Control(func(fd uintptr) { inner = with(rest[1:], append(fds, int(fd))) }); err != nil {
			return err
		}
		return inner
	}
	return with(sockets, nil)
}

// receive receives a message, with its sockets if it has some.
func receive(c *net.UnixConn) (m standbyMessage, n *nameSockets, _ error) {
	b, oob := make([]byte, maxStandbyMessage), make([]byte, unix.CmsgSpace(2*4))
	size, rights, _, _, err := c.ReadMsgUnix(b, oob)
	if err != nil {
		return m, nil, err
	}
	var files []*os.File
	if controls, err := unix.ParseSocketControlMessage(oob[:rights]); err == nil {
		for _, control := range controls {
			fds, _ := unix.ParseUnixRights(&control)
			for _, fd := range fds {
				unix.CloseOnExec(fd)
				files = append(files, os.NewFile(uintptr(fd), "socket of names"))
			}
		}
	}
	err = errors.New("the other side has ended")
	if size > 0 {
		err = json.Unmarshal(b[:size], &m)
	}
	if err == nil && len(files) == 2 && m.Subnet.IsValid() {
		return m, &nameSockets{subnet: m.Subnet, udp: files[0], tcp: files[1]}, nil
	}
	for _, f := range files {
		f.Close()
	}
	return m, nil, err
}

// dialStandby connects to the standby, and returns what it holds.
func (m *Manager) dialStandby(ctx context.Context) (*net.UnixConn, *nameSockets, error) {
	d := net.Dialer{Timeout: standbyTimeout}
	nc, err := d.DialContext(ctx, standbyNetwork, standbySocket(m.cfg.Instance))
	if err != nil {
		return nil, nil, err
	}
	c := nc.(*net.UnixConn)
	_ = c.SetReadDeadline(time.Now().Add(standbyTimeout))
	_, n, err := receive(c)
	if err != nil {
		c.Close()
		return nil, nil, err
	}
	return c, n, nil
}

// adoptNames takes the sockets that the standby holds, which answers on them until Run does. It reports
// whether the proxy has them. Callers hold m.mu.
func (m *Manager) adoptNames(ctx context.Context) bool {
	c, n, err := m.dialStandby(ctx)
	if err != nil {
		return false // there is none, or it has just ended: sockets are opened
	}
	defer c.Close()
	defer n.close()
	if n == nil || n.subnet != m.subnet {
		return false
	}
	if err := n.adopt(m.proxy); err != nil {
		m.cfg.Logger.Warn("cannot use the sockets on which names of sandboxes are answered; others are opened", "error", err)
		return false
	}
	return true
}

// standbyEvery is how often the server looks for another standby.
const standbyEvery = time.Second

// keepStandby has a standby hold the sockets until ctx ends. When the name of the socket leads
// to another one, that holds them before the first is told to forget them.
func (m *Manager) keepStandby(ctx context.Context) error {
	var c *net.UnixConn
	var at os.FileInfo
	defer func() {
		if c != nil {
			c.Close()
		}
	}()
	for {
		if now, err := os.Stat(standbySocket(m.cfg.Instance)); err == nil && (c == nil || !os.SameFile(at, now)) {
			if next, err := m.hold(ctx); err == nil {
				if c != nil {
					_ = send(c, standbyMessage{Leave: true})
					c.Close()
				}
				c, at = next, now
				m.held.Store(true)
				_ = m.syncPeers() // answerNames repeats and reports it
			}
		}
		if c == nil {
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(standbyEvery):
			}
			continue
		}
		stop := context.AfterFunc(ctx, func() { _ = c.SetReadDeadline(time.Unix(1, 0)) })
		_ = c.SetReadDeadline(time.Now().Add(standbyEvery))
		_, _, err := receive(c)
		stop()
		if ctx.Err() != nil {
			return nil // the standby answers
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			c.Close()
			c = nil
			m.held.Store(false)
		}
	}
}

// hold has the standby hold the sockets of the proxy, and returns the connection to it.
func (m *Manager) hold(ctx context.Context) (*net.UnixConn, error) {
	m.mu.Lock()
	subnet := m.subnet
	m.mu.Unlock()
	udp, tcp, ok := m.proxy.Sockets()
	if !ok {
		return nil, errs.New(errs.FailedPrecondition, "the network does not run")
	}
	c, n, err := m.dialStandby(ctx)
	if err != nil {
		return nil, err
	}
	n.close()
	err = send(c, standbyMessage{Hold: true, Subnet: subnet}, udp, tcp)
	var answer standbyMessage
	if err == nil {
		_ = c.SetReadDeadline(time.Now().Add(standbyTimeout + proxy.NamesEnd))
		answer, _, err = receive(c)
	}
	if err == nil && !answer.Held {
		err = errs.New(errs.Unavailable, "the standby does not hold the sockets")
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}
