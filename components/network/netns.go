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
	done := make(chan error, 1)
	go func() {
		// The thread is not given back unless it is where it came from.
		runtime.LockOSThread()
		done <- func() error {
			home, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(home)
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				return fmt.Errorf("new network namespace: %w", err)
			}
			err = unix.Mount("/proc/thread-self/ns/net", path, "none", unix.MS_BIND, "")
			if err == nil {
				err = inside()
			}
			if unix.Setns(home, unix.CLONE_NEWNET) == nil {
				runtime.UnlockOSThread()
			}
			return err
		}()
	}()
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
