package main

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/agentproto"
)

// becomeVault executes this program again as the agent's user, with the capabilities that it has as root. It returns
// only an error. Docker gives no capabilities to a program that it starts as another user than root.
//
// The calls change this thread alone, whose credentials execve makes those of the process.
func becomeVault() error {
	runtime.LockOSThread()
	hdr, data, err := capabilities()
	if err != nil {
		return fmt.Errorf("read capabilities: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_KEEPCAPS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("keep capabilities: %w", err)
	}
	const id = agentproto.VaultUID
	for _, c := range []struct {
		name       string
		call       uintptr
		a1, a2, a3 uintptr
	}{
		{"setgroups", unix.SYS_SETGROUPS, 0, 0, 0},
		{"setresgid", unix.SYS_SETRESGID, id, id, id},
		{"setresuid", unix.SYS_SETRESUID, id, id, id},
	} {
		if _, _, errno := unix.RawSyscall(c.call, c.a1, c.a2, c.a3); errno != 0 {
			return fmt.Errorf("%s: %w", c.name, errno)
		}
	}
	for i := range data {
		data[i].Effective, data[i].Inheritable = data[i].Permitted, data[i].Permitted
	}
	if err := unix.Capset(&hdr, &data[0]); err != nil {
		return fmt.Errorf("set capabilities: %w", err)
	}
	for c := range uintptr(64) {
		if data[c/32].Permitted&(1<<(c%32)) == 0 {
			continue
		}
		if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, c, 0, 0); err != nil {
			return fmt.Errorf("keep capability %d: %w", c, err)
		}
	}
	return fmt.Errorf("execute: %w", unix.Exec(agentproto.GuestBinary, os.Args, os.Environ()))
}
