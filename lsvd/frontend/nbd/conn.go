package nbd

import (
	"bufio"
	"io"
	"net"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/errs"
)

// stream is a connection after its handshake.
type stream interface {
	io.Reader
	// Writev writes all of the buffers and may change the slice.
	Writev(b [][]byte) error
	// Close ends the connection: reads and writes under way fail.
	Close() error
}

// netStream is a connection of the standard library, such as one with TLS.
type netStream struct {
	net.Conn
	w *bufio.Writer // joins small buffers, so that they share records of TLS
}

func newNetStream(c net.Conn) *netStream { return &netStream{c, bufio.NewWriterSize(c, 16<<10)} }

func (s *netStream) Writev(b [][]byte) error {
	for _, p := range b {
		if _, err := s.w.Write(p); err != nil {
			return err
		}
	}
	return s.w.Flush()
}

// socket is a socket with blocking calls: waiting for a request in the kernel
// costs one call and wakes one thread, where the runtime's poller needs three
// calls and often two threads.
type socket struct {
	fd int

	mu       sync.Mutex
	released bool
}

// takeSocket takes the socket out of c and closes c.
func takeSocket(c syscall.Conn) (*socket, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, errs.Wrap(err, "take socket")
	}
	fd := -1
	var dupErr error
	if err := raw.Control(func(old uintptr) { fd, dupErr = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0) }); err != nil {
		return nil, errs.Wrap(err, "take socket")
	}
	if dupErr != nil {
		return nil, errs.Wrap(dupErr, "take socket")
	}
	if closer, ok := c.(io.Closer); ok {
		closer.Close() // removes the descriptor from the poller; the connection stays open
	}
	if err := unix.SetNonblock(fd, false); err != nil {
		unix.Close(fd)
		return nil, errs.Wrap(err, "take socket")
	}
	return &socket{fd: fd}, nil
}

func (s *socket) Read(p []byte) (int, error) {
	for {
		n, err := unix.Read(s.fd, p)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return 0, err
		case n == 0 && len(p) > 0:
			return 0, io.EOF
		default:
			return n, nil
		}
	}
}

// maxVec is the kernel's UIO_MAXIOV.
const maxVec = 1024

func (s *socket) Writev(b [][]byte) error {
	for len(b) > 0 {
		var n int
		var err error
		if len(b) == 1 {
			n, err = unix.Write(s.fd, b[0])
		} else {
			n, err = unix.Writev(s.fd, b[:min(len(b), maxVec)])
		}
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		for len(b) > 0 && n >= len(b[0]) {
			n -= len(b[0])
			b = b[1:]
		}
		if n > 0 {
			b[0] = b[0][n:]
		}
	}
	return nil
}

// Close implements [stream]. The descriptor stays until release.
func (s *socket) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.released {
		return nil
	}
	return unix.Shutdown(s.fd, unix.SHUT_RDWR)
}

// release closes the descriptor; the caller does not read or write afterwards.
func (s *socket) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.released {
		s.released = true
		unix.Close(s.fd)
	}
}
