package postgres

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

// owner is the OS user that the cluster runs as. The zero owner is the
// current user.
type owner struct {
	name     string
	uid, gid int
	other    bool // not the current user
}

func (o owner) credential() *syscall.Credential {
	if !o.other {
		return nil
	}
	return &syscall.Credential{Uid: uint32(o.uid), Gid: uint32(o.gid)}
}

// lookupOwner returns the user. If it is DefaultUser and missing, it creates
// the system user. PostgreSQL refuses to run as root and needs an entry in the
// user database.
func lookupOwner(ctx context.Context, name string) (owner, error) {
	if name == "" {
		if os.Geteuid() != 0 {
			u, err := user.Current()
			if err != nil {
				return owner{}, errs.New(errs.FailedPrecondition, "postgres needs a named user: %w", err)
			}
			return owner{name: u.Username, uid: os.Geteuid(), gid: os.Getegid()}, nil
		}
		name = DefaultUser
	}
	u, err := user.Lookup(name)
	var unknown user.UnknownUserError
	if errors.As(err, &unknown) && name == DefaultUser {
		if err := addUser(ctx, name); err != nil {
			return owner{}, err
		}
		u, err = user.Lookup(name)
	}
	if err != nil {
		return owner{}, errs.New(errs.FailedPrecondition, "look up user %s: %w", name, err)
	}
	uid, err := strconv.Atoi(u.Uid)
	if err != nil {
		return owner{}, errs.New(errs.Internal, "user %s has uid %q", name, u.Uid)
	}
	gid, err := strconv.Atoi(u.Gid)
	if err != nil {
		return owner{}, errs.New(errs.Internal, "user %s has gid %q", name, u.Gid)
	}
	return owner{name: name, uid: uid, gid: gid, other: uid != os.Geteuid()}, nil
}

// addUser creates the system user. Another process may be doing the same, or
// hold the lock of the user database.
func addUser(ctx context.Context, name string) error {
	var out []byte
	var err error
	for deadline := time.Now().Add(10 * time.Second); ; {
		cmd := exec.CommandContext(ctx, "useradd", "--system", "--user-group", "--no-create-home", "--home-dir", "/nonexistent",
			"--shell", "/usr/sbin/nologin", "--comment", "runtime's PostgreSQL", name)
		if out, err = cmd.CombinedOutput(); err == nil {
			return nil
		}
		if _, e := user.Lookup(name); e == nil {
			return nil // made by another process
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
