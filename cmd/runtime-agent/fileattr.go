package main

import (
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/agentproto"
)

// symlink makes a symbolic link, whose target need not exist and is not resolved.
func symlink(m agentproto.FileOp) error {
	if m.To == "" || strings.IndexByte(m.To, 0) >= 0 {
		return unix.EINVAL
	}
	dir, name, err := openParent(m.View, m.Path)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	return unix.Symlinkat(m.To, dir, name)
}

func setTimes(m agentproto.FileOp) error {
	ts := []unix.Timespec{unix.NsecToTimespec(m.Accessed), unix.NsecToTimespec(m.Modified)}
	return changeFile(m, func(fd int) error {
		// Package unix has no futimens, which is utimensat without a path.
		_, _, errno := unix.Syscall6(unix.SYS_UTIMENSAT, uintptr(fd), 0, uintptr(unsafe.Pointer(&ts[0])), 0, 0, 0)
		if errno != 0 {
			return errno
		}
		return nil
	}, func(dir int, name string) error {
		return unix.UtimesNanoAt(dir, name, ts, unix.AT_SYMLINK_NOFOLLOW)
	})
}

func truncate(m agentproto.FileOp) error {
	fd, _, err := openRegular(m.View, m.Path, unix.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Ftruncate(fd, m.Size)
}

func space(m agentproto.FileOp) (agentproto.FileSpace, error) {
	fd, err := openPath(m.View, m.Path, unix.O_PATH, 0)
	if err != nil {
		return agentproto.FileSpace{}, err
	}
	defer unix.Close(fd)
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return agentproto.FileSpace{}, err
	}
	size := uint64(st.Bsize)
	return agentproto.FileSpace{Bytes: st.Blocks * size, FreeBytes: st.Bavail * size, Files: st.Files, FreeFiles: st.Ffree}, nil
}
