// Package isolatedthread makes system calls that may have to wait for this very
// process, such as opening a file that it serves through FUSE.
//
// A killed process can hang in such a call. Its thread does not end before the
// FUSE connection ends, and the connection does not end while a thread of the
// process has its file open. So the calls are made by a thread with a file
// table of its own, in which no file of the process is open.
package isolatedthread

import (
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/errs"
)

// Do runs f on a thread that has no files of the process open, and returns
// what f returns. Files that f opens are closed afterwards. f must make its
// system calls by package unix, pass no files in or out and start nothing.
func Do(f func() error) error {
	done := make(chan error)
	go run(done, f)
	return <-done
}

func run(done chan error, f func() error) {
	runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
	if unix.Gettid() == unix.Getpid() {
		// The main thread's table is what the process shows to others; another thread must do.
		inner := make(chan error)
		go run(inner, f)
		err := <-inner
		runtime.UnlockOSThread()
		done <- err
		return
	}
	done <- isolate(f)
}

func isolate(f func() error) error {
	if err := unix.Unshare(unix.CLONE_FILES); err != nil {
		return errs.Wrap(err, "isolate a thread")
	}
	opened, err := open()
	if err != nil {
		return err
	}
	for _, fd := range opened {
		unix.Close(fd)
	}
	err = f()
	// Nothing may stay open: the runtime may take its time to end the thread.
	if opened, e := open(); e == nil {
		for _, fd := range opened {
			unix.Close(fd)
		}
	}
	return err
}

// open lists the files of this thread but those that Go's runtime uses on any
// thread: its poller.
func open() ([]int, error) {
	const dir = "/proc/thread-self/fd"
	d, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, errs.Wrap(err, "list the files of a thread")
	}
	defer unix.Close(d)
	var names []string
	buf := make([]byte, 8192)
	for {
		n, err := unix.ReadDirent(d, buf)
		if err != nil {
			return nil, errs.Wrap(err, "list the files of a thread")
		}
		if n == 0 {
			break
		}
		_, _, names = unix.ParseDirent(buf[:n], -1, names)
	}
	var fds []int
	for _, name := range names {
		fd, err := strconv.Atoi(name)
		if err != nil || fd == d || fd <= 2 {
			continue
		}
		what, err := os.Readlink(dir + "/" + name)
		if err == nil && (strings.Contains(what, "[eventpoll]") || strings.Contains(what, "[eventfd]")) {
			continue
		}
		fds = append(fds, fd)
	}
	return fds, nil
}
