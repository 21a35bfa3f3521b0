package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/agentproto"
)

// maxIdentityFile bounds a file whose lines are replaced, in bytes.
const maxIdentityFile = 1 << 20

// replaceIdentity replaces lines of a file of the guest. The guest may have put anything in its place: only a
// regular file that no link leads to is changed.
func replaceIdentity(f agentproto.IdentityFile) error {
	dir, err := unix.Open(filepath.Dir(f.Path), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("open directory", err)
	}
	defer unix.Close(dir)
	name := filepath.Base(f.Path)
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err == unix.ENOENT || err == unix.ELOOP {
		return nil
	}
	if err != nil {
		return os.NewSyscallError("open", err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return os.NewSyscallError("stat", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size > maxIdentityFile {
		return nil
	}
	current := make([]byte, st.Size)
	for n := 0; n < len(current); {
		k, err := readFD(fd, current[n:])
		if err != nil {
			return os.NewSyscallError("read", err)
		}
		if k == 0 {
			current = current[:n]
		}
		n += k
	}
	content, changed := replaceLines(string(current), f.Old, f.New)
	if !changed {
		return nil
	}
	return swapFile(dir, name, content, st)
}

// swapFile puts a new file with the owner and the mode of st in the place of name.
func swapFile(dir int, name, content string, st unix.Stat_t) error {
	tmp := "." + name + ".runtime"
	if err := unix.Unlinkat(dir, tmp, 0); err != nil && err != unix.ENOENT {
		return os.NewSyscallError("unlink", err)
	}
	fd, err := unix.Openat(dir, tmp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return os.NewSyscallError("create", err)
	}
	defer unix.Close(fd)
	n, err := unix.Write(fd, []byte(content))
	if err == nil && n < len(content) {
		err = unix.ENOSPC
	}
	if err == nil {
		err = unix.Fchmod(fd, st.Mode&0o777) // while the agent owns the file
	}
	if err == nil {
		err = unix.Fchown(fd, int(st.Uid), int(st.Gid))
	}
	if err == nil {
		err = unix.Renameat(dir, tmp, dir, name)
	}
	if err != nil {
		_ = unix.Unlinkat(dir, tmp, 0)
		return fmt.Errorf("replace: %w", err)
	}
	return nil
}

// replaceLines removes the lines that are in old and not in now, and puts those of now that are not in old in the place of
// the first.
func replaceLines(current, old, now string) (_ string, changed bool) {
	removed, added := difference(old, now), difference(now, old)
	var out strings.Builder
	for line := range strings.Lines(current) {
		if !slices.Contains(removed, strings.TrimSuffix(line, "\n")) {
			out.WriteString(line)
			continue
		}
		if !changed {
			for _, a := range added {
				out.WriteString(a + "\n")
			}
		}
		changed = true
	}
	return out.String(), changed
}

// difference returns the lines of a that are not in b.
func difference(a, b string) (lines []string) {
	of := strings.Split(b, "\n")
	for line := range strings.Lines(a) {
		if line = strings.TrimSuffix(line, "\n"); !slices.Contains(of, line) {
			lines = append(lines, line)
		}
	}
	return lines
}
