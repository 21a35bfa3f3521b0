// Package sysuser has the users of the system that parts of an installation run
// as. It finds or creates them, gives them directories, and makes the running
// process one of them.
package sysuser

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"strings"
	"syscall"
	"time"

	"miren.dev/runtime/pkg/errs"
)

// User is a user of the system. The zero User is root.
type User struct {
	Name     string // for messages; of a user without an entry the number
	UID, GID int
}

// Find returns the user with a name or a number. The group of a number without
// an entry in the user database has the same number. FailedPrecondition if there
// is no user of that name.
func Find(name string) (User, error) {
	lookup := user.Lookup
	n, notNumber := strconv.ParseUint(name, 10, 31)
	if notNumber == nil {
		lookup = user.LookupId
	}
	u, err := lookup(name)
	var unknown user.UnknownUserError
	var unknownID user.UnknownUserIdError
	switch {
	case errors.As(err, &unknownID):
		return User{Name: name, UID: int(n), GID: int(n)}, nil
	case errors.As(err, &unknown):
		return User{}, errs.New(errs.FailedPrecondition, "there is no user %q", name)
	case err != nil:
		return User{}, errs.New(errs.FailedPrecondition, "look up user %s: %w", name, err)
	}
	uid, err := strconv.Atoi(u.Uid)
	if err != nil {
		return User{}, errs.New(errs.Internal, "user %s has uid %q", name, u.Uid)
	}
	gid, err := strconv.Atoi(u.Gid)
	if err != nil {
		return User{}, errs.New(errs.Internal, "user %s has gid %q", name, u.Gid)
	}
	return User{Name: u.Username, UID: uid, GID: gid}, nil
}

// Current returns the user that this process runs as.
func Current() User {
	uid := os.Geteuid()
	u := User{Name: strconv.Itoa(uid), UID: uid, GID: os.Getegid()}
	if e, err := user.LookupId(u.Name); err == nil {
		u.Name = e.Username
	}
	return u
}

// Ensure is Find for a name, and creates a system user if there is none of that name.
// Comment says in the user database what it is for.
func Ensure(ctx context.Context, name, comment string) (User, error) {
	var unknown user.UnknownUserError
	if _, err := user.Lookup(name); errors.As(err, &unknown) {
		if err := add(ctx, name, comment); err != nil {
			return User{}, err
		}
	}
	return Find(name)
}

// lockWait bounds how long add waits for the lock of the user database.
const lockWait = 10 * time.Second

// add creates the system user. Another process may do the same meanwhile, or
// hold the lock of the user database.
func add(ctx context.Context, name, comment string) error {
	var out []byte
	var err error
	for deadline := time.Now().Add(lockWait); ; {
		cmd := exec.CommandContext(ctx, "useradd", "--system", "--user-group", "--no-create-home", "--home-dir", "/nonexistent",
			"--shell", "/usr/sbin/nologin", "--comment", comment, name)
		if out, err = cmd.CombinedOutput(); err == nil {
			return nil
		}
		if _, e := user.Lookup(name); e == nil {
			return nil // created by another process
		}
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 1 || time.Now().After(deadline) { // 1: the database is locked
			break
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
	return errs.New(errs.FailedPrecondition, "create system user %s: %w: %s", name, err, strings.TrimSpace(string(out))).
		WithHint("create it yourself: useradd --system --no-create-home --shell /usr/sbin/nologin %s", name)
}

// Other reports whether this process runs as another user.
func (u User) Other() bool { return u.UID != os.Geteuid() }

// Credential returns what makes a child process run as the user, nil if this
// process does already.
func (u User) Credential() *syscall.Credential {
	if !u.Other() {
		return nil
	}
	return &syscall.Credential{Uid: uint32(u.UID), Gid: uint32(u.GID)}
}
