// Package pgtest gives tests real stores: one private PostgreSQL per test
// binary, one database per test, all removed when the binary ends, however it
// ends.
//
// The first test that needs the cluster starts it. A watchdog, a shell whose
// standard input is a pipe from the test binary, ends and removes the cluster
// when that pipe closes. The next test binary on the machine removes what a
// killed watchdog left.
package pgtest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sys/unix"

	"miren.dev/runtime/components/postgres"
	"miren.dev/runtime/entity/pgstore"
	"miren.dev/runtime/pkg/schema"
)

// dirPattern names the directories of clusters, below the temporary directory.
const dirPattern = "rt-pgtest-"

// watchdog ends the cluster in $1 once its standard input closes. Sweepers
// leave the cluster alone while it holds the lock on descriptor 3.
const watchdog = `read x
pid=$(head -n 1 "$1/pg/data/postmaster.pid" 2>/dev/null)
if [ -n "$pid" ] && [ "$(readlink /proc/$pid/cwd)" = "$1/pg/data" ]; then
  kill -QUIT $pid
  while [ -e "/proc/$pid/cwd" ]; do sleep 0.02; done
fi
rm -rf "$1"`

var shared struct {
	once   sync.Once
	err    error
	server *postgres.Server
	pipe   *os.File // open as long as the binary runs
	dbs    atomic.Int64
}

// Store returns a new store for the test.
func Store(t testing.TB, kinds ...*schema.Kind) *pgstore.Store {
	t.Helper()
	return Open(t, pgstore.Config{URL: URL(t), Kinds: kinds})
}

// Open opens a store that is closed at the end of the test.
func Open(t testing.TB, cfg pgstore.Config) *pgstore.Store {
	t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	s, err := pgstore.Open(t.Context(), cfg)
	if err != nil {
		t.Fatalf("open store: %v", err)
	}
	t.Cleanup(s.Close)
	return s
}

// URL returns the address of a new database that is dropped after the test.
func URL(t testing.TB) string {
	t.Helper()
	url, drop, err := Database()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := drop(); err != nil {
			t.Error(err)
		}
	})
	return url
}

// Database returns the address of a new database, for examples, which have no
// testing.TB. Call drop after use.
func Database() (url string, drop func() error, err error) {
	shared.once.Do(func() { shared.err = startShared() })
	if shared.err != nil {
		return "", nil, fmt.Errorf("start PostgreSQL for tests: %w", shared.err)
	}
	name := fmt.Sprintf("test_%d", shared.dbs.Add(1))
	admin := shared.server.URL()
	if err := run(admin, "create database "+name+" template "+template); err != nil {
		return "", nil, err
	}
	drop = func() error { return run(admin, "drop database "+name+" with (force)") }
	return strings.Replace(admin, "/runtime?", "/"+name+"?", 1), drop, nil
}

// Server starts a cluster for this test alone, which may kill or stop it.
func Server(t testing.TB) *postgres.Server { return server(t, true) }

// DurableServer is Server with every commit on disk, for measuring.
func DurableServer(t testing.TB) *postgres.Server { return server(t, false) }

func server(t testing.TB, noSync bool) *postgres.Server {
	t.Helper()
	dir, err := makeDir()
	if err != nil {
		t.Fatal(err)
	}
	cfg := config(dir, t.Name())
	cfg.NoSync = noSync
	s, err := postgres.Start(t.Context(), cfg)
	if err != nil {
		os.RemoveAll(dir)
		t.Fatalf("start PostgreSQL: %v", err)
	}
	pipe, err := watch(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(context.Background()); err != nil {
			t.Error(err)
		}
		pipe.Close()
	})
	return s
}

// template is the database that every other is a copy of: migrated once.
const template = "pgtest_template"

func startShared() error {
	ctx := context.Background()
	sweep()
	dir, err := makeDir()
	if err != nil {
		return err
	}
	if shared.pipe, err = watch(dir); err != nil {
		return err
	}
	if shared.server, err = postgres.Start(ctx, config(dir, "pgtest")); err != nil {
		return err
	}
	c, err := pgx.Connect(ctx, shared.server.URL())
	if err != nil {
		return err
	}
	defer c.Close(ctx)
	if _, err := c.Exec(ctx, "create database "+template); err != nil {
		return err
	}
	return pgstore.Migrate(ctx, strings.Replace(shared.server.URL(), "/runtime?", "/"+template+"?", 1))
}

func makeDir() (string, error) {
	dir, err := os.MkdirTemp("", dirPattern)
	if err != nil {
		return "", err
	}
	return dir, os.Chmod(dir, 0o711)
}

func config(dir, name string) postgres.Config {
	return postgres.Config{
		Dir:        filepath.Join(dir, "pg"),
		SocketDir:  filepath.Join(dir, "s"),
		LogFile:    filepath.Join(dir, "log"),
		RecordFile: filepath.Join(dir, "pid"),
		Name:       strings.Map(printable, name),
		NoSync:     true,
		Logger:     slog.New(slog.DiscardHandler),
	}
}

func printable(r rune) rune {
	if r < ' ' || r > '~' {
		return '_'
	}
	return r
}

// watch starts the watchdog of dir. Closing the file triggers it.
func watch(dir string) (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	lock, err := lockIn(dir)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	cmd := exec.Command("/bin/sh", "-c", watchdog, "sh", dir)
	cmd.Stdin, cmd.Dir = r, "/"
	cmd.ExtraFiles = []*os.File{lock}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go cmd.Wait()
	return w, nil
}

// lockIn makes the lock of dir. It gets its name only when it is locked:
// sweepers never find it free.
func lockIn(dir string) (*os.File, error) {
	name := filepath.Join(dir, "lock")
	lock, err := os.Create(name + ".new")
	if err != nil {
		return nil, err
	}
	if err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
		err = os.Rename(lock.Name(), name)
	}
	if err != nil {
		lock.Close()
		return nil, err
	}
	return lock, nil
}

// sweep ends clusters whose watchdog was killed.
func sweep() {
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), dirPattern+"*")) // the pattern is valid
	for _, dir := range dirs {
		lock, err := os.Open(filepath.Join(dir, "lock"))
		if err != nil {
			continue // its owner is about to lock it, or it is about to vanish
		}
		if unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			cmd := exec.Command("/bin/sh", "-c", watchdog, "sh", dir)
			_ = cmd.Run() // the next sweep tries again
		}
		lock.Close()
	}
}

// run executes one statement as administrator.
func run(url, sql string) error {
	ctx := context.Background()
	c, err := pgx.Connect(ctx, url)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer c.Close(ctx)
	// A session that was just closed or ended may still exist, for longer than
	// PostgreSQL waits for it (object in use) on a busy machine.
	for deadline := time.Now().Add(time.Minute); ; {
		_, err := c.Exec(ctx, sql)
		var busy *pgconn.PgError
		if err == nil {
			return nil
		}
		if !errors.As(err, &busy) || busy.Code != "55006" || time.Now().After(deadline) {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
}
