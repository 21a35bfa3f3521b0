package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/agentproto"
)

// Every path of a caller is resolved by openPath, which follows neither links of
// procfs, which lead into the agent, nor links out of the roots.

var (
	errOutside = errors.New("it is outside the directories that may be used")
	errKernel  = errors.New("it is a file of the kernel")
	errKind    = errors.New("it is no ordinary file")
)

// absolute returns a path from the working directory of the sandbox, without
// resolving a link. An empty path stays empty, which is invalid.
func (a *agent) absolute(path string) string {
	if path == "" || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join("/", a.claims.current().dir, path)
}

// decodeFileOp reads an operation, whose paths it makes absolute.
func (a *agent) decodeFileOp(params []byte) (agentproto.FileOp, error) {
	o, err := agentproto.DecodeFileOp(params)
	o.Path = a.absolute(o.Path)
	if o.Op == agentproto.OpMove || o.Op == agentproto.OpCopy || o.Op == agentproto.OpLink {
		o.To = a.absolute(o.To)
	}
	return o, err
}

// place is a path below a root: a descriptor, or AT_FDCWD for an absolute path.
type place struct {
	root int
	rel  string
	how  uint64
}

// locate finds the root of a path. The caller closes it.
func locate(v agentproto.View, path string) (place, error) {
	if !filepath.IsAbs(path) || strings.IndexByte(path, 0) >= 0 {
		return place{}, unix.EINVAL
	}
	path = filepath.Clean(path)
	if len(v.Roots) == 0 {
		return place{root: unix.AT_FDCWD, rel: path, how: unix.RESOLVE_NO_MAGICLINKS}, nil
	}
	for _, r := range v.Roots {
		rel, err := filepath.Rel(filepath.Clean(r), path)
		if err != nil || rel == ".." || strings.HasPrefix(rel, "../") {
			continue
		}
		fd, err := unix.Open(r, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return place{}, err
		}
		return place{root: fd, rel: rel, how: unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_BENEATH}, nil
	}
	return place{}, errOutside
}

func (p place) close() {
	if p.root != unix.AT_FDCWD {
		unix.Close(p.root)
	}
}

func (p place) open(rel string, flags int, perm uint32) (int, error) {
	how := unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Resolve: p.how}
	if flags&unix.O_CREAT != 0 {
		how.Mode = uint64(perm)
	}
	fd, err := unix.Openat2(p.root, rel, &how)
	if err == unix.EXDEV && p.how&unix.RESOLVE_BENEATH != 0 {
		return -1, errOutside
	}
	if err == unix.ELOOP && flags&unix.O_NOFOLLOW == 0 {
		return -1, errOutside // of procfs, or too many
	}
	if err != nil {
		return -1, err
	}
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil || st.Type == unix.PROC_SUPER_MAGIC {
		unix.Close(fd)
		if err == nil {
			err = errKernel
		}
		return -1, err
	}
	return fd, nil
}

// openPath opens a file. Of a pipe or a device it does not wait for the other
// side.
func openPath(v agentproto.View, path string, flags int, perm uint32) (int, error) {
	p, err := locate(v, path)
	if err != nil {
		return -1, err
	}
	defer p.close()
	if flags&unix.O_PATH == 0 {
		flags |= unix.O_NONBLOCK | unix.O_NOCTTY
	}
	return p.open(p.rel, flags, perm)
}

// openParent opens the directory of a path and returns the last name. A root
// itself has no parent.
func openParent(v agentproto.View, path string) (dir int, name string, err error) {
	p, err := locate(v, path)
	if err != nil {
		return -1, "", err
	}
	defer p.close()
	name = filepath.Base(p.rel)
	if p.rel == "." || name == "/" {
		return -1, "", errOutside
	}
	dir, err = p.open(filepath.Dir(p.rel), unix.O_PATH|unix.O_DIRECTORY, 0)
	return dir, name, err
}

// openRegular is openPath for an ordinary file.
func openRegular(v agentproto.View, path string, flags int, perm uint32) (int, unix.Stat_t, error) {
	var st unix.Stat_t
	fd, err := openPath(v, path, flags, perm)
	if err != nil {
		return -1, st, err
	}
	if err = unix.Fstat(fd, &st); err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		err = errKind
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			err = unix.EISDIR
		}
	}
	if err != nil {
		unix.Close(fd)
		return -1, st, err
	}
	return fd, st, nil
}

// failed is the failure for an error of a file.
func failed(what string, err error) agentproto.Failure {
	f := agentproto.Failure{Kind: agentproto.Wrong, Message: fmt.Sprintf("%s: %v", what, err)}
	switch {
	case errors.Is(err, unix.ENOENT):
		f.Kind = agentproto.NotFound
	case errors.Is(err, unix.EEXIST):
		f.Kind = agentproto.Exists
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM), errors.Is(err, unix.EROFS), errors.Is(err, errOutside), errors.Is(err, errKernel):
		f.Kind = agentproto.Denied
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENAMETOOLONG), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.EISDIR),
		errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTSUP), errors.Is(err, errKind):
		f.Kind = agentproto.Invalid
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT), errors.Is(err, unix.EFBIG), errors.Is(err, unix.EMFILE),
		errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOMEM):
		f.Kind = agentproto.Exhausted
	}
	return f
}

func infoOf(name string, st unix.Stat_t) agentproto.FileInfo {
	return agentproto.FileInfo{
		Name: name, Mode: uint64(st.Mode), Size: st.Size, ModTime: st.Mtim.Nano(), UID: uint64(st.Uid), GID: uint64(st.Gid),
	}
}

// statAt describes a name in a directory.
func statAt(dir int, name string) (agentproto.FileInfo, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return agentproto.FileInfo{}, err
	}
	i := infoOf(name, st)
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		b := make([]byte, 4096)
		if n, err := unix.Readlinkat(dir, name, b); err == nil {
			i.Target = string(b[:n])
		}
	}
	return i, nil
}

// names returns the names of a directory that follow after, in order, at most
// limit of them.
func names(dir int, after string, limit int) (list []string, more bool, err error) {
	fd, err := unix.Openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, false, err
	}
	f := os.NewFile(uintptr(fd), "directory")
	defer f.Close()
	for {
		batch, err := f.Readdirnames(1024)
		for _, n := range batch {
			if n > after {
				list = append(list, n)
			}
		}
		if len(list) > limit {
			slices.Sort(list)
			clear(list[limit:])
			list, more = list[:limit], true
		}
		if err != nil {
			break // the end; of a directory that was removed too
		}
	}
	slices.Sort(list)
	return list, more, nil
}
