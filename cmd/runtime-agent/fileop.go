package main

import (
	"errors"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/agentproto"
)

// maxDepth bounds the directories within each other that an operation enters:
// it keeps one open for each.
const maxDepth = 256

// maxAttrs bounds the extended attributes of a file that are listed, in bytes.
const maxAttrs = 64 << 10

// fileOp carries out an operation on a thread of its user.
func fileOp(c *channel, m agentproto.FileOp) agentproto.Done {
	var result []byte
	var err error
	switch m.Op {
	case agentproto.OpStat:
		var i agentproto.FileInfo
		i, err = stat(m)
		result = agentproto.FileInfos{Files: []agentproto.FileInfo{i}}.Append(nil)
	case agentproto.OpList:
		var l agentproto.FileInfos
		l, err = list(m)
		result = l.Append(nil)
	case agentproto.OpMove:
		err = move(c, m)
	case agentproto.OpCopy:
		err = withParents(m, func(from int, name string, to int, toName string) error {
			return copyTree(c, from, name, to, toName, m.Recursive, 0)
		})
	case agentproto.OpRemove:
		var dir int
		var name string
		if dir, name, err = openParent(m.View, m.Path); err == nil {
			err = remove(c, dir, name, m.Recursive, 0)
			unix.Close(dir)
		}
	case agentproto.OpMkdir:
		err = mkdir(m)
	case agentproto.OpChmod:
		err = chmod(m)
	case agentproto.OpAttrs:
		var l agentproto.Strings
		l, err = attrs(m)
		result = l.Append(nil)
	case agentproto.OpSetAttr:
		err = setAttr(m)
	case agentproto.OpSymlink:
		err = symlink(m)
	case agentproto.OpLink:
		err = withParents(m, func(from int, name string, to int, toName string) error {
			return unix.Linkat(from, name, to, toName, 0)
		})
	case agentproto.OpTimes:
		err = setTimes(m)
	case agentproto.OpTruncate:
		err = truncate(m)
	case agentproto.OpSpace:
		var s agentproto.FileSpace
		s, err = space(m)
		result = s.Append(nil)
	default:
		return agentproto.Done{Failure: agentproto.Failure{Kind: agentproto.Unsupported, Message: "the operation is not known here"}}
	}
	if err != nil {
		return agentproto.Done{Failure: failed(m.Path, err)}
	}
	return agentproto.Done{Result: result}
}

func stat(m agentproto.FileOp) (agentproto.FileInfo, error) {
	dir, name, err := openParent(m.View, m.Path)
	if err == nil {
		defer unix.Close(dir)
		return statAt(dir, name)
	}
	if !errors.Is(err, errOutside) {
		return agentproto.FileInfo{}, err
	}
	fd, err := openPath(m.View, m.Path, unix.O_PATH, 0) // a root
	if err != nil {
		return agentproto.FileInfo{}, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	return infoOf(filepath.Base(m.Path), st), err
}

func list(m agentproto.FileOp) (agentproto.FileInfos, error) {
	dir, err := openPath(m.View, m.Path, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return agentproto.FileInfos{}, err
	}
	defer unix.Close(dir)
	limit := int(min(m.Limit, agentproto.MaxInfos))
	if limit == 0 {
		limit = agentproto.MaxInfos
	}
	all, more, err := names(dir, m.After, limit)
	l := agentproto.FileInfos{More: more}
	size := 0 // of the attributes
	for at, n := range all {
		i, err := statAt(dir, n)
		if err != nil {
			continue // it is gone
		}
		if m.Recursive {
			i.Attrs = attrsAt(dir, i)
			size += len(agentproto.Strings(i.Attrs).Append(nil))
		}
		l.Files = append(l.Files, i)
		if size > maxAttrs {
			l.More = l.More || at+1 < len(all)
			break
		}
	}
	return l, err
}

// attrsAt returns the attributes of an entry of a directory; none if they cannot
// be read.
func attrsAt(dir int, i agentproto.FileInfo) agentproto.Strings {
	if kind := uint32(i.Mode) & unix.S_IFMT; kind != unix.S_IFREG && kind != unix.S_IFDIR {
		return nil
	}
	fd, err := unix.Openat(dir, i.Name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	l, err := attrsOf(fd)
	if err != nil {
		return nil
	}
	return l
}

// withParents calls f with the directories and names of Path and To.
func withParents(m agentproto.FileOp, f func(from int, name string, to int, toName string) error) error {
	from, name, err := openParent(m.View, m.Path)
	if err != nil {
		return err
	}
	defer unix.Close(from)
	to, toName, err := openParent(m.View, m.To)
	if err != nil {
		return err
	}
	defer unix.Close(to)
	return f(from, name, to, toName)
}

func move(c *channel, m agentproto.FileOp) error {
	return withParents(m, func(from int, name string, to int, toName string) error {
		flags := uint(unix.RENAME_NOREPLACE)
		if m.Recursive {
			flags = 0
		}
		err := unix.Renameat2(from, name, to, toName, flags)
		if err != unix.EXDEV {
			return err
		}
		if m.Recursive {
			if err := remove(c, to, toName, false, 0); err != nil && err != unix.ENOENT {
				return err
			}
		}
		if err := copyTree(c, from, name, to, toName, true, 0); err != nil {
			return err
		}
		return remove(c, from, name, true, 0)
	})
}

// copyTree copies a file, a link, or a directory.
func copyTree(c *channel, from int, name string, to int, toName string, recursive bool, depth int) error {
	i, err := statAt(from, name)
	switch {
	case err != nil:
		return err
	case depth > maxDepth:
		return unix.ENAMETOOLONG
	case c.isClosed():
		return errAborted
	}
	switch uint32(i.Mode) & unix.S_IFMT {
	case unix.S_IFREG:
		return copyFile(c, from, name, to, toName)
	case unix.S_IFLNK:
		return unix.Symlinkat(i.Target, to, toName)
	case unix.S_IFDIR:
		if !recursive {
			return unix.EISDIR
		}
	default:
		return errKind
	}
	source, err := unix.Openat(from, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(source)
	if err := unix.Mkdirat(to, toName, 0o700); err != nil {
		return err
	}
	target, err := unix.Openat(to, toName, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(target)
	var created, seen unix.Stat_t
	if err := unix.Fstat(target, &created); err != nil {
		return err
	}
	if err := unix.Fstat(source, &seen); err != nil {
		return err
	}
	for after, more := "", true; more; {
		var all []string
		if all, more, err = names(source, after, 1024); err != nil {
			return err
		}
		for _, n := range all {
			after = n
			var st unix.Stat_t
			if unix.Fstatat(source, n, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && st.Dev == created.Dev && st.Ino == created.Ino {
				continue // the copy is within the source
			}
			if err := copyTree(c, source, n, target, n, true, depth+1); err != nil && err != unix.ENOENT {
				return err
			}
		}
	}
	copyAttrs(source, target)
	return unix.Fchmod(target, seen.Mode&0o7777)
}

func copyFile(c *channel, from int, name string, to int, toName string) error {
	r, err := unix.Openat(from, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(r)
	var st unix.Stat_t
	if err := unix.Fstat(r, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return errKind
	}
	w, err := unix.Openat(to, toName, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	defer unix.Close(w)
	err = copyBytes(c, r, w)
	if err == nil {
		copyAttrs(r, w)
		err = unix.Fchmod(w, st.Mode&0o7777)
	}
	if err != nil {
		_ = unix.Unlinkat(to, toName, 0)
	}
	return err
}

func copyBytes(c *channel, r, w int) error {
	buf := make([]byte, 8*agentproto.Chunk)
	for !c.isClosed() {
		n, err := readFD(r, buf)
		if err != nil || n == 0 {
			return err
		}
		for b := buf[:n]; len(b) > 0; {
			m, err := unix.Write(w, b)
			if err != nil && err != unix.EINTR {
				return err
			}
			b = b[max(m, 0):]
		}
	}
	return errAborted
}

// remove removes a name, and with recursive its contents.
func remove(c *channel, dir int, name string, recursive bool, depth int) error {
	err := unix.Unlinkat(dir, name, 0)
	if err != unix.EISDIR && err != unix.EPERM {
		return err
	}
	rmErr := unix.Unlinkat(dir, name, unix.AT_REMOVEDIR)
	switch {
	case rmErr == unix.ENOTDIR:
		return err
	case rmErr != unix.ENOTEMPTY || !recursive:
		return rmErr
	case depth > maxDepth:
		return unix.ENAMETOOLONG
	}
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for more := true; more; {
		var all []string
		if all, more, err = names(fd, "", 1024); err != nil {
			return err
		}
		for _, n := range all {
			if c.isClosed() {
				return errAborted
			}
			if err := remove(c, fd, n, true, depth+1); err != nil && err != unix.ENOENT {
				return err
			}
		}
	}
	return unix.Unlinkat(dir, name, unix.AT_REMOVEDIR)
}

func mkdir(m agentproto.FileOp) error {
	if m.Recursive {
		return makeParents(m.View, m.Path)
	}
	dir, name, err := openParent(m.View, m.Path)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	perm := uint32(m.Perm & 0o7777)
	if perm == 0 {
		perm = 0o755
	}
	if err := unix.Mkdirat(dir, name, perm); err != nil {
		return err
	}
	return unix.Fchmodat(dir, name, perm, 0) // whatever the umask is
}

func chmod(m agentproto.FileOp) error {
	perm := uint32(m.Perm & 0o7777)
	return changeFile(m, func(fd int) error { return unix.Fchmod(fd, perm) }, func(dir int, name string) error {
		return unix.Fchmodat(dir, name, perm, 0)
	})
}

// changeFile changes the attributes of a file by its descriptor, or by its name,
// which is no symbolic link, if its owner may not read it.
func changeFile(m agentproto.FileOp, byFD func(fd int) error, byName func(dir int, name string) error) error {
	fd, err := openPath(m.View, m.Path, unix.O_RDONLY, 0)
	if err == nil {
		defer unix.Close(fd)
		return byFD(fd)
	}
	if !errors.Is(err, unix.EACCES) {
		return err
	}
	dir, name, err := openParent(m.View, m.Path)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	if i, err := statAt(dir, name); err != nil || uint32(i.Mode)&unix.S_IFMT == unix.S_IFLNK {
		return errors.Join(err, unix.EACCES)
	}
	return byName(dir, name)
}

const attrPrefix = "user."

func attrs(m agentproto.FileOp) (agentproto.Strings, error) {
	fd, err := openPath(m.View, m.Path, unix.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	return attrsOf(fd)
}

func attrsOf(fd int) (agentproto.Strings, error) {
	if n, err := unix.Flistxattr(fd, nil); n == 0 || err != nil {
		return nil, err
	}
	buf := make([]byte, maxAttrs)
	n, err := unix.Flistxattr(fd, buf)
	if err != nil {
		return nil, err
	}
	var l agentproto.Strings
	for name := range strings.SplitSeq(string(buf[:n]), "\x00") {
		rest, ok := strings.CutPrefix(name, attrPrefix)
		if !ok {
			continue
		}
		n, err := unix.Fgetxattr(fd, name, buf)
		if err != nil {
			continue // gone
		}
		l = append(l, rest, string(buf[:n]))
	}
	if len(l.Append(nil)) > maxAttrs {
		return nil, unix.EFBIG
	}
	return l, nil
}

// copyAttrs copies attributes of users, as far as the target can have them.
func copyAttrs(from, to int) {
	l, err := attrsOf(from)
	if err != nil {
		return
	}
	for i := 0; i+1 < len(l); i += 2 {
		_ = unix.Fsetxattr(to, attrPrefix+l[i], []byte(l[i+1]), 0)
	}
}

func setAttr(m agentproto.FileOp) error {
	fd, err := openPath(m.View, m.Path, unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if m.To == "" || len(m.To) > 200 || len(m.Value) > 32<<10 {
		return unix.EINVAL
	}
	if len(m.Value) == 0 && !m.Recursive {
		if err := unix.Fremovexattr(fd, attrPrefix+m.To); err != unix.ENODATA {
			return err
		}
		return nil
	}
	return unix.Fsetxattr(fd, attrPrefix+m.To, m.Value, 0)
}
