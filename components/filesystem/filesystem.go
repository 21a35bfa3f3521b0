// Package filesystem makes and mounts the file systems of block devices: ext4
// and xfs. It uses the tools of the machine (e2fsprogs, xfsprogs) to make one and
// to let it grow.
//
// A mount that it made outlives the process.
package filesystem

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/errs"
)

// Kind is a kind of file system.
type Kind string

// Kinds.
const (
	Ext4 Kind = "ext4"
	XFS  Kind = "xfs"
)

// packages are the Debian packages of the tools.
var packages = map[string]string{"mkfs.ext4": "e2fsprogs", "resize2fs": "e2fsprogs", "e2fsck": "e2fsprogs", "mkfs.xfs": "xfsprogs", "xfs_growfs": "xfsprogs"}

// run runs a tool to its end. FailedPrecondition: the machine does not have it.
func run(ctx context.Context, name string, args ...string) error {
	path, err := exec.LookPath(name)
	if err != nil {
		return errs.New(errs.FailedPrecondition, "%s is not on this machine", name).With("reason", "no_tool").
			WithHint("install it: apt-get install %s", packages[name])
	}
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Stdout, cmd.Stderr = &out, &out
	err = cmd.Run()
	if name == "e2fsck" && cmd.ProcessState != nil && cmd.ProcessState.ExitCode() == 1 {
		return nil // it has repaired something
	}
	if err != nil {
		return errs.New(errs.Unavailable, "%s: %w: %s", name, err, strings.TrimSpace(out.String()))
	}
	return nil
}

// Make makes an empty file system on a device, whatever was on it.
func Make(ctx context.Context, device string, kind Kind) error {
	switch kind {
	case Ext4:
		return run(ctx, "mkfs.ext4", "-q", "-F", "-m", "0", "-E", "nodiscard", device)
	case XFS:
		return run(ctx, "mkfs.xfs", "-q", "-f", "-K", device)
	}
	return errs.New(errs.InvalidArgument, "there is no file system %q", kind)
}

// Mount mounts a device on a directory, which it makes. Programs in it get no
// privileges from it, and devices in it cannot be used.
func Mount(device, dir string, kind Kind) error {
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return errs.New(errs.FailedPrecondition, "make a mount point: %w", err)
	}
	options := "discard"
	if kind == XFS {
		options += ",nouuid" // a clone has the UUID of its origin
	}
	if err := unix.Mount(device, dir, string(kind), unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		class := errs.Unavailable
		if errors.Is(err, unix.EUCLEAN) || errors.Is(err, unix.EINVAL) {
			class = errs.Corrupt
		}
		return errs.New(class, "mount %s (%s) on %s: %w", device, kind, dir, err).WithHint("`dmesg` says what the kernel found")
	}
	// Databases refuse a directory that is not empty. It stays if a check of the
	// file system has put anything there, and mkfs and e2fsck make it again.
	if err := unix.Rmdir(filepath.Join(dir, "lost+found")); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTEMPTY) {
		return errs.New(errs.Unavailable, "remove an empty lost+found: %w", err)
	}
	return nil
}

// Device returns the device that is mounted on a directory, "" if none is.
func Device(dir string) (string, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", errs.New(errs.Unavailable, "read the mounts: %w", err)
	}
	device := ""
	for line := range strings.Lines(string(b)) {
		mount, source, ok := strings.Cut(line, " - ")
		at, from := strings.Fields(mount), strings.Fields(source)
		if ok && len(at) > 4 && len(from) > 1 && at[4] == dir {
			device = from[1] // a later mount covers an earlier one
		}
	}
	return device, nil
}

// Unmount writes everything to the device and unmounts a directory, and removes
// it. FailedPrecondition: a program of the machine uses it.
func Unmount(dir string) error {
	if err := UnmountOnly(dir); err != nil {
		return err
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
		return errs.New(errs.Unavailable, "remove a mount point: %w", err)
	}
	return nil
}

// UnmountOnly is Unmount for a caller that removes the directory later.
func UnmountOnly(dir string) error {
	switch err := unix.Unmount(dir, 0); {
	case errors.Is(err, unix.EBUSY):
		return errs.New(errs.FailedPrecondition, "a program of this machine uses files in %s", dir).With("reason", "busy").
			WithHint("`fuser -vm %s` names it", dir)
	case err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT): // not mounted, not there
		return errs.New(errs.Unavailable, "unmount %s: %w", dir, err)
	}
	return nil
}

// Abandon unmounts a directory whose device is gone. Programs that use it get
// errors.
func Abandon(dir string) error {
	if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return errs.New(errs.Unavailable, "unmount %s: %w", dir, err)
	}
	return nil
}

// Sync returns when everything that was written to a mounted file system is on
// its device.
func Sync(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return errs.New(errs.Unavailable, "open %s: %w", dir, err)
	}
	defer f.Close()
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		return errs.New(errs.Unavailable, "sync %s: %w", dir, err)
	}
	return nil
}

// Used returns how many bytes the files of a mounted file system take.
func Used(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, errs.New(errs.Unavailable, "usage of %s: %w", dir, err)
	}
	return int64(st.Blocks-st.Bfree) * st.Bsize, nil
}

// Open makes the root directory of a new file system writable for every user: the
// user of a sandbox is not known when its disk is made.
func Open(dir string) error {
	if err := os.Chmod(dir, 0o777); err != nil {
		return errs.New(errs.Unavailable, "open %s to every user: %w", dir, err)
	}
	return Sync(dir)
}
