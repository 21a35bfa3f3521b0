// Command runtime-launch prepares a place for a sandbox and executes runsc in it: a control
// group, and a mount namespace that has the root filesystem of the sandbox but not the mounts
// of other programs.
//
// It reads a pkg/launch.Request from its standard input. On an error it names what failed
// on its standard error and exits with 125.
//
// Each process of gVisor keeps, until it ends, all mounts that it saw when it started: the
// disk of one sandbox, or of the machine's user, would be in use until every sandbox ends
// that was started meanwhile. And a root filesystem that is mounted for its sandbox alone
// vanishes when the sandbox ends, without a trace in the host's mounts.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/containerd/v2/core/mount"
	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/launch"
)

func main() {
	// The namespace is the thread's until the program is executed by it.
	runtime.LockOSThread()
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "runtime-launch:", err)
		os.Exit(125)
	}
}

func run() error {
	var r launch.Request
	if err := json.NewDecoder(os.Stdin).Decode(&r); err != nil {
		return fmt.Errorf("read the request: %w", err)
	}
	if err := os.WriteFile(r.Group, []byte(strconv.Itoa(os.Getpid())), 0); err != nil {
		return fmt.Errorf("join the control group: %w", err)
	}
	follow, err := clone(r.Follow)
	if err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("make a mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make the mounts private: %w", err)
	}
	if err := release(r.Keep, r.Drop); err != nil {
		return err
	}
	for i, path := range r.Follow {
		if err := followHost(follow[i], path); err != nil {
			return fmt.Errorf("follow the mounts of %s: %w", path, err)
		}
	}
	var mounts []mount.Mount
	for _, m := range r.Mounts {
		mounts = append(mounts, mount.Mount{Type: m.Type, Source: m.Source, Options: m.Options})
	}
	if err := mount.All(mounts, r.Rootfs); err != nil {
		return fmt.Errorf("mount the root filesystem: %w", err)
	}
	null, err := unix.Open("/dev/null", unix.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("open /dev/null: %w", err)
	}
	for fd := range 3 {
		if err := unix.Dup3(null, fd, 0); err != nil {
			return fmt.Errorf("give it /dev/null: %w", err)
		}
	}
	return unix.Exec(r.Args[0], r.Args, r.Env)
}

// clone opens copies of shared mounts, with those below, that go on to get the mounts of the host.
func clone(paths []string) ([]int, error) {
	var fds []int
	for _, path := range paths {
		fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
		if err != nil {
			return nil, fmt.Errorf("copy the mount %s: %w", path, err)
		}
		fds = append(fds, fd)
	}
	return fds, nil
}

// followHost replaces a mount of this namespace by its copy, which gets later mounts of the host but gives it none.
func followHost(fd int, path string) error {
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
		return err
	}
	if err := unix.MoveMount(fd, "", unix.AT_FDCWD, path, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return err
	}
	return unix.Mount("", path, "", unix.MS_SLAVE|unix.MS_REC, "")
}

// release unmounts, in this namespace, every mount that the sandbox does not need. It keeps
// the root, the mounts below /proc, /sys and /dev, and those above or below a path of keep.
// Of the mounts below a path of drop it keeps those that a path of keep, below it too, needs.
func release(keep, drop []string) error {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("read the mounts: %w", err)
	}
	keep = append([]string{"/proc", "/sys", "/dev"}, keep...)
	var points []string
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 4 {
			points = append(points, unescape(f[4]))
		}
	}
	slices.Reverse(points) // a mount below another one comes later in the list
	for _, p := range points {
		if p == "/" || needed(p, keep, drop) {
			continue
		}
		if err := unix.Unmount(p, unix.MNT_DETACH); err != nil && err != unix.EINVAL && err != unix.ENOENT {
			return fmt.Errorf("unmount %s here: %w", p, err)
		}
	}
	return nil
}

// needed reports whether a mount is above or below a path of keep. A path of drop between
// the two, above the mount, means that it is not.
func needed(mount string, keep, drop []string) bool {
	return slices.ContainsFunc(keep, func(k string) bool {
		if within(k, mount) {
			return true
		}
		return within(mount, k) && !slices.ContainsFunc(drop, func(d string) bool { return within(mount, d) && within(d, k) && d != k })
	})
}

// within reports whether path is dir or below it.
func within(path, dir string) bool {
	rest, ok := strings.CutPrefix(path, dir)
	return ok && (rest == "" || rest[0] == '/')
}

// unescape decodes the octal escapes of /proc/self/mountinfo.
func unescape(s string) string {
	for _, c := range []string{" ", "\t", "\n", `\`} {
		s = strings.ReplaceAll(s, fmt.Sprintf(`\%03o`, c[0]), c)
	}
	return s
}
