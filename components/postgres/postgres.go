// Package postgres runs the private PostgreSQL of an instance: found among the
// installed server binaries, initialised at first start, reachable only
// through a unix socket by root (peer authentication), outliving the server
// process, adopted by the next one, restarted when it dies.
//
// On disk, all under Config.Dir:
//
//	data/             the cluster; appears complete (renamed from data.init)
//	postgresql.conf   written at every start, as are the two below
//	pg_hba.conf
//	pg_ident.conf
//
// Every process of a cluster has data/ as its working directory; that is how
// a postmaster without a record and backends orphaned by a killed postmaster
// are found. Only processes found that way are ever signalled.
//
// What may fail: no binaries, or none of the cluster's major version
// (failed_precondition, with a hint); everything else is unavailable.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/instance"
	"miren.dev/runtime/pkg/proc"
	"miren.dev/runtime/pkg/sysuser"
)

const (
	// DefaultUser is the system user that PostgreSQL runs as when the server
	// is root. Several instances share it.
	DefaultUser = "runtime-pg"

	role     = "runtime" // the only database role, a superuser
	database = "runtime"

	stopGrace    = 30 * time.Second
	maxBackoff   = 10 * time.Second
	logCheck     = time.Minute
	maxLogBytes  = 16 << 20
	settledAfter = time.Minute // a run of this length resets the back-off
)

// Config describes a cluster. Dir, SocketDir, LogFile and RecordFile are
// required absolute paths.
type Config struct {
	Dir        string // durable files, see above
	SocketDir  string // directory of the unix socket; at most 90 bytes
	LogFile    string // bounded to twice 16 MiB
	RecordFile string // identity of the postmaster, see pkg/proc
	Name       string // cluster_name, shown in the process list
	User       string // OS user; empty: DefaultUser if root, else the current user
	BinDir     string // directory of the binaries; empty: the newest installed
	// NoSync turns durability off (fsync). It is only for clusters whose data
	// may be lost.
	NoSync bool
	Logger *slog.Logger // nil: slog.Default()
}

// ConfigFor returns the configuration of an instance's cluster.
func ConfigFor(in *instance.Instance, log *slog.Logger) Config {
	return Config{
		Dir:        in.State("pg"),
		SocketDir:  in.Socket("pg"),
		LogFile:    in.State("logs", "postgres.log"),
		RecordFile: in.Socket("postgres.json"),
		Name:       in.Name(""),
		Logger:     log,
	}
}

// Server is a running cluster. Its methods are safe for concurrent use.
type Server struct {
	cfg   Config
	owner sysuser.User

	mu   sync.Mutex // held while starting or stopping
	proc *proc.Process
	down bool // Stop was called
}

// Start adopts the running cluster or starts it, initialising it first if
// there is none, and returns when it answers queries.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	own, err := findOwner(ctx, cfg.User)
	if err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, owner: own}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.start(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// findOwner returns the user that the cluster runs as. PostgreSQL refuses to run
// as root and needs an entry in the user database.
func findOwner(ctx context.Context, name string) (sysuser.User, error) {
	switch {
	case name == "" && os.Geteuid() != 0:
		return sysuser.Current(), nil
	case name == "" || name == DefaultUser:
		return sysuser.Ensure(ctx, DefaultUser, "runtime's PostgreSQL")
	}
	return sysuser.Find(name)
}

// Attach returns the running cluster, or nil if none runs. It starts nothing.
func Attach(cfg Config) (*Server, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	p, err := proc.Find(cfg.RecordFile)
	if err != nil || p == nil {
		return nil, err
	}
	return &Server{cfg: cfg, proc: p}, nil
}

func (c *Config) check() error {
	for _, p := range []string{c.Dir, c.SocketDir, c.LogFile, c.RecordFile} {
		if !filepath.IsAbs(p) {
			return errs.New(errs.InvalidArgument, "postgres: path %q is not absolute", p)
		}
	}
	if len(c.SocketDir) > 90 {
		return errs.New(errs.InvalidArgument, "postgres: socket directory %q is too long for a unix socket", c.SocketDir)
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return nil
}

func (c *Config) data() string { return filepath.Join(c.Dir, "data") }

// start is called with mu held.
func (s *Server) start(ctx context.Context) error {
	cfg, data := &s.cfg, s.cfg.data()
	if err := s.makeDirs(); err != nil {
		return err
	}
	running, err := proc.Find(cfg.RecordFile)
	if err != nil {
		return err
	}
	var bin string
	if running == nil {
		// A process that still runs on the data directory is not a postmaster
		// of ours that could be adopted: it is an unrecorded one, or orphaned
		// backends.
		if err := endOrphans(ctx, data, cfg.Logger); err != nil {
			return err
		}
		if bin, err = findBinaries(ctx, cfg.BinDir, data); err != nil {
			return err
		}
		if err := s.initialise(ctx, bin); err != nil {
			return err
		}
		if err := removeStalePID(data); err != nil {
			return err
		}
		if err := s.writeConfig(); err != nil {
			return err
		}
	}
	p, err := proc.Ensure(ctx, proc.Spec{
		Name:         "postgres",
		Path:         filepath.Join(bin, "postgres"),
		Args:         []string{"-D", data, "-c", "config_file=" + filepath.Join(cfg.Dir, "postgresql.conf")},
		Env:          []string{"PATH=/usr/bin:/bin", "LC_ALL=C", "TZ=UTC"},
		Dir:          data,
		LogFile:      cfg.LogFile,
		RecordFile:   cfg.RecordFile,
		Credential:   s.owner.Credential(),
		Ready:        s.ready,
		ReadyTimeout: 2 * time.Minute, // crash recovery may replay a lot of log
	})
	if err != nil {
		return err
	}
	s.proc = p
	if err := s.ensureDatabase(ctx); err != nil {
		return err
	}
	cfg.Logger.Info("postgres is ready", "pid", p.PID(), "adopted", p.Adopted, "socket", cfg.SocketDir)
	return nil
}

// URL returns the connection URL. It stays the same across restarts.
func (s *Server) URL() string { return s.url(database) }

func (s *Server) url(db string) string {
	q := url.Values{"host": {s.cfg.SocketDir}, "user": {role}, "sslmode": {"disable"}}
	return "postgres:///" + db + "?" + q.Encode()
}

// PID returns the process id of the postmaster.
func (s *Server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc.PID()
}

// Run restarts the cluster whenever it ends, until ctx ends or Stop is
// called. It leaves the cluster running and returns nil.
func (s *Server) Run(ctx context.Context) error {
	backoff := time.Duration(0)
	logs := time.NewTicker(logCheck)
	defer logs.Stop()
	started := time.Now()
	for {
		s.mu.Lock()
		p, down := s.proc, s.down
		s.mu.Unlock()
		if down {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-logs.C:
			if err := boundLog(s.cfg.LogFile); err != nil {
				s.cfg.Logger.Warn("cannot bound the log of postgres", "file", s.cfg.LogFile, "error", err)
			}
			continue
		case <-p.Done():
		}
		if time.Since(started) > settledAfter {
			backoff = 0
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(backoff):
		}
		s.mu.Lock()
		if s.down {
			s.mu.Unlock()
			return nil
		}
		s.cfg.Logger.Warn("postgres ended; starting it again", "pid", p.PID())
		err := s.start(ctx)
		s.mu.Unlock()
		started = time.Now()
		backoff = min(max(2*backoff, 100*time.Millisecond), maxBackoff)
		if err != nil && ctx.Err() == nil {
			s.cfg.Logger.Error("cannot restart postgres", "error", err, "retry_in", backoff)
		}
	}
}

// Stop ends the cluster: clients are disconnected, and every committed
// transaction is on disk.
func (s *Server) Stop(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = true
	if err := s.proc.Stop(ctx, syscall.SIGINT, stopGrace); err != nil {
		return errs.Wrap(err, "stop postgres")
	}
	return endOrphans(ctx, s.cfg.data(), s.cfg.Logger)
}

// ready reports whether the cluster answers queries.
func (s *Server) ready(ctx context.Context) error {
	c, err := connect(ctx, s.url("postgres"))
	if err != nil {
		return err
	}
	defer c.Close(ctx)
	_, err = c.Exec(ctx, "select 1")
	return err
}

func connect(ctx context.Context, dsn string) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	return pgx.Connect(ctx, dsn)
}

func (s *Server) ensureDatabase(ctx context.Context) error {
	c, err := connect(ctx, s.url("postgres"))
	if err != nil {
		return errs.New(errs.Unavailable, "connect to postgres: %w", err)
	}
	defer c.Close(ctx)
	var exists bool
	if err := c.QueryRow(ctx, "select exists (select from pg_database where datname = $1)", database).Scan(&exists); err != nil {
		return errs.New(errs.Unavailable, "look for database: %w", err)
	}
	if exists {
		return nil
	}
	if _, err := c.Exec(ctx, "create database "+database); err != nil {
		return errs.New(errs.Unavailable, "create database: %w", err)
	}
	return nil
}

// boundLog keeps one older generation of a log that is only appended to.
func boundLog(path string) error {
	st, err := os.Stat(path)
	if err != nil || st.Size() <= maxLogBytes {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".1", b[max(0, len(b)-maxLogBytes):], 0o640); err != nil {
		return fmt.Errorf("keep older log: %w", err)
	}
	return os.Truncate(path, 0)
}
