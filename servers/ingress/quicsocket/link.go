package quicsocket

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/errs"
)

// Kinds of messages of a link.
const (
	kindServe  = 'S'
	kindReady  = 'R'
	kindNext   = 'N'
	kindPacket = 'P'
)

const (
	// linkTimeout bounds a message that is no packet, and the wait for the answer to it.
	linkTimeout = time.Second
	// linkBuffer is the size of packets that may wait in a link, in bytes, as far as the kernel
	// permits.
	linkBuffer = 4 << 20
	// maxMessage is the largest message, in bytes; larger datagrams are cut off.
	maxMessage = 4 << 10
	// maxWaiting is the number of packets of a predecessor that wait to be handled.
	maxWaiting = 256
)

var errMalformed = errors.New("a malformed packet in the link")

// link connects a process with its successor or its predecessor.
type link struct{ conn *net.UnixConn }

// newPair returns a link, and the other end of it.
func newPair() (*link, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, errs.New(errs.Unavailable, "connect two processes with QUIC: %w", err)
	}
	other := os.NewFile(uintptr(fds[1]), "quic link")
	l, err := newLink(os.NewFile(uintptr(fds[0]), "quic link"))
	if err != nil {
		other.Close()
		return nil, nil, err
	}
	return l, other, nil
}

// newLink makes a link of one end of a pair, which it closes.
func newLink(f *os.File) (*link, error) {
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, errs.New(errs.Unavailable, "connect two processes with QUIC: %w", err)
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return nil, errs.New(errs.InvalidArgument, "the link of a socket with QUIC is no unix socket")
	}
	_ = u.SetWriteBuffer(linkBuffer) // less will do
	return &link{u}, nil
}

// say sends a message that has no content.
func (l *link) say(kind byte) {
	_ = l.conn.SetWriteDeadline(time.Now().Add(linkTimeout))
	_, _ = l.conn.Write([]byte{kind}) // an end that is gone is seen by its reader
}

// forward sends a packet, and reports whether the link took it. It does not wait.
func (l *link) forward(m *ipv4.Message, buf []byte) bool {
	b, err := appendPacket(buf[:0], m)
	if err != nil {
		return false
	}
	raw, err := l.conn.SyscallConn()
	if err != nil {
		return false
	}
	var sent error
	err = raw.Control(func(fd uintptr) { sent = unix.Sendto(int(fd), b, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil) })
	return err == nil && sent == nil
}

// appendPacket appends the message with a packet.
func appendPacket(b []byte, m *ipv4.Message) ([]byte, error) {
	a, ok := m.Addr.(*net.UDPAddr)
	if !ok {
		return nil, errMalformed
	}
	addr, err := a.AddrPort().MarshalBinary()
	if err != nil || len(addr) > 255 || m.NN > 255 {
		return nil, errMalformed
	}
	b = append(b, kindPacket, byte(len(addr)))
	b = append(b, addr...)
	b = append(b, byte(m.NN))
	b = append(b, m.OOB[:m.NN]...)
	return append(b, m.Buffers[0][:m.N]...), nil
}

// packet is one that a successor sent.
type packet struct {
	from    *net.UDPAddr
	control []byte
	data    []byte
}

// parsePacket reads a message of kindPacket. The packet shares its memory.
func parsePacket(b []byte) (p packet, err error) {
	field := func() []byte {
		if len(b) == 0 || len(b) < 1+int(b[0]) {
			err = errMalformed
			return nil
		}
		f := b[1 : 1+int(b[0])]
		b = b[1+int(b[0]):]
		return f
	}
	b = b[1:]
	addr, control := field(), field()
	if err != nil {
		return p, err
	}
	var a netip.AddrPort
	if a.UnmarshalBinary(addr) != nil || !a.IsValid() {
		return p, errMalformed
	}
	return packet{net.UDPAddrFromAddrPort(a), control, b}, nil
}

// fill makes m the packet.
func (p packet) fill(m *ipv4.Message) {
	m.N, m.NN, m.Addr, m.Flags = copy(m.Buffers[0], p.data), copy(m.OOB, p.control), p.from, 0
}
