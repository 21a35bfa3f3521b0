// Package local has the installation of this machine for commands that work
// without a server: the program runtime as a server in the background, with its
// entities in a SQLite file, without ingress, HTTP or SSH, and with BuildKit from
// the first build on. Commands of all kinds share it. After a time without use
// (IdleEnd) the server ends itself and everything that it runs.
//
// The locks of package instance keep that safe, however a process ends: each
// command holds one for its lifetime, so that the server does not end under it,
// and the command that starts the server holds another.
package local

import (
	"cmp"
	"os"
	"path/filepath"
	"time"

	"miren.dev/runtime/cli/clientconfig"
	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/errs"
)

// Defaults of Options.
const (
	DefaultDatabase = "/var/lib/runtime-local/store.db"
	DefaultIdleEnd  = 10 * time.Minute
)

// Options say which installation.
type Options struct {
	// Database is the absolute path of the SQLite file. Everything else of the
	// installation is in its directory, which no other installation may use.
	Database string
	RunDir   string // directory of sockets
	// IdleEnd is the time without use after which the server ends. One that runs
	// already keeps its own.
	IdleEnd time.Duration
	// Starting is called before the server is started; nil: nothing is.
	Starting func(dir string)
}

// FromEnv returns the options of RUNTIME_LOCAL_DIR, RUNTIME_LOCAL_IDLE_END and
// RUNTIME_RUN_DIR, or the defaults.
func FromEnv() (Options, error) {
	o := Options{Database: DefaultDatabase, RunDir: cmp.Or(os.Getenv("RUNTIME_RUN_DIR"), config.DefaultRunDir()), IdleEnd: DefaultIdleEnd}
	if dir := os.Getenv("RUNTIME_LOCAL_DIR"); dir != "" {
		abs, err := filepath.Abs(dir)
		if err != nil {
			return o, errs.New(errs.InvalidArgument, "RUNTIME_LOCAL_DIR: %w", err)
		}
		o.Database = filepath.Join(abs, filepath.Base(DefaultDatabase))
	}
	if s := os.Getenv("RUNTIME_LOCAL_IDLE_END"); s != "" {
		d, err := time.ParseDuration(s)
		if err != nil || d < time.Second {
			return o, errs.New(errs.InvalidArgument, "RUNTIME_LOCAL_IDLE_END is %q, which is not a time of at least 1s", s)
		}
		o.IdleEnd = d
	}
	return o, nil
}

// Installation is an installation that this process uses.
type Installation struct {
	o       Options
	release func()
}

// Target names the server of the installation for a client.
func (i *Installation) Target() clientconfig.Options {
	return clientconfig.Options{StateDir: i.dir(), RunDir: i.o.RunDir}
}

func (i *Installation) dir() string { return filepath.Dir(i.o.Database) }

// Close ends the use of the installation; its server goes on until it is idle.
func (i *Installation) Close() { i.release() }
