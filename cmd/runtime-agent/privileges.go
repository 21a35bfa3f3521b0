package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/agentproto"
)

// prepareProcess makes this process fit to be PID 1. Dir is any directory; the
// file system for the limit is mounted over it for a moment. limit is nil without
// a limit.
func prepareProcess(c agentproto.Config, dir string) (limit *pidLimit, err error) {
	// The sandbox's processes must not reach its memory and descriptors.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("not dumpable: %w", err)
	}
	if os.Getpid() != 1 {
		// In tests: adopt orphans like PID 1 does.
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			return nil, fmt.Errorf("become subreaper: %w", err)
		}
	}
	if c.PIDs > 0 {
		if limit, err = limitPIDs(c.PIDs, dir); err != nil {
			return nil, fmt.Errorf("limit processes: %w", err)
		}
	}
	if os.Getpid() != 1 {
		return limit, nil
	}
	// The agent needs a user that no other process has, or a process of guest root could kill it: gVisor does not
	// protect PID 1 from that. The specification sets the user, because changing it is expensive once there are
	// threads.
	if os.Getuid() != agentproto.VaultUID {
		return nil, fmt.Errorf("PID 1 is user %d, which must be %d", os.Getuid(), agentproto.VaultUID)
	}
	switch {
	case c.Claimable:
		err = keepAdmin()
	case c.PIDs > 0:
		err = dropAdmin()
	}
	if err != nil {
		return nil, fmt.Errorf("drop capabilities: %w", err)
	}
	return limit, nil
}

// pidLimit is a control group of gVisor's that limits processes.
type pidLimit struct {
	group int // descriptor of its directory
	max   int // descriptor of its limit
}

// set changes the limit of processes that exist and follow.
func (l *pidLimit) set(n int64) error {
	if l == nil {
		return errors.New("the sandbox was made without a limit")
	}
	_, err := unix.Pwrite(l.max, strconv.AppendInt(nil, n, 10), 0)
	return err
}

// limitPIDs makes a cgroup of gVisor's with a limit of processes: processes
// forked into it are limited, with all their descendants. This process is not limited, since it needs threads also when
// there are too many others. The file system is unmounted again, so that no
// other process finds it.
//
// The cgroup is of version 2, which runsc must be configured to have. Of
// version 1 this gVisor has seven hierarchies, and checks the limit of a new
// process or thread in only one of them, whichever comes first.
func limitPIDs(n int64, dir string) (*pidLimit, error) {
	if err := unix.Mount("none", dir, "cgroup2", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return nil, fmt.Errorf("mount: %w", err)
	}
	defer func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }()
	group := filepath.Join(dir, "sandbox")
	if err := os.Mkdir(group, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	limit := filepath.Join(group, "pids.max")
	l := new(pidLimit)
	var err error
	if l.max, err = unix.Open(limit, unix.O_WRONLY|unix.O_CLOEXEC, 0); err != nil {
		return nil, &os.PathError{Op: "open", Path: limit, Err: err}
	}
	if err := l.set(n); err != nil {
		return nil, &os.PathError{Op: "write", Path: limit, Err: err}
	}
	if l.group, err = unix.Open(group, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return nil, &os.PathError{Op: "open", Path: group, Err: err}
	}
	return l, nil
}

// dropAdmin drops from all threads the capability that only limitPIDs and a
// claim need.
func dropAdmin() error {
	return changeCapabilities(func(data *[2]unix.CapUserData) { drop(data, unix.CAP_SYS_ADMIN) })
}

// keepAdmin leaves that capability permitted for the claim, but not effective.
func keepAdmin() error {
	return changeCapabilities(func(data *[2]unix.CapUserData) { data[0].Effective &^= 1 << unix.CAP_SYS_ADMIN })
}

// onlyForChildren returns a change that leaves the capabilities that are used between fork and exec, and those of the
// set kept, which programs have.
func onlyForChildren(kept uint64) func(data *[2]unix.CapUserData) {
	return func(data *[2]unix.CapUserData) {
		for _, c := range []uint{unix.CAP_SYS_ADMIN, unix.CAP_SETPCAP} {
			if kept&(1<<c) == 0 {
				drop(data, c)
			}
		}
		data[0].Inheritable, data[1].Inheritable = 0, 0
	}
}

// changeCapabilities gives all threads the capabilities of this one, changed. No thread may have fewer: the runtime
// ends the process if one is refused them.
func changeCapabilities(change func(*[2]unix.CapUserData)) error {
	hdr, data, err := capabilities()
	if err != nil {
		return err
	}
	change(&data)
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&hdr)), uintptr(unsafe.Pointer(&data[0])), 0)
	runtime.KeepAlive(&data)
	if errno != 0 {
		return errno
	}
	return nil
}

func capabilities() (hdr unix.CapUserHeader, data [2]unix.CapUserData, err error) {
	hdr.Version = unix.LINUX_CAPABILITY_VERSION_3
	err = unix.Capget(&hdr, &data[0])
	return hdr, data, err
}

// privileged reports whether this process can become any user. The answer does
// not change.
var privileged = sync.OnceValue(func() bool {
	_, data, err := capabilities()
	return err != nil || data[0].Effective&(1<<unix.CAP_SETUID) != 0
})

// boundingSet returns the bounding set of this process; every capability when it cannot be read.
func boundingSet() uint64 {
	status, err := readFile("/proc/self/status", 64<<10)
	if err != nil {
		return ^uint64(0)
	}
	_, after, _ := strings.Cut(string(status), "\nCapBnd:")
	line, _, _ := strings.Cut(after, "\n")
	set, err := strconv.ParseUint(strings.TrimSpace(line), 16, 64)
	if err != nil {
		return ^uint64(0)
	}
	return set
}

func drop(data *[2]unix.CapUserData, c uint) {
	data[c/32].Effective &^= 1 << (c % 32)
	data[c/32].Permitted &^= 1 << (c % 32)
}

// restrictThread removes from the calling thread, and so from every process
// that it forks, everything that a program could use to gain privileges: the
// bounding, inheritable and ambient sets, and set-id bits. Kept stays in the
// bounding set, so that exec gives it to root. The effective set stays, for
// setuid and the like between fork and exec; exec drops it.
func restrictThread(kept uint64) error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no_new_privs: %w", err)
	}
	if !privileged() { // in tests the process has none to drop
		return nil
	}
	set := boundingSet() &^ kept
	for c := uintptr(0); c < 64; c++ {
		if set&(1<<c) == 0 {
			continue
		}
		err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
		if err == unix.EINVAL { // past the last one
			break
		}
		if err != nil {
			return fmt.Errorf("drop capability %d: %w", c, err)
		}
	}
	hdr, data, err := capabilities()
	if err != nil {
		return fmt.Errorf("read capabilities: %w", err)
	}
	onlyForChildren(kept)(&data)
	if err := unix.Capset(&hdr, &data[0]); err != nil { // this also empties the ambient set
		return fmt.Errorf("set capabilities: %w", err)
	}
	return nil
}
