package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/agentproto"
)

// maxWatches bounds the directories of one watch.
const maxWatches = 4096

const watchMask = unix.IN_CREATE | unix.IN_MODIFY | unix.IN_CLOSE_WRITE | unix.IN_ATTRIB | unix.IN_DELETE | unix.IN_MOVED_FROM |
	unix.IN_MOVED_TO | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR

// maxEvents bounds the events of one read of inotify, in bytes: a directory that
// appears may have any number of files.
const maxEvents = 256 << 10

var errWatches = fmt.Errorf("there are more than %d directories: %w", maxWatches, unix.ENOSPC)

// watch is the work of a channel of KindWatch.
type watch struct {
	fileWork
	a *agent
	m agentproto.FileOp
	f *os.File // of inotify
	// dirs are the watched directories below the path, "." is itself.
	dirs map[int]string
	// events wait until the thread of the user is free again, since the reader may
	// be slow.
	events []byte
}

func (w *watch) stop() {
	w.fileWork.stop()
	_ = w.f.SetReadDeadline(past) // inotify has deadlines
}

// run reports changes until the channel is closed, or the directory is gone.
func (w *watch) run() {
	f := w.a.asUser(w.m.View, func() agentproto.Failure {
		if err := w.add(".", false); err != nil {
			return failed(w.m.Path, err)
		}
		return agentproto.Failure{}
	})
	defer w.f.Close()
	if f.Kind != agentproto.OK {
		w.c.fail(f)
		return
	}
	w.c.ready(nil, false)
	buf := make([]byte, 16<<10)
	for !w.c.out.isDropped() {
		n, err := w.f.Read(buf)
		if err != nil {
			break
		}
		var gone bool
		f = w.a.asUser(w.m.View, func() agentproto.Failure {
			gone, err = w.handle(buf[:n])
			if err != nil {
				return failed(w.m.Path, err)
			}
			return agentproto.Failure{}
		})
		w.c.out.add(w.events)
		w.events = w.events[:0]
		w.c.flush()
		if f.Kind != agentproto.OK {
			w.c.fail(f)
			return
		}
		if gone {
			break
		}
	}
	w.c.out.end()
	w.c.finish(agentproto.Done{})
}

// add watches a directory, and with Recursive those in it. With report it says
// what is in it already: it was made before it was watched.
func (w *watch) add(rel string, report bool) error {
	fd, err := openPath(w.m.View, filepath.Join(w.m.Path, rel), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if len(w.dirs) >= maxWatches {
		return errWatches
	}
	rc, err := w.f.SyscallConn()
	if err != nil {
		return err
	}
	wd := 0
	cerr := rc.Control(func(in uintptr) {
		wd, err = unix.InotifyAddWatch(int(in), fmt.Sprintf("/proc/self/fd/%d", fd), watchMask)
	})
	if err = errors.Join(cerr, err); err != nil {
		return err
	}
	w.dirs[wd] = rel
	if !w.m.Recursive {
		return nil
	}
	for after, more := "", true; more; {
		var all []string
		if all, more, err = names(fd, after, 1024); err != nil {
			return err
		}
		for _, n := range all {
			after = n
			var st unix.Stat_t
			if unix.Fstatat(fd, n, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
				continue // gone
			}
			isDir := st.Mode&unix.S_IFMT == unix.S_IFDIR
			if report {
				w.report(agentproto.FileCreated, filepath.Join(rel, n), isDir)
			}
			if isDir {
				if err := w.add(filepath.Join(rel, n), report); errors.Is(err, errWatches) {
					return err
				}
			}
		}
	}
	return nil
}

func (w *watch) report(op agentproto.FileChange, path string, dir bool) {
	if len(w.events) > maxEvents {
		return
	}
	w.events = agentproto.FileEvent{Op: op, Path: path, Dir: dir}.AppendTo(w.events)
	if len(w.events) > maxEvents {
		w.events = agentproto.FileEvent{Op: agentproto.FilesMissed, Path: ".", Dir: true}.AppendTo(w.events)
	}
}

// handle reports the events of one read. gone: the directory is not there any
// more.
func (w *watch) handle(b []byte) (gone bool, err error) {
	for len(b) >= unix.SizeofInotifyEvent {
		wd, mask := int(int32(binary.NativeEndian.Uint32(b))), binary.NativeEndian.Uint32(b[4:])
		size := int(binary.NativeEndian.Uint32(b[12:]))
		if len(b) < unix.SizeofInotifyEvent+size {
			break
		}
		name := string(bytes.TrimRight(b[unix.SizeofInotifyEvent:unix.SizeofInotifyEvent+size], "\x00"))
		b = b[unix.SizeofInotifyEvent+size:]
		if mask&unix.IN_Q_OVERFLOW != 0 {
			w.report(agentproto.FilesMissed, ".", true)
			continue
		}
		rel, ok := w.dirs[wd]
		if mask&unix.IN_IGNORED != 0 {
			delete(w.dirs, wd)
			continue
		}
		if !ok {
			continue
		}
		if mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF) != 0 {
			if rel == "." {
				w.report(agentproto.FileRemoved, ".", true)
				return true, nil
			}
			continue // its parent has reported it
		}
		if err := w.change(filepath.Join(rel, name), mask); err != nil {
			return false, err
		}
	}
	return false, nil
}

func (w *watch) change(path string, mask uint32) error {
	dir := mask&unix.IN_ISDIR != 0
	switch {
	case mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0:
		w.report(agentproto.FileCreated, path, dir)
		if dir && w.m.Recursive {
			if err := w.add(path, true); errors.Is(err, errWatches) {
				return err
			}
		}
	case mask&(unix.IN_DELETE|unix.IN_MOVED_FROM) != 0:
		w.report(agentproto.FileRemoved, path, dir)
		if dir {
			w.forget(path)
		}
	case mask&(unix.IN_MODIFY|unix.IN_CLOSE_WRITE) != 0:
		w.report(agentproto.FileWritten, path, dir)
	case mask&unix.IN_ATTRIB != 0:
		w.report(agentproto.FileAttributes, path, dir)
	}
	return nil
}

// forget stops watching a directory that was moved away, and those in it.
func (w *watch) forget(path string) {
	rc, err := w.f.SyscallConn()
	if err != nil {
		return
	}
	for wd, rel := range w.dirs {
		if rel == path || strings.HasPrefix(rel, path+"/") {
			_ = rc.Control(func(in uintptr) { _, _ = unix.InotifyRmWatch(int(in), uint32(wd)) }) // it may be gone
			delete(w.dirs, wd)
		}
	}
}

// newWatch returns the work of a channel, or its failure.
func newWatch(a *agent, c *channel, m agentproto.FileOp) (*watch, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, err
	}
	return &watch{fileWork: fileWork{c}, a: a, m: m, f: os.NewFile(uintptr(fd), "inotify"), dirs: map[int]string{}}, nil
}
