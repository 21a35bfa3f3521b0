// Package nbd serves disks by the NBD protocol: fixed newstyle handshake,
// structured replies, FUA, flush, trim, write-zeroes, block status
// (base:allocation) and several connections to one disk, on unix sockets and,
// with TLS, on TCP.
//
// A connection has 32 workers, which take turns to read a request and carry it
// out: at most 128 requests and 64 MiB at a time, queued requests included.
// Replies come in any order, many with one call. A failed request
// is answered with an error, never dropped: a client that waits for a reply
// gets one or loses the connection. Without TLS each connection holds a thread
// that waits in the kernel; a process that serves disks wants GOMAXPROCS of 8
// even where there are fewer cores.
//
// A disk that can queue ([lsvd.Queuer]) carries out small writes that came together
// as one record.
//
// Lock order: budget and replies each have a lock of their own, and neither is
// held while the other's is taken.
package nbd

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/pkg/errs"
)

// Export is a disk under a name; clients that give no name get the one named "".
type Export struct {
	Name     string
	Disk     lsvd.Disk
	ReadOnly bool
}

// Server serves exports.
type Server struct {
	logger  *slog.Logger
	conns   atomic.Int32
	exports map[string]Export
}

// New returns a server without exports.
func New(logger *slog.Logger) *Server {
	return &Server{logger: logger, exports: map[string]Export{}}
}

// Add exports a disk. It is called before the server serves.
func (s *Server) Add(e Export) error {
	if len(e.Name) > maxName {
		return errs.New(errs.InvalidArgument, "export name of %d bytes", len(e.Name))
	}
	if _, ok := s.exports[e.Name]; ok {
		return errs.New(errs.AlreadyExists, "export %q exists", e.Name)
	}
	s.exports[e.Name] = e
	return nil
}

// Serve accepts connections from l, a unix socket, until ctx ends; then it
// closes l and all connections, waits for the requests they have begun, and
// returns nil. What can be reached by a network must be served with TLS.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	if n := l.Addr().Network(); n != "unix" {
		l.Close()
		return errs.New(errs.FailedPrecondition, "disks are served on %s only with TLS", n).
			WithHint("give the server a certificate, or serve a unix socket")
	}
	return s.accept(ctx, l, nil)
}

// ServeTLS is Serve for any listener. Clients must begin TLS (STARTTLS) before
// they can ask for anything; cfg says whether they need a certificate.
func (s *Server) ServeTLS(ctx context.Context, l net.Listener, cfg *tls.Config) error {
	return s.accept(ctx, l, cfg)
}

// ServePlain is Serve for any listener, with neither encryption nor
// authentication: for networks where every host may read and write the disks.
func (s *Server) ServePlain(ctx context.Context, l net.Listener) error {
	return s.accept(ctx, l, nil)
}

// acceptPause is how long a server waits that is out of descriptors or memory.
const acceptPause = 100 * time.Millisecond

func (s *Server) accept(ctx context.Context, l net.Listener, cfg *tls.Config) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	for {
		c, err := l.Accept()
		switch {
		case err == nil:
		case errors.Is(err, net.ErrClosed):
			return nil
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.ENOMEM), errors.Is(err, unix.ECONNABORTED):
			s.logger.Warn("NBD connection was not accepted", "error", err)
			select {
			case <-time.After(acceptPause):
			case <-ctx.Done():
			}
			continue
		default:
			return errs.Wrap(err, "accept NBD connection")
		}
		if s.conns.Add(1) > maxConns {
			s.conns.Add(-1)
			s.logger.Warn("NBD connection refused: there are too many", "limit", maxConns)
			c.Close()
			continue
		}
		wg.Go(func() {
			defer s.conns.Add(-1)
			defer c.Close()
			stop := context.AfterFunc(ctx, func() { c.Close() })
			defer stop()
			if err := s.serve(ctx, c, cfg); err != nil && ctx.Err() == nil {
				s.logger.Warn("NBD connection failed", "peer", c.RemoteAddr().String(), "error", err)
			}
		})
	}
}
