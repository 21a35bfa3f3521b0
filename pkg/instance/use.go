package instance

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/errs"
)

// usePoll is the time between two attempts to get a lock that is held.
const usePoll = 10 * time.Millisecond

// Use keeps the server on a state directory from ending because of idleness,
// until the returned function is called or this process ends. It waits for one
// that is ending. The directory must exist.
func Use(ctx context.Context, stateDir string) (release func(), err error) {
	return lockFile(ctx, filepath.Join(stateDir, "use.lock"), unix.LOCK_SH)
}

// Starter makes this process the only one that starts a server on a state
// directory, until the returned function is called. It waits for its turn.
func Starter(ctx context.Context, stateDir string) (release func(), err error) {
	return lockFile(ctx, filepath.Join(stateDir, "start.lock"), unix.LOCK_EX)
}

// Retire returns free if no process uses the installation, and makes those that
// begin to use it wait until release is called or this process ends.
func (in *Instance) Retire() (release func(), free bool, err error) {
	f, err := openLock(in.State("use.lock"))
	if err != nil {
		return nil, false, err
	}
	free, err = tryLock(f, unix.LOCK_EX)
	return func() { f.Close() }, free, err
}

func openLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, errs.New(errs.Unavailable, "open lock: %w", err)
	}
	return f, nil
}

// tryLock reports whether it locked the file.
func tryLock(f *os.File, how int) (bool, error) {
	err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return false, nil
	}
	if err != nil {
		f.Close()
		return false, errs.New(errs.Unavailable, "lock %s: %w", f.Name(), err)
	}
	return true, nil
}

// lockFile waits for a lock.
func lockFile(ctx context.Context, path string, how int) (release func(), err error) {
	f, err := openLock(path)
	if err != nil {
		return nil, err
	}
	tick := time.NewTicker(usePoll)
	defer tick.Stop()
	for {
		ok, err := tryLock(f, how)
		if err != nil {
			return nil, err
		}
		if ok {
			return func() { f.Close() }, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			f.Close()
			return nil, errs.New(errs.ClassOf(ctx.Err()), "wait for %s: %w", path, ctx.Err())
		}
	}
}
