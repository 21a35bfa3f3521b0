package network

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// netnsDir has the network namespaces of the installation. It is not /run/netns:
// the first `ip netns add` of an administrator covers that with a mount, and the
// namespaces that it hides can then be neither entered nor removed.
func (m *Manager) netnsDir() string { return m.cfg.Instance.Socket("netns") }

// oldNetNSDir is where earlier versions had them.
const oldNetNSDir = "/run/netns"

// ensureNetNSDir makes the directory a private mount: otherwise the namespaces
// would remain in other mount namespaces. It moves namespaces of earlier
// versions here.
func (m *Manager) ensureNetNSDir() error {
	dir := m.netnsDir()
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return err
	}
	mounted, err := mountinfo.Mounted(dir)
	if err != nil {
		return err
	}
	if !mounted {
		if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
			return &os.PathError{Op: "bind mount", Path: dir, Err: err}
		}
	}
	if err := unix.Mount("", dir, "", unix.MS_PRIVATE, ""); err != nil {
		return &os.PathError{Op: "make private", Path: dir, Err: err}
	}
	old, err := filepath.Glob(filepath.Join(oldNetNSDir, m.cfg.Instance.Name("")+"-*"))
	if err != nil {
		return err
	}
	for _, path := range old {
		id := strings.TrimPrefix(filepath.Base(path), m.cfg.Instance.Name("")+"-")
		if err := moveNetNS(path, m.netNS(id)); errors.Is(err, unix.EBUSY) {
			// It is mounted once more, below the mount that covers the
			// directory.
			m.cfg.Logger.Warn("the old name of a network namespace is hidden and stays", "path", path)
		} else if err != nil {
			return fmt.Errorf("move %s: %w", path, err)
		}
	}
	return nil
}

// moveNetNS gives a namespace another name.
func moveNetNS(from, to string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(from, &st); err != nil {
		return err
	}
	if st.Type == unix.NSFS_MAGIC {
		f, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o444)
		if err == nil {
			f.Close()
			err = unix.Mount(from, to, "", unix.MS_BIND, "")
		}
		if err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	return removeNetNS(from)
}

// removeNetNSDir removes the directory, which must have no namespace any more.
func (m *Manager) removeNetNSDir() error {
	dir := m.netnsDir()
	if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return &os.PathError{Op: "unmount", Path: dir, Err: err}
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// newNetNS makes a network namespace at path and calls inside in it, on a
// separate thread. It removes the namespace again when inside fails.
func newNetNS(path string, inside func() error) (err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o444)
	if err != nil {
		return err
	}
	f.Close()
	defer func() {
		if err != nil {
			err = errors.Join(err, removeNetNS(path))
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

// inNetNS calls fn in a network namespace.
func inNetNS(ns int, fn func() error) error {
	return onThread(func() error {
		if err := unix.Setns(ns, unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter network namespace: %w", err)
		}
		return fn()
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
			// Keep this thread busy, so that the next one is another thread.
			next := make(chan struct{})
			go func() { defer close(next); run() }()
			<-next
			runtime.UnlockOSThread()
			return
		}
		home, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			err = fn()
			// Otherwise the thread ends with this goroutine.
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

// removeNetNS removes the name of a namespace; the kernel removes the namespace when no process runs in it any more.
func removeNetNS(path string) error {
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
