// Package private runs a test in a process with a network and mounts of its
// own. There it may flush the firewall, mount over directories of the machine
// and have any address, without effect on other tests. It also gives all tests
// of a package mounts of their own.
package private

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"miren.dev/runtime/testsupport/need"
)

const (
	// inside names the test for which this process was started.
	inside = "PRIVATE_TEST"
	// ownMounts is "new" in a process that Main started, and later "old", also in the children of that process.
	ownMounts = "PRIVATE_MOUNTS"
)

// Inside reports whether Run started this process for one test.
func Inside() bool { return os.Getenv(inside) != "" }

// margin is how much earlier the started process times out than this one, so that
// this one can report the failure.
const margin = 5 * time.Second

// Run runs the test, which calls it first, once more in such a process, and
// fails the test if it fails there. It returns true in that process, in which the
// test continues, and false in the other, in which it returns. /run is empty
// there, and the one interface is the loopback.
func Run(t *testing.T) bool {
	t.Helper()
	need.Root(t)
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
	tmp, err := os.MkdirTemp("", "rt") // short, since paths of sockets are below it
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(tmp)
	c := exec.Command(os.Args[0], args...)
	// A sweep would not see the networks of installations that killed tests left, so it must not run here.
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

// Main runs the tests of a package, m of its TestMain, in a process with mounts of
// its own, and returns the exit code. So no sandbox that other tests start meanwhile
// sees their mounts: gVisor's processes keep, until they end, every mount from
// before their start, and its device stays in use.
func Main(m interface{ Run() int }) int {
	if os.Geteuid() != 0 || os.Getenv(ownMounts) != "" {
		return m.Run()
	}
	c := exec.Command(os.Args[0], os.Args[1:]...)
	c.Env = append(os.Environ(), ownMounts+"=new")
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread() // the kernel sends the signal when the starting thread ends
	err := c.Run()
	if err == nil {
		return 0
	}
	if code := c.ProcessState.ExitCode(); code > 0 {
		return code
	}
	fmt.Fprintln(os.Stderr, "tests with mounts of their own:", err)
	return 1
}

// Unmount the disks of other tests when the process starts: its tests may run much later.
func init() {
	fresh := os.Getenv(ownMounts) == "new"
	if os.Getenv(inside) == "" && !fresh {
		return
	}
	if fresh {
		os.Setenv(ownMounts, "old")
	}
	if err := ReleaseDisks(); err != nil {
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

// ReleaseDisks unmounts the virtual disks here: other tests could not detach theirs while a copy of the mount is in
// this namespace.
func ReleaseDisks() error {
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
