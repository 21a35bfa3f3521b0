// Package nbd serves disks by the NBD protocol: fixed newstyle handshake,
// structured replies, FUA, flush, trim, write-zeroes, block status
// (base:allocation) and several connections to one disk.
//
// A connection has one goroutine that reads requests, and one per request, at
// most 128 and 64 MiB at a time; replies come in any order, each written
// whole. A failed request is answered with an error, never dropped: a client
// that waits for a reply gets one or loses the connection.
package nbd

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"sync"

	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/pkg/errs"
)

// Disk is what the server needs of a disk; [lsvd.Device] has it.
type Disk interface {
	Size() int64
	ReadAt(ctx context.Context, p []byte, off int64) error
	WriteAt(ctx context.Context, p []byte, off int64, flags lsvd.Flags) error
	Zero(ctx context.Context, off, n int64, flags lsvd.Flags) error
	Trim(ctx context.Context, off, n int64, flags lsvd.Flags) error
	Flush(ctx context.Context) error
	Status(off, n int64, f func(off, n int64, hole bool) bool) error
}

// Export is a disk under a name; clients that give no name get the one named "".
type Export struct {
	Name     string
	Disk     Disk
	ReadOnly bool
}

// Server serves exports. It is configured by Add and Remove, also while it runs.
type Server struct {
	logger *slog.Logger

	mu      sync.Mutex
	exports map[string]Export
}

// New returns a server without exports.
func New(logger *slog.Logger) *Server {
	return &Server{logger: logger, exports: map[string]Export{}}
}

// Add exports a disk.
func (s *Server) Add(e Export) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(e.Name) > maxName {
		return errs.New(errs.InvalidArgument, "export name of %d bytes", len(e.Name))
	}
	if _, ok := s.exports[e.Name]; ok {
		return errs.New(errs.AlreadyExists, "export %q exists", e.Name)
	}
	s.exports[e.Name] = e
	return nil
}

// Remove takes an export away from new connections; those that have it keep it.
func (s *Server) Remove(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.exports, name)
}

func (s *Server) export(name string) (Export, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.exports[name]
	return e, ok
}

func (s *Server) names() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for n := range s.exports {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// Serve accepts connections from l until ctx ends; then it closes l and all
// connections, waits for the requests they have begun, and returns nil.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	for {
		c, err := l.Accept()
		if err != nil {
			cancel()
			if errors.Is(err, net.ErrClosed) {
				return nil
			}
			return errs.Wrap(err, "accept NBD connection")
		}
		wg.Go(func() {
			defer c.Close()
			stop := context.AfterFunc(ctx, func() { c.Close() })
			defer stop()
			if err := s.serve(ctx, c); err != nil && ctx.Err() == nil {
				s.logger.Warn("NBD connection failed", "err", err)
			}
		})
	}
}
