// Package mock is a server for people who write programs against the HTTP API and
// have no machine for sandboxes: the faces, services and controllers of the real
// server over components/mock, whose sandboxes are records and execute nothing.
//
// It keeps everything in a directory that it removes at its end, needs no
// privileges and listens on no other socket than that of the HTTP API. Each answer
// has the header [Header], and GET /mock says what it is. Only `r dev mock` starts
// it: nothing in the configuration of a server does, since package server does not
// know this one.
package mock

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sync/errgroup"

	kinds "miren.dev/runtime/api"
	"miren.dev/runtime/components/mock"
	"miren.dev/runtime/entity/sqlitestore"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/servers/api"
)

// Header is the header that every answer has.
const Header = "Runtime-Mock"

// keyName is the name of the API key that every mock server has.
const keyName = "mock"

// Config configures a server.
type Config struct {
	Address string        // host:port to listen on; port 0: any
	Answers *mock.Answers // what executed code does
	Rate    int64         // requests per second of a key; 0: no limit
	Burst   int64         // requests at once
	Seed    uint64        // of ids and the key; 0: they are random
	Logger  *slog.Logger
}

// Server is a mock server.
type Server struct {
	cfg   Config
	dir   string
	l     net.Listener
	key   string
	plane *plane
	store *sqlitestore.Store
	api   *api.Server
}

// New opens the listener of a server that does not answer yet. Run, or Close,
// removes what it made. With a seed, all ids that this process makes from now on
// follow from it.
func New(ctx context.Context, cfg Config) (*Server, error) {
	if cfg.Seed != 0 {
		schema.SeedIDs(cfg.Seed)
	}
	s := &Server{cfg: cfg}
	if err := s.open(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *Server) open(ctx context.Context) (err error) {
	if s.l, err = net.Listen("tcp", s.cfg.Address); err != nil {
		return errs.New(errs.FailedPrecondition, "listen: %w", err).WithHint("choose another address (--address); with port 0 the system chooses")
	}
	if s.dir, err = os.MkdirTemp("", "runtime-mock-"); err != nil {
		return errs.New(errs.FailedPrecondition, "directory: %w", err).WithHint("set TMPDIR to a directory that can be written to")
	}
	if s.store, err = sqlitestore.Open(ctx, sqlitestore.Config{Path: filepath.Join(s.dir, "store.db"), NoSync: true, Kinds: kinds.Kinds(), Logger: s.cfg.Logger}); err != nil {
		return err
	}
	s.plane = newPlane(s)
	return s.plane.prepare(ctx)
}

// URL returns the address of the API.
func (s *Server) URL() string { return "http://" + s.l.Addr().String() }

// Key returns a key with all rights in the default project.
func (s *Server) Key() string { return s.key }

// Close removes what New made. It may be called again, and after Run.
func (s *Server) Close() error {
	var err error
	if s.store != nil {
		s.store.Close()
		s.store = nil
	}
	if s.l != nil {
		if cerr := s.l.Close(); !errors.Is(cerr, net.ErrClosed) {
			err = cerr
		}
	}
	if s.dir == "" {
		return err
	}
	return errors.Join(err, os.RemoveAll(s.dir))
}

// Run serves until ctx ends. ready is called when the server can do its work; its
// error ends the server.
func (s *Server) Run(ctx context.Context, ready func() error) (err error) {
	defer func() { err = errors.Join(err, s.Close()) }()
	g, gctx := errgroup.WithContext(ctx)
	s.plane.run(gctx, g)
	g.Go(func() error {
		if err := s.plane.informers.WaitSynced(gctx); err != nil {
			if gctx.Err() != nil {
				return nil
			}
			return err
		}
		return ready()
	})
	return g.Wait()
}
