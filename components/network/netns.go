package network

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// netnsDir is where `ip netns` looks for names too.
const netnsDir = "/run/netns"

// newNetNS makes a named network namespace and calls inside in it, on a thread
// of its own. It removes the namespace again when inside fails.
func newNetNS(name string, inside func() error) (err error) {
	if err := os.MkdirAll(netnsDir, 0o755); err != nil {
		return err
	}
	path := filepath.Join(netnsDir, name)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o444)
	if err != nil {
		return err
	}
	f.Close()
	defer func() {
		if err != nil {
			err = errors.Join(err, removeNetNS(name))
		}
	}()
	return onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("new network namespace: %w", err)
		}
		if err := unix.Mount("/proc/thread-self/ns/net", path, "none", unix.MS_BIND, ""); err != nil {
			return err
		}
		return inside()
	})
}

// onThread calls fn on a thread whose network namespace it may change. It is
// never the first thread of the process, whose namespace /proc/self and /proc/net show.
func onThread(fn func() error) error {
	done := make(chan error, 1)
	var run func()
	run = func() {
		runtime.LockOSThread()
		if unix.Gettid() == os.Getpid() {
			// Kept busy, so that the next one is another thread.
			next := make(chan struct{})
			go func() { defer close(next); run() }()
			<-next
			runtime.UnlockOSThread()
			return
		}
		home, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			err = fn()
			// Else the thread ends with this goroutine.
			if unix.Setns(home, unix.CLONE_NEWNET) == nil {
				runtime.UnlockOSThread()
			}
			unix.Close(home)
		}
		done <- err
	}
	go run()
	return <-done
}

// removeNetNS removes a name. The namespace goes when nothing runs in it any more.
func removeNetNS(name string) error {
	path := filepath.Join(netnsDir, name)
	for {
		err := unix.Unmount(path, unix.MNT_DETACH)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			break // not, or no longer, mounted
		}
		if err != nil {
			return fmt.Errorf("unmount %s: %w", path, err)
		}
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
