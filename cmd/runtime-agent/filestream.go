package main

import (
	"errors"
	"io"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/agentproto"
)

// fileWork is the work of a channel on files. It ends when its streams are
// dropped.
type fileWork struct{ c *channel }

func (fileWork) control(uint8, []byte) error { return nil }
func (w fileWork) stop()                     { w.c.drop() }

// asUser calls f, which does not wait for the node, on a thread of the user of a
// view.
func (a *agent) asUser(v agentproto.View, f func() agentproto.Failure) agentproto.Failure {
	return a.asUserOf(a.users.short, v, f)
}

func (a *agent) asUserOf(slots chan struct{}, v agentproto.View, f func() agentproto.Failure) agentproto.Failure {
	who, err := a.account(v.User)
	if err != nil {
		return agentproto.Failure{Kind: agentproto.Invalid, Message: err.Error()}
	}
	return a.users.do(slots, who, f)
}

// readFile is the work of KindRead.
func (a *agent) readFile(c *channel, m agentproto.FileRead) {
	fd, st := -1, unix.Stat_t{}
	f := a.asUser(m.View, func() agentproto.Failure {
		if m.Offset < 0 || m.Length < 0 {
			return failed(m.Path, unix.EINVAL)
		}
		var err error
		if fd, st, err = openRegular(m.View, m.Path, unix.O_RDONLY, 0); err != nil {
			return failed(m.Path, err)
		}
		return agentproto.Failure{}
	})
	if f.Kind != agentproto.OK {
		c.fail(f)
		return
	}
	defer unix.Close(fd)
	c.ready(infoOf(filepath.Base(m.Path), st).Append(nil), true)
	buf := make([]byte, 4*agentproto.Chunk)
	at, left := m.Offset, m.Length
	for !c.out.isDropped() {
		b := buf
		if m.Length > 0 {
			b = buf[:min(left, int64(len(buf)))]
		}
		n := 0
		var err error
		if len(b) > 0 {
			n, err = unix.Pread(fd, b, at)
		}
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			c.fail(failed(m.Path, err))
			return
		}
		if n <= 0 {
			break
		}
		at, left = at+int64(n), left-int64(n)
		c.out.add(b[:n])
		if n == len(buf) { // otherwise the end is near, and goes with it
			c.flush()
		}
	}
	c.out.end()
	c.finish(agentproto.Done{})
}

// fileWriter is a file that is being written.
type fileWriter struct {
	m    agentproto.FileWrite
	dir  int // of the file
	fd   int
	name string
	tmp  string // name until the end; empty for a file that is changed in its place
	perm uint32
}

// writeFile is the work of KindWrite.
func (a *agent) writeFile(c *channel, m agentproto.FileWrite) {
	w := &fileWriter{m: m, dir: -1, fd: -1}
	defer w.close()
	f := a.asUser(m.View, func() agentproto.Failure {
		if err := w.open(); err != nil {
			return failed(m.Path, err)
		}
		return agentproto.Failure{}
	})
	if f.Kind != agentproto.OK {
		c.fail(f)
		return
	}
	batch := 0
	if w.tmp != "" { // nothing of the file is seen before its end
		batch = agentproto.InWindow / 2
	}
	c.in.direct(batch)
	c.ready(nil, false)
	err := w.copy(c.in)
	var info agentproto.FileInfo
	f = a.asUser(m.View, func() agentproto.Failure {
		if err == nil {
			info, err = w.commit()
		}
		if err != nil {
			w.abort()
			return failed(m.Path, err)
		}
		return agentproto.Failure{}
	})
	if f.Kind != agentproto.OK {
		c.fail(f)
		return
	}
	c.finish(agentproto.Done{Result: info.Append(nil)})
}

func (w *fileWriter) open() (err error) {
	if w.m.Offset < 0 {
		return unix.EINVAL
	}
	if w.m.Parents {
		if err := makeParents(w.m.View, filepath.Dir(w.m.Path)); err != nil {
			return err
		}
	}
	w.perm = uint32(w.m.Perm & 0o7777)
	var st unix.Stat_t
	switch w.m.Mode {
	case agentproto.WriteAt, agentproto.WriteAppend:
		flags := unix.O_WRONLY | unix.O_CREAT
		if w.m.Mode == agentproto.WriteAppend {
			flags |= unix.O_APPEND
		}
		perm := w.perm
		if perm == 0 {
			perm = 0o644
		}
		w.fd, _, err = openRegular(w.m.View, w.m.Path, flags, perm)
		return err
	}
	if w.dir, w.name, err = openParent(w.m.View, w.m.Path); err != nil {
		return err
	}
	err = unix.Fstatat(w.dir, w.name, &st, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case err == nil && w.m.Mode == agentproto.WriteCreate:
		return unix.EEXIST
	case err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR:
		return unix.EISDIR
	case err == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && w.perm == 0:
		w.perm = st.Mode & 0o7777
	case err != nil && !errors.Is(err, unix.ENOENT):
		return err
	}
	if w.perm == 0 {
		w.perm = 0o644
	}
	w.tmp = ".tmp-" + strconv.FormatUint(randomID(), 36)
	w.fd, err = unix.Openat(w.dir, w.tmp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		w.tmp = ""
	}
	return err
}

// copy writes the input.
func (w *fileWriter) copy(in io.Reader) error {
	buf := make([]byte, 4*agentproto.Chunk)
	at := w.m.Offset
	for {
		n, err := in.Read(buf)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return errAborted
		}
		for b := buf[:n]; len(b) > 0; {
			var m int
			if w.m.Mode == agentproto.WriteAt {
				m, err = unix.Pwrite(w.fd, b, at)
			} else {
				m, err = unix.Write(w.fd, b)
			}
			if err != nil && err != unix.EINTR {
				return err
			}
			if m > 0 {
				b, at = b[m:], at+int64(m)
			}
		}
	}
}

var errAborted = errors.New("it was not written to the end")

// commit puts the file in its place.
func (w *fileWriter) commit() (agentproto.FileInfo, error) {
	if w.tmp != "" {
		if err := unix.Fchmod(w.fd, w.perm); err != nil {
			return agentproto.FileInfo{}, err
		}
		flags := uint(0)
		if w.m.Mode == agentproto.WriteCreate {
			flags = unix.RENAME_NOREPLACE
		}
		if err := unix.Renameat2(w.dir, w.tmp, w.dir, w.name, flags); err != nil {
			return agentproto.FileInfo{}, err
		}
		w.tmp = ""
	}
	var st unix.Stat_t
	err := unix.Fstat(w.fd, &st)
	return infoOf(filepath.Base(w.m.Path), st), err
}

// abort removes the temporary file.
func (w *fileWriter) abort() {
	if w.tmp != "" {
		_ = unix.Unlinkat(w.dir, w.tmp, 0) // its user may have removed it
	}
}

func (w *fileWriter) close() {
	for _, fd := range []int{w.fd, w.dir} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// makeParents makes a directory and those above it.
func makeParents(v agentproto.View, path string) error {
	fd, err := openPath(v, path, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err == nil {
		unix.Close(fd)
		return nil
	}
	if !errors.Is(err, unix.ENOENT) {
		return err
	}
	if path == "/" || path == "." {
		return err
	}
	if err := makeParents(v, filepath.Dir(path)); err != nil {
		return err
	}
	dir, name, err := openParent(v, path)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	if err := unix.Mkdirat(dir, name, 0o755); err != nil && err != unix.EEXIST {
		return err
	}
	return nil
}
