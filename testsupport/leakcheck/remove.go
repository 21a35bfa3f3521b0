package leakcheck

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/instance"
)

// removeOrder is the order of removal: an item that holds others comes before
// them.
var removeOrder = []string{"process", "mount", "netns", "loop", "link", "table", "rule", "cgroup"}

// Remove removes an installation from the machine by force, for an installation whose own clean-up never ran. Its
// directories stay. The error names the items that are left.
func Remove(in *instance.Instance) error {
	deadline := time.Now().Add(settle)
	for {
		left, err := List(in)
		if err != nil || len(left) == 0 {
			return err
		}
		// The deepest mounts and cgroups are the last in order.
		slices.Reverse(left)
		var failed error
		for _, kind := range removeOrder {
			for _, i := range left {
				if i.Kind == kind {
					failed = errors.Join(failed, i.remove())
				}
			}
		}
		if time.Now().After(deadline) {
			return errors.Join(fmt.Errorf("cannot be removed: %v", left), failed)
		}
		<-time.After(50 * time.Millisecond) // the kernel delays the removal of some
	}
}

// remove removes one item; an item that is gone is no error.
func (i Item) remove() error {
	first, _, _ := strings.Cut(i.Name, " ")
	var err error
	switch i.Kind {
	case "process":
		var pid int
		if pid, err = strconv.Atoi(first); err == nil {
			err = unix.Kill(pid, unix.SIGKILL)
		}
	case "mount":
		err = unix.Unmount(i.Name, unix.MNT_DETACH)
	case "netns":
		if err = unix.Unmount(i.Name, unix.MNT_DETACH); err == nil || errors.Is(err, unix.EINVAL) {
			err = os.Remove(i.Name)
		}
	case "loop":
		err = detachLoop(first)
	case "link":
		var l netlink.Link
		if l, err = netlink.LinkByName(i.Name); err == nil {
			err = netlink.LinkDel(l)
		}
	case "rule":
		err = removeRule(i.Name)
	case "table":
		err = removeTable(i.Name)
	case "cgroup":
		err = removeCgroup(i.Name)
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) || errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove %s: %w", i, err)
	}
	return nil
}

func detachLoop(name string) error {
	f, err := os.OpenFile(filepath.Join("/dev", name), os.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.IoctlSetInt(int(f.Fd()), unix.LOOP_CLR_FD, 0)
}

// removeRule removes a routing rule of an interface.
func removeRule(name string) error {
	all, err := netlink.RuleList(netlink.FAMILY_V4)
	if err != nil {
		return err
	}
	for _, r := range all {
		if r.IifName == name {
			return netlink.RuleDel(&r)
		}
	}
	return nil
}

func removeTable(name string) error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	all, err := c.ListTables()
	if err != nil {
		return err
	}
	for _, t := range all {
		if t.Name == name {
			c.DelTable(t)
		}
	}
	return c.Flush()
}

// removeCgroup removes a cgroup without processes, and the cgroups below it.
func removeCgroup(top string) error {
	var dirs []string
	err := filepath.WalkDir(top, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.IsDir() {
			dirs = append(dirs, path)
		}
		return nil // it may vanish meanwhile
	})
	for _, d := range slices.Backward(dirs) {
		err = errors.Join(err, unix.Rmdir(d))
	}
	return err
}
