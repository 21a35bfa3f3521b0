package leakcheck

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/instance"
)

// Installation creates an installation for a test. Its directories are removed
// when the test has ended, and the test fails if anything else of the
// installation is left then. Before that, Installation removes what killed
// tests left behind.
func Installation(t testing.TB) *instance.Instance {
	t.Helper()
	in, remove, err := install()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := remove(); err != nil {
			t.Error(err)
		}
	})
	Check(t, in)
	return in
}

// install creates an installation and registers it until its directories are
// removed.
func install() (in *instance.Instance, remove func() error, err error) {
	r := registry(filepath.Join(os.TempDir(), fmt.Sprintf("rt-tests-%d", os.Getuid())))
	if err := r.sweep(); err != nil {
		return nil, nil, fmt.Errorf("sweep what killed tests left: %w", err)
	}
	dir, err := os.MkdirTemp("", "rt") // short, since the paths of sockets are limited
	if err != nil {
		return nil, nil, err
	}
	release, err := r.add(dir)
	if err != nil {
		return nil, nil, errors.Join(err, os.Remove(dir))
	}
	remove = func() error {
		// A failed test's leftovers would stay for ever once the registration
		// is gone.
		if in != nil {
			left, err := List(in)
			if err == nil && len(left) > 0 {
				err = Remove(in)
			}
			if err != nil {
				return err // the registration stays, so a later test sweeps the installation
			}
		}
		defer release() // last: until then no other process removes it
		return os.RemoveAll(dir)
	}
	if err = os.Chmod(dir, 0o711); err == nil { // the same mode as the directories in it: other users must be able to pass through
		in, err = instance.Open(stateOf(dir), runOf(dir))
	}
	if err != nil {
		return nil, nil, errors.Join(err, remove())
	}
	return in, remove, nil
}

func stateOf(dir string) string { return filepath.Join(dir, "state") }
func runOf(dir string) string   { return filepath.Join(dir, "run") }

// registry is a directory with a file for each installation of a test. The file holds the installation's directory and
// is locked as long as the test's process lives.
type registry string

// enter waits until no other process is changing the registry.
func (r registry) enter() (leave func(), err error) {
	if err := os.Mkdir(string(r), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Lstat(string(r), &st); err != nil {
		return nil, err
	}
	if st.Mode&(unix.S_IFMT|0o077) != unix.S_IFDIR || int(st.Uid) != os.Getuid() {
		return nil, fmt.Errorf("%s is not a directory of ours alone: remove it", r)
	}
	f, err := lockFile(filepath.Join(string(r), "lock"), unix.LOCK_EX)
	if err != nil {
		return nil, err
	}
	return func() { f.Close() }, nil
}

// lockFile opens a file, creating it if necessary, and locks it until it is
// closed.
func lockFile(path string, how int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for err = unix.EINTR; errors.Is(err, unix.EINTR); {
		err = unix.Flock(int(f.Fd()), how)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f, nil
}

// add registers an installation, until release or the end of the process.
func (r registry) add(dir string) (release func(), err error) {
	leave, err := r.enter()
	if err != nil {
		return nil, err
	}
	defer leave()
	path := filepath.Join(string(r), filepath.Base(dir)+".dir")
	f, err := lockFile(path, unix.LOCK_EX|unix.LOCK_NB)
	if err != nil {
		return nil, err
	}
	if _, err := f.WriteString(dir); err != nil {
		return nil, errors.Join(err, os.Remove(path), f.Close())
	}
	return func() {
		_ = os.Remove(path) // otherwise the next sweep removes it
		f.Close()
	}, nil
}

// sweep removes the installations whose lock is free.
func (r registry) sweep() error {
	left, err := r.abandoned()
	for _, f := range left {
		err = errors.Join(err, removeAbandoned(f))
		f.Close()
	}
	return err
}

// abandoned returns the registry's files whose process has ended, locked.
func (r registry) abandoned() ([]*os.File, error) {
	leave, err := r.enter()
	if err != nil {
		return nil, err
	}
	defer leave()
	files, err := filepath.Glob(filepath.Join(string(r), "*.dir"))
	var left []*os.File
	for _, path := range files {
		f, e := lockFile(path, unix.LOCK_EX|unix.LOCK_NB)
		if errors.Is(e, unix.EWOULDBLOCK) {
			continue // in use, or being swept
		}
		if e != nil {
			err = errors.Join(err, e)
			continue
		}
		left = append(left, f)
	}
	return left, err
}

// removeAbandoned removes the installation of a file, and the file.
func removeAbandoned(f *os.File) error {
	b, err := io.ReadAll(f)
	if err != nil {
		return err
	}
	if dir := string(b); dir != "" { // otherwise the process ended before it could create anything
		in, err := instance.Find(stateOf(dir), runOf(dir))
		if err == nil {
			err = Remove(in)
		}
		if err != nil && !errs.Is(err, errs.NotFound) {
			return err
		}
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	if err := os.Remove(f.Name()); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil // its process has removed it since the file was opened
}
