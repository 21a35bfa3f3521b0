package loop

import (
	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/errs"
)

// Kind is a way to make a block device of a disk.
type Kind string

// The kinds, best first.
const (
	UBLK Kind = "ublk" // the kernel's userspace block driver
	NBD  Kind = "nbd"  // the kernel's NBD client
	FUSE Kind = "fuse" // a loop device on a FUSE file
)

// Support says whether a host and this program can do a kind.
type Support struct {
	Kind Kind
	Err  error // why not; nil if it can be used
}

// Detect looks what this host has to offer, best first. [Attach] uses FUSE,
// the only kind that this program has so far.
func Detect() []Support {
	built := func(err error) error {
		if err == nil {
			err = errs.New(errs.Unimplemented, "the kernel has it, this program cannot use it yet")
		}
		return err
	}
	loop := openable("/dev/loop-control")
	if loop == nil {
		loop = openable("/dev/fuse")
	}
	return []Support{
		{UBLK, built(openable("/dev/ublk-control"))},
		{NBD, built(openable("/dev/nbd0"))},
		{FUSE, loop},
	}
}

func openable(path string) error {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return errs.Wrap(err, "open %s", path)
	}
	unix.Close(fd)
	return nil
}
