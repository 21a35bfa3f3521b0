package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/agentproto"
)

// prepareProcess makes this process fit to be PID 1. Dir is any directory; the
// file system for the limit is mounted over it for a moment.
func prepareProcess(pids int64, dir string) error {
	// Its memory and descriptors are not for the sandbox's processes.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("not dumpable: %w", err)
	}
	if os.Getpid() != 1 {
		// In tests: adopt orphans like PID 1 does.
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("become subreaper: %w", err)
		}
	}
	if pids > 0 {
		if err := limitPIDs(pids, dir); err != nil {
			return fmt.Errorf("limit processes: %w", err)
		}
	}
	if os.Getpid() == 1 {
		if err := leaveRoot(); err != nil {
			return fmt.Errorf("leave root: %w", err)
		}
	}
	return nil
}

// limitPIDs limits the number of processes by a cgroup of gVisor's. The file
// system is detached afterwards, so that nobody finds a file to write to.
func limitPIDs(n int64, dir string) error {
	if err := unix.Mount("none", dir, "cgroup", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "pids"); err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	defer func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }()
	group := filepath.Join(dir, "sandbox")
	if err := os.Mkdir(group, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	if err := os.WriteFile(filepath.Join(group, "pids.max"), []byte(strconv.FormatInt(n, 10)), 0); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte("0"), 0)
}

// leaveRoot makes all threads a user that nobody else is, with the same
// capabilities except the one that only limitPIDs needs. Else a process of
// guest root could kill this one: gVisor does not protect PID 1 from that.
func leaveRoot() error {
	hdr, data, err := capabilities()
	if err != nil {
		return err
	}
	drop(&data, unix.CAP_SYS_ADMIN)
	all := func(trap, a, b, c uintptr) error {
		if _, _, errno := syscall.AllThreadsSyscall(trap, a, b, c); errno != 0 {
			return errno
		}
		return nil
	}
	if err := all(unix.SYS_PRCTL, unix.PR_SET_KEEPCAPS, 1, 0); err != nil {
		return err
	}
	if err := syscall.Setresgid(agentproto.VaultUID, agentproto.VaultUID, agentproto.VaultUID); err != nil {
		return err
	}
	if err := syscall.Setresuid(agentproto.VaultUID, agentproto.VaultUID, agentproto.VaultUID); err != nil {
		return err
	}
	// This clears the effective set only.
	err = all(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&hdr)), uintptr(unsafe.Pointer(&data[0])), 0)
	runtime.KeepAlive(&data)
	if err != nil {
		return err
	}
	// Changing the user may have made it dumpable again.
	return unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
}

func capabilities() (hdr unix.CapUserHeader, data [2]unix.CapUserData, err error) {
	hdr.Version = unix.LINUX_CAPABILITY_VERSION_3
	err = unix.Capget(&hdr, &data[0])
	return hdr, data, err
}

// privileged says whether this process can become any user.
func privileged() bool {
	_, data, err := capabilities()
	return err != nil || data[0].Effective&(1<<unix.CAP_SETUID) != 0
}

func drop(data *[2]unix.CapUserData, c uint) {
	data[c/32].Effective &^= 1 << (c % 32)
	data[c/32].Permitted &^= 1 << (c % 32)
}

// restrictThread takes from the calling thread, and so from every process that
// it forks, all that a program could use to gain privileges: the bounding,
// inheritable and ambient sets, and set-id bits. What is in the effective set
// stays, for setuid and the like between fork and exec, and is lost by exec.
func restrictThread() error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no_new_privs: %w", err)
	}
	if !privileged() { // in tests: there is nothing to lose
		return nil
	}
	for c := uintptr(0); c < 64; c++ {
		have, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, c, 0, 0, 0)
		if err != nil { // past the last one
			break
		}
		if have == 0 {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil {
			return fmt.Errorf("drop capability %d: %w", c, err)
		}
	}
	hdr, data, err := capabilities()
	if err != nil {
		return fmt.Errorf("read capabilities: %w", err)
	}
	drop(&data, unix.CAP_SYS_ADMIN)
	drop(&data, unix.CAP_SETPCAP)
	data[0].Inheritable, data[1].Inheritable = 0, 0
	if err := unix.Capset(&hdr, &data[0]); err != nil { // this also empties the ambient set
		return fmt.Errorf("set capabilities: %w", err)
	}
	return nil
}
