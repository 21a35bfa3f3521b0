package filesystem

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/errs"
)

// GrowsMounted reports whether this process can let a file system grow that is
// mounted. ext4 needs CAP_SYS_RESOURCE for it, which containers and some virtual
// machines do not have.
func GrowsMounted(kind Kind) bool {
	if kind == XFS {
		return true
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&header, &caps[0]); err != nil {
		return false
	}
	return caps[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
}

// Grow lets a file system that is mounted on dir have all of its device.
func Grow(ctx context.Context, device, dir string, kind Kind) error {
	if kind == XFS {
		return run(ctx, "xfs_growfs", dir)
	}
	return run(ctx, "resize2fs", device)
}

// GrowUnmounted lets an ext4 file system that is not mounted have all of its
// device. FailedPrecondition: the device is mounted or claimed, be it where only
// other processes see it.
func GrowUnmounted(ctx context.Context, device string) error {
	// The tools look for mounts of this process only.
	fd, err := unix.Open(device, unix.O_RDONLY|unix.O_EXCL|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.EBUSY) {
		return errs.New(errs.FailedPrecondition, "%s is mounted in a sandbox", device).With("reason", "busy")
	}
	if err != nil {
		return errs.New(errs.Unavailable, "open %s: %w", device, err)
	}
	_ = unix.Close(fd) // nothing was written
	// resize2fs asks for a check first; -p makes safe repairs.
	if err := run(ctx, "e2fsck", "-f", "-p", device); err != nil {
		return err
	}
	return run(ctx, "resize2fs", device)
}
