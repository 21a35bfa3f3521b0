package loop

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/internal/isolatedthread"
	"miren.dev/runtime/pkg/errs"
)

// System calls that may wait for the disk run on an isolated thread: this process serves the disk.

const (
	loopMajor = 7
	pollEvery = 5 * time.Millisecond
)

// loopMu keeps callers of this process from choosing the same free device.
var loopMu sync.Mutex

func loopPath(n int) string { return "/dev/loop" + strconv.Itoa(n) }

func loopSys(n int, elem ...string) string {
	return filepath.Join(append([]string{"/sys/block", "loop" + strconv.Itoa(n)}, elem...)...)
}

// configureLoop makes a loop device of the file at path, which has the name
// name, and returns its number.
func configureLoop(ctx context.Context, path, name string) (int, error) {
	loopMu.Lock()
	defer loopMu.Unlock()
	for {
		n := -1
		err := isolatedthread.Do(func() (err error) {
			n, err = tryLoop(path, name)
			return err
		})
		switch {
		case err == nil:
			return n, nil
		case !errors.Is(err, unix.EBUSY): // another process was faster
			return -1, err
		case ctx.Err() != nil:
			return -1, errs.Wrap(ctx.Err(), "find a free loop device")
		}
	}
}

func tryLoop(path, name string) (int, error) {
	control, err := unix.Open("/dev/loop-control", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, errs.Wrap(err, "open /dev/loop-control")
	}
	n, err := unix.IoctlRetInt(control, unix.LOOP_CTL_GET_FREE)
	if err != nil {
		return -1, errs.Wrap(err, "find a free loop device")
	}
	device, err := openLoop(n, unix.O_RDWR)
	if err != nil {
		return -1, err
	}
	file, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, errs.Wrap(err, "open %s", path)
	}
	config := unix.LoopConfig{Fd: uint32(file), Size: lsvd.BlockSize}
	config.Info.Flags = unix.LO_FLAGS_DIRECT_IO
	copy(config.Info.File_name[:len(config.Info.File_name)-1], name)
	if err := unix.IoctlLoopConfigure(device, &config); err != nil {
		return -1, errs.Wrap(err, "configure %s", loopPath(n))
	}
	if b, err := os.ReadFile(loopSys(n, "loop/dio")); err != nil || strings.TrimSpace(string(b)) != "1" {
		unix.IoctlSetInt(device, unix.LOOP_CLR_FD, 0)
		return -1, errs.New(errs.Unimplemented, "the kernel refuses direct I/O of a loop device on FUSE (%q, %v)", b, err)
	}
	return n, nil
}

// openLoop opens a loop device; it makes the node where the system does not.
func openLoop(n, flags int) (int, error) {
	fd, err := unix.Open(loopPath(n), flags|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		if err := unix.Mknod(loopPath(n), unix.S_IFBLK|0o600, int(unix.Mkdev(loopMajor, uint32(n)))); err != nil && !errors.Is(err, unix.EEXIST) {
			return -1, errs.Wrap(err, "make %s", loopPath(n))
		}
		fd, err = unix.Open(loopPath(n), flags|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		return -1, errs.Wrap(err, "open %s", loopPath(n))
	}
	return fd, nil
}

// backing returns the name of the backing file of a loop device, "" if it has none.
func backing(n int) (string, error) {
	b, err := os.ReadFile(loopSys(n, "loop/backing_file"))
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EINVAL) {
		return "", nil
	}
	if err != nil {
		return "", errs.Wrap(err, "look at %s", loopPath(n))
	}
	path := strings.TrimSuffix(strings.TrimSuffix(string(b), "\n"), " (deleted)")
	return filepath.Base(path), nil
}

// loops returns the backing files' names of all loop devices of this package.
func loops() (map[int]string, error) {
	paths, err := filepath.Glob("/sys/block/loop*")
	if err != nil {
		return nil, err
	}
	found := map[int]string{}
	for _, p := range paths {
		n, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(p), "loop"))
		if err != nil {
			continue
		}
		name, err := backing(n)
		if err != nil {
			return nil, err
		}
		if strings.HasPrefix(name, "lsvd:") {
			found[n] = name
		}
	}
	return found, nil
}

// findLoop returns the number of the device that stands on a file, or -1.
func findLoop(name string) (int, error) {
	all, err := loops()
	for n, b := range all {
		if b == name {
			return n, nil
		}
	}
	return -1, err
}

// settleTime is how long a device that is to be detached may be in use: a
// namespace that was just made may still have mounted what was unmounted.
const settleTime = 3 * time.Second

// clearLoop takes a loop device from the file name, once no process has it open.
// It returns an error if the device is mounted or claimed.
func clearLoop(ctx context.Context, n int, name string) error {
	if b, err := backing(n); err != nil || b != name {
		return err // cleared before
	}
	var busy error
	settle, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	if err := until(settle, func() (bool, error) {
		err := isolatedthread.Do(func() error {
			fd, err := openLoop(n, unix.O_RDWR|unix.O_EXCL)
			if err != nil {
				return err
			}
			return errs.Wrap(unix.IoctlSetInt(fd, unix.LOOP_CLR_FD, 0), "clear %s", loopPath(n))
		})
		if busy = err; errors.Is(err, unix.EBUSY) {
			return false, nil
		}
		return true, err
	}); errors.Is(busy, unix.EBUSY) {
		return errs.New(errs.FailedPrecondition, "%s is in use", loopPath(n)).WithHint("unmount what is mounted on it")
	} else if err != nil {
		return err
	}
	return errs.Wrap(until(ctx, func() (bool, error) {
		b, err := backing(n)
		return b != name, err
	}), "wait until %s is closed", loopPath(n))
}

// forceLoop takes a loop device from the file name as soon as it is unused.
func forceLoop(n int, name string) error {
	if b, err := backing(n); err != nil || b != name {
		return err
	}
	err := isolatedthread.Do(func() error {
		fd, err := openLoop(n, unix.O_RDONLY)
		if err != nil {
			return err
		}
		return unix.IoctlSetInt(fd, unix.LOOP_CLR_FD, 0)
	})
	if errors.Is(err, unix.ENXIO) {
		return nil // not configured any more
	}
	return errs.Wrap(err, "clear %s", loopPath(n))
}

// resizeLoop has the kernel look how large the file is now.
func resizeLoop(n int, path string) error {
	return isolatedthread.Do(func() error {
		var st unix.Statx_t
		if err := unix.Statx(unix.AT_FDCWD, path, unix.AT_STATX_FORCE_SYNC, unix.STATX_SIZE, &st); err != nil {
			return errs.Wrap(err, "stat %s", path)
		}
		fd, err := openLoop(n, unix.O_RDWR)
		if err != nil {
			return err
		}
		return unix.IoctlSetInt(fd, unix.LOOP_SET_CAPACITY, 0)
	})
}

func loopSize(n int) (int64, error) {
	b, err := os.ReadFile(loopSys(n, "size"))
	if err != nil {
		return 0, errs.Wrap(err, "look at %s", loopPath(n))
	}
	var sectors int64
	if _, err := fmt.Fscan(bytes.NewReader(b), &sectors); err != nil {
		return 0, errs.Wrap(err, "look at %s", loopPath(n))
	}
	return sectors * 512, nil
}

// until polls what the kernel gives no notice of.
func until(ctx context.Context, f func() (bool, error)) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		if ok, err := f(); ok || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
