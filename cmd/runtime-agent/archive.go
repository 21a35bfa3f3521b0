package main

import (
	"archive/tar"
	"bufio"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/agentproto"
)

// archive is the work of KindArchive: a tar of a directory's contents, or of a
// file.
func (a *agent) archive(c *channel, m agentproto.FileOp) {
	f := a.asUserOf(a.users.long, m.View, func() agentproto.Failure {
		dir, name, err := archiveRoot(m)
		if err != nil {
			return failed(m.Path, err)
		}
		defer unix.Close(dir)
		c.ready(nil, true)
		w := bufio.NewWriterSize(outWriter{c}, batch)
		t := tar.NewWriter(w)
		if name == "" {
			err = archiveDir(c, t, dir, "", 0)
		} else {
			err = archiveFile(c, t, dir, name, name, 0)
		}
		if err == nil {
			err = t.Close()
		}
		if err == nil {
			err = w.Flush()
		}
		if err != nil {
			return failed(m.Path, err)
		}
		return agentproto.Failure{}
	})
	if f.Kind != agentproto.OK {
		c.fail(f)
		return
	}
	c.out.end()
	c.finish(agentproto.Done{})
}

// archiveRoot opens a directory, or the directory of a file and its name.
func archiveRoot(m agentproto.FileOp) (dir int, name string, err error) {
	dir, err = openPath(m.View, m.Path, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if errors.Is(err, unix.ENOTDIR) {
		return openParent(m.View, m.Path)
	}
	return dir, "", err
}

// outWriter writes the output of a channel.
type outWriter struct{ c *channel }

func (w outWriter) Write(b []byte) (int, error) {
	if w.c.out.isDropped() {
		return 0, errAborted
	}
	w.c.out.add(b)
	w.c.flush()
	return len(b), nil
}

func archiveDir(c *channel, t *tar.Writer, dir int, path string, depth int) error {
	if depth > maxDepth {
		return unix.ENAMETOOLONG
	}
	for after, more := "", true; more; {
		all, m, err := names(dir, after, 1024)
		if err != nil {
			return err
		}
		more = m
		for _, n := range all {
			after = n
			if err := archiveFile(c, t, dir, n, path+n, depth); err != nil && !errors.Is(err, unix.ENOENT) {
				return err
			}
		}
	}
	return nil
}

// archiveFile adds a name of a directory as path. Sockets and the like are left
// out.
func archiveFile(c *channel, t *tar.Writer, dir int, name, path string, depth int) error {
	i, err := statAt(dir, name)
	if err != nil {
		return err
	}
	h := &tar.Header{
		Name: path, Mode: int64(i.Mode & 0o7777), Uid: int(i.UID), Gid: int(i.GID), ModTime: time.Unix(0, i.ModTime), Format: tar.FormatPAX,
	}
	switch uint32(i.Mode) & unix.S_IFMT {
	case unix.S_IFLNK:
		h.Typeflag, h.Linkname = tar.TypeSymlink, i.Target
		return t.WriteHeader(h)
	case unix.S_IFDIR:
		fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		h.Typeflag, h.Name = tar.TypeDir, path+"/"
		if err := t.WriteHeader(h); err != nil {
			return err
		}
		return archiveDir(c, t, fd, h.Name, depth+1)
	case unix.S_IFREG:
		fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		f := os.NewFile(uintptr(fd), name)
		defer f.Close()
		h.Typeflag, h.Size = tar.TypeReg, i.Size
		if err := t.WriteHeader(h); err != nil {
			return err
		}
		n, err := io.CopyN(t, f, i.Size)
		for err == io.EOF && n < i.Size { // it became shorter
			zeros := make([]byte, min(i.Size-n, int64(batch)))
			n += int64(len(zeros))
			if _, werr := t.Write(zeros); werr != nil {
				return werr
			}
		}
		if err == io.EOF {
			err = nil
		}
		return err
	}
	return nil
}

// extract is the work of KindExtract: it unpacks the input into a directory.
func (a *agent) extract(c *channel, m agentproto.FileOp) {
	f := a.asUserOf(a.users.long, m.View, func() agentproto.Failure {
		if m.Recursive {
			if err := makeParents(m.View, filepath.Clean(m.Path)); err != nil {
				return failed(m.Path, err)
			}
		}
		dir, err := openPath(m.View, m.Path, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		if err != nil {
			return failed(m.Path, err)
		}
		defer unix.Close(dir)
		c.in.direct(0)
		c.ready(nil, false)
		t := tar.NewReader(bufio.NewReaderSize(c.in, batch))
		x := extraction{root: place{root: dir, how: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS}}
		for {
			h, err := t.Next()
			if err == io.EOF {
				break
			}
			if err == nil {
				err = x.add(t, h)
			}
			if errors.Is(err, io.ErrClosedPipe) {
				err = errAborted
			}
			if errors.Is(err, tar.ErrHeader) || errors.Is(err, io.ErrUnexpectedEOF) {
				return agentproto.Failure{Kind: agentproto.Invalid, Message: "the archive is not a complete tar file"}
			}
			if err != nil {
				name := m.Path
				if h != nil {
					name = h.Name
				}
				return failed(name, err)
			}
		}
		_, err = io.Copy(io.Discard, c.in) // what follows the end
		if err == nil {
			err = x.finish()
		}
		if err != nil {
			return failed(m.Path, err)
		}
		return agentproto.Failure{}
	})
	if f.Kind != agentproto.OK {
		c.fail(f)
		return
	}
	c.finish(agentproto.Done{})
}

// extraction unpacks an archive. An entry is made below the root without
// following a link, also one that the archive itself made, and replaces
// the previous file.
type extraction struct {
	root place
	dirs []*tar.Header // to be given their modes at the end
}

// parent opens the directory of an entry, which it makes if it is missing.
func (x *extraction) parent(rel string) (int, error) {
	dir := filepath.Dir(rel)
	fd, err := x.root.open(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if !errors.Is(err, unix.ENOENT) || dir == "." {
		return fd, err
	}
	above, err := x.parent(dir)
	if err != nil {
		return -1, err
	}
	defer unix.Close(above)
	if err := unix.Mkdirat(above, filepath.Base(dir), 0o755); err != nil && err != unix.EEXIST {
		return -1, err
	}
	return x.root.open(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
}

func (x *extraction) add(t *tar.Reader, h *tar.Header) error {
	rel := filepath.Clean(strings.TrimSuffix(h.Name, "/"))
	if rel == "." && h.Typeflag == tar.TypeDir {
		return nil
	}
	if !filepath.IsLocal(rel) || rel == "." || strings.IndexByte(rel, 0) >= 0 {
		return errOutside
	}
	if strings.Count(rel, "/") > maxDepth {
		return unix.ENAMETOOLONG
	}
	dir, err := x.parent(rel)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	name := filepath.Base(rel)
	if h.Typeflag == tar.TypeDir {
		err := unix.Mkdirat(dir, name, 0o700)
		if err == unix.EEXIST {
			var st unix.Stat_t
			if err = unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err == nil && st.Mode&unix.S_IFMT != unix.S_IFDIR {
				err = unix.ENOTDIR
			}
		} else if err == nil {
			x.dirs = append(x.dirs, &tar.Header{Name: rel, Mode: h.Mode})
		}
		return err
	}
	if err := unix.Unlinkat(dir, name, 0); err != nil && err != unix.ENOENT {
		return err
	}
	switch h.Typeflag {
	case tar.TypeReg:
		return extractFile(t, h, dir, name)
	case tar.TypeSymlink:
		return unix.Symlinkat(h.Linkname, dir, name)
	case tar.TypeLink:
		to := filepath.Clean(h.Linkname)
		if !filepath.IsLocal(to) {
			return errOutside
		}
		from, err := x.root.open(filepath.Dir(to), unix.O_PATH|unix.O_DIRECTORY, 0)
		if err != nil {
			return err
		}
		defer unix.Close(from)
		return unix.Linkat(from, filepath.Base(to), dir, name, 0)
	}
	return errKind
}

func extractFile(t *tar.Reader, h *tar.Header, dir int, name string) error {
	fd, err := unix.Openat(dir, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), name)
	_, err = io.Copy(f, t)
	if err == nil {
		err = unix.Fchmod(fd, uint32(h.Mode&0o777))
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil && !h.ModTime.IsZero() {
		at := unix.NsecToTimespec(h.ModTime.UnixNano())
		_ = unix.UtimesNanoAt(dir, name, []unix.Timespec{at, at}, unix.AT_SYMLINK_NOFOLLOW) // the content counts
	}
	return err
}

// finish gives the directories their modes, which may forbid to write into
// them.
func (x *extraction) finish() error {
	for _, h := range x.dirs {
		fd, err := x.root.open(h.Name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		if err == nil {
			err = unix.Fchmod(fd, uint32(h.Mode&0o777))
			unix.Close(fd)
		}
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return nil
}
