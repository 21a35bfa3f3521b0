package source

import (
	"io/fs"
	"syscall"
)

// identity returns what tells that a file has not changed; false if the file
// system does not say.
func identity(info fs.FileInfo) (cached, bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return cached{}, false
	}
	return cached{Size: info.Size(), Inode: st.Ino, MTime: st.Mtimespec.Nano(), CTime: st.Ctimespec.Nano()}, true
}
