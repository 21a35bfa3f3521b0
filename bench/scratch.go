package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/lsvd/frontend/loop"
	"miren.dev/runtime/pkg/rpc/identity"
)

// scratchPattern names our directories below --dir.
const scratchPattern = "rt-bench-"

// scratch is the directory that everything of a run is in:
//
//	lock          locked as long as the run lives
//	logs/         of children and installations
//	pki/          the authority that all TLS is of
//	disks/        the virtual disk and its peers
//	install*/     installations: state/ and run/
//	...           what each benchmark needs
type scratch struct {
	dir  string
	bin  string
	lock *os.File
	ca   *identity.Authority
}

func newScratch(ctx context.Context, o options) (*scratch, error) {
	if _, err := os.Stat(filepath.Join(o.bin, "runtime")); err != nil {
		return nil, fmt.Errorf("%w (make toolchain bin/runtime builds it)", err)
	}
	sweep(ctx, o)
	dir, err := os.MkdirTemp(o.dir, scratchPattern)
	if err != nil {
		return nil, err
	}
	s := &scratch{dir: dir, bin: o.bin}
	if err := s.init(); err != nil {
		return nil, errors.Join(err, s.remove())
	}
	return s, nil
}

func (s *scratch) init() (err error) {
	if err := os.Chmod(s.dir, 0o711); err != nil { // PostgreSQL runs as a user of its own
		return err
	}
	if s.lock, err = os.Create(s.path("lock")); err != nil {
		return err
	}
	if err := unix.Flock(int(s.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return err
	}
	if err := os.Mkdir(s.path("logs"), 0o755); err != nil {
		return err
	}
	if s.ca, err = identity.Open(s.path("pki")); err != nil {
		return err
	}
	if _, err := s.ca.ServerTLS(); err != nil { // writes server.pem and server.key
		return err
	}
	pair, err := s.ca.IssueClient("bench", []string{"admin"}, time.Hour)
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(s.path("pki", "client.pem"), pair.Certificate, 0o600), os.WriteFile(s.path("pki", "client.key"), pair.Key, 0o600))
}

func (s *scratch) path(elem ...string) string {
	return filepath.Join(append([]string{s.dir}, elem...)...)
}

// owner is the owner for whom the run attaches disks.
func (s *scratch) owner() string { return filepath.Base(s.dir) }

// removeDisks detaches the disks of a killed run.
func removeDisks(ctx context.Context, dir string) error {
	_, err := loop.Sweep(ctx, filepath.Base(dir), func(string) bool { return false })
	out, lerr := exec.CommandContext(ctx, "losetup", "--list", "--noheadings", "--output", "NAME,BACK-FILE").Output()
	if lerr != nil {
		return errors.Join(err, fmt.Errorf("list loop devices: %w", lerr))
	}
	for l := range strings.Lines(string(out)) {
		if f := strings.Fields(l); len(f) > 1 && strings.HasPrefix(f[1], dir+"/") {
			err = errors.Join(err, exec.CommandContext(ctx, "losetup", "-d", f[0]).Run())
		}
	}
	return err
}

// remove ends the processes of leftover installations and removes the directory,
// after an interrupted run too.
func (s *scratch) remove() error {
	if s.lock != nil {
		defer s.lock.Close()
	}
	return tearDown(context.Background(), s.dir, s.bin)
}

// sweep removes the directories of killed runs.
func sweep(ctx context.Context, o options) {
	dirs, _ := filepath.Glob(filepath.Join(o.dir, scratchPattern+"*")) // the pattern is well formed
	for _, dir := range dirs {
		lock, err := os.Open(filepath.Join(dir, "lock"))
		if err != nil {
			continue // about to get its lock, or about to vanish
		}
		if unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			progress("removing %s of a run that was killed", dir)
			if err := tearDown(ctx, dir, o.bin); err != nil {
				progress("cannot remove it all: %v", err)
			}
		}
		lock.Close()
	}
}

// teardownTimeout bounds one teardown of an installation.
const teardownTimeout = 2 * time.Minute

func tearDown(ctx context.Context, dir, bin string) error {
	_ = unix.Unmount(filepath.Join(dir, "bare", "root", "null-netns"), 0) // left by a killed runsc run, if anything
	all := []error{removeVolumes(dir), removeDisks(ctx, dir), removeGroups(dir)}
	installs, _ := filepath.Glob(filepath.Join(dir, "install*")) // the pattern is well formed
	for _, in := range installs {
		all = append(all, stopInstall(ctx, bin, in))
	}
	if err := errors.Join(all...); err != nil {
		return err // keep the files, to try again
	}
	return os.RemoveAll(dir)
}

// stopInstall ends everything of the installation in dir.
func stopInstall(ctx context.Context, bin, dir string) error {
	if _, err := os.Stat(filepath.Join(dir, "state", "instance-id")); err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, teardownTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, filepath.Join(bin, "runtime"), "server", "stop",
		"--state-dir", filepath.Join(dir, "state"), "--run-dir", filepath.Join(dir, "run"), "--toolchain-dir", bin).CombinedOutput()
	if err != nil {
		return fmt.Errorf("stop the installation in %s: %w: %s", dir, err, strings.TrimSpace(string(out)))
	}
	return nil
}
