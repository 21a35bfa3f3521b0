package sysuser

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/errs"
)

// Become makes this process, with all its threads, the user for good: without
// supplementary groups or capabilities, and no program that it starts gains any
// (no_new_privs). What is open stays open. After an error the process must end.
func (u User) Become() error {
	if err := u.become(); err != nil {
		return errs.New(errs.FailedPrecondition, "run as user %s: %w", u.Name, err)
	}
	return nil
}

func (u User) become() error {
	if err := noNewPrivileges(); err != nil {
		return err
	}
	if u.Other() {
		if err := syscall.Setgroups(nil); err != nil {
			return err
		}
		if err := syscall.Setresgid(u.GID, u.GID, u.GID); err != nil {
			return err
		}
		if err := syscall.Setresuid(u.UID, u.UID, u.UID); err != nil {
			return err
		}
	}
	if os.Geteuid() != u.UID {
		return errors.New("the user id did not change")
	}
	if u.UID == 0 {
		return nil
	}
	// The kernel clears them with the user id, unless a secure bit forbids it.
	var caps [2]unix.CapUserData
	if err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &caps[0]); err != nil {
		return err
	}
	if caps[0].Effective|caps[0].Permitted|caps[1].Effective|caps[1].Permitted != 0 {
		return errors.New("capabilities are left")
	}
	return nil
}

func noNewPrivileges() error {
	_, _, errno := syscall.AllThreadsSyscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0)
	switch errno {
	case 0:
		return nil
	case unix.ENOTSUP:
		// With cgo, as the race detector needs it, Go does not know every thread.
		// Those that exist already keep what they may gain by a set-user-id program.
		return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	}
	return errno
}
