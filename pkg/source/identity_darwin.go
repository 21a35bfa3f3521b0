package source

import (
	"io/fs"
	"syscall"
)

// identity returns the values that change whenever the file does; false if the
// file system does not provide them.
func identity(info fs.FileInfo) (cached, bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return cached{}, false
	}
	return cached{Size: info.Size(), Inode: st.Ino, MTime: st.Mtimespec.Nano(), CTime: st.Ctimespec.Nano()}, true
}
