// Package mounts removes mounts that a process left on this machine.
package mounts

import (
	"errors"
	"io/fs"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// UnmountBelow unmounts everything below the directories, the deepest first. The paths are absolute, without links.
func UnmountBelow(dirs ...string) error {
	mounts, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return !slices.ContainsFunc(dirs, func(d string) bool { return strings.HasPrefix(m.Mountpoint, d+"/") }), false
	})
	if err != nil {
		return err
	}
	for _, m := range slices.Backward(mounts) {
		if err := unix.Unmount(m.Mountpoint, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			return &fs.PathError{Op: "unmount", Path: m.Mountpoint, Err: err}
		}
	}
	return nil
}
