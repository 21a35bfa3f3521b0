// Package private runs a test in a process with a network and mounts of its
// own, where it may flush the firewall, mount over directories of the machine
// and have any address, and other tests notice nothing.
package private

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// inside names the test that this process was started for.
const inside = "PRIVATE_TEST"

// Inside says whether this process was started by Run, for one test.
func Inside() bool { return os.Getenv(inside) != "" }

// margin is how much earlier than this process the other one gives up, so that
// it is this one that tells.
const margin = 5 * time.Second

// Run runs the test, which calls it first, once more in such a process, and
// fails the test if it fails there. It returns true in that process, in which the
// test goes on, and false in the other, in which it returns. /run is empty
// there, and the one interface is the loopback.
func Run(t *testing.T) bool {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	if os.Getenv(inside) == t.Name() {
		if err := enter(); err != nil {
			t.Fatal(err)
		}
		return true
	}
	args := []string{"-test.run=^" + t.Name() + "$", "-test.count=1"}
	if testing.Verbose() {
		args = append(args, "-test.v")
	}
	if d, ok := t.Deadline(); ok {
		args = append(args, fmt.Sprintf("-test.timeout=%s", max(time.Second, time.Until(d)-margin)))
	}
	tmp, err := os.MkdirTemp("", "rt") // short, as sockets are below it
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(tmp)
	c := exec.Command(os.Args[0], args...)
	// Installations that killed tests left must not be swept from where their network cannot be seen.
	c.Env = append(os.Environ(), inside+"="+t.Name(), "TMPDIR="+tmp)
	c.SysProcAttr = &syscall.SysProcAttr{
		Unshareflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS, // it makes all mounts private too
	}
	out, err := c.CombinedOutput()
	if err != nil {
		t.Errorf("in namespaces of its own: %v\n%s", err, out)
	} else if testing.Verbose() {
		t.Logf("%s", out)
	}
	return false
}

// The mounts of others go when the process starts: until its tests run, much may pass.
func init() {
	if os.Getenv(inside) == "" {
		return
	}
	if err := releaseDisks(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func enter() error {
	if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("mount /run: %w", err)
	}
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		return fmt.Errorf("loopback: %w", err)
	}
	return nil
}

// releaseDisks unmounts here what is mounted of virtual disks: other tests could not
// detach theirs while a copy of the mount is in this namespace.
func releaseDisks() error {
	b, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) < 3 || !strings.HasPrefix(f[0], "/dev/loop") && !strings.HasPrefix(f[0], "/dev/nbd") && f[2] != "fuse.lsvd" {
			continue
		}
		if err := unix.Unmount(f[1], unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("unmount %s: %w", f[1], err)
		}
	}
	return nil
}
