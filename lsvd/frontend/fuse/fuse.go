// Package fuse shows a disk to the kernel as the only file of a FUSE file
// system, for a loop device to stand on. It speaks the kernel's protocol over
// /dev/fuse itself: about a dozen requests are all that a loop device needs,
// and the connection can be handed over.
//
// # Requests
//
// Reads and writes pass the page cache by (direct I/O), many at a time, up to
// 1 MiB each. Workers take turns to read requests and carry them out: workers.go.
// Writes are queued, and the committer answers them: queue.go. Every request that was begun is
// answered; an error of the disk is answered with EIO. Attributes are cached
// by the kernel for ever, so a look at the file does not wait for the disk.
//
//	FSYNC                 one Flush
//	FALLOCATE punch hole  Trim (Zero, if not of whole blocks): reads as zeros
//	FALLOCATE zero range  Zero
//
// # Handover
//
// The kernel keeps a request until it is answered, and the connection until
// its last open file is closed. So when another process ([holder]) has the file
// too, this process may end at any moment: requests wait. A successor that
// calls [Resume] has the kernel send again what was read and not answered
// (Linux 6.9), and answers it. A request may thus be carried out twice: once
// by us, unanswered, and once by the successor. That is safe, because all
// requests that change the disk (write, zero, trim) leave the same behind when
// repeated, and because no client may rely on the order of two requests of which
// the first was not answered when the second was sent. A client that writes a
// block while another write of it is under way, as no file system does, may see
// the earlier one win after the later was answered, as with any disk whose driver
// tries again. The successor must hold the disk's lock before it resumes: then
// the predecessor is dead and carries out nothing any more.
//
// A thread that is killed while the kernel copies a request to it may make the
// kernel fail the request, if the memory it is copied to has to be brought in
// first. Therefore buffers are brought in when they are made.
//
// [holder]: miren.dev/runtime/lsvd/frontend/holder
package fuse

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/internal/isolatedthread"
	"miren.dev/runtime/pkg/errs"
)

// trimInterval is how long unneeded buffers stay; tests shorten it.
var trimInterval = 5 * time.Second

// Type is the type that the mount has in the tables of mounts.
const Type = "fuse.lsvd"

// Options configure a connection.
type Options struct {
	Logger *slog.Logger // default: discard
}

// State is what a successor must know of a connection besides its file.
type State struct {
	Dir    string `json:"dir"`    // where it is mounted
	Name   string `json:"name"`   // of the file in it, and the source of the mount
	Resend bool   `json:"resend"` // the kernel can send requests again
}

// Conn is a mounted connection.
type Conn struct {
	State
	opts    Options
	file    *os.File
	fd      int
	resumed bool

	disk     lsvd.Disk
	queuer   lsvd.Queuer  // the disk, if it is one
	flusher  lsvd.Flusher // the same
	reader   lsvd.Reader  // the same
	serving  context.Context
	wake     int            // an event: the workers must stop
	workers  sync.WaitGroup // those that take turns
	waiting  atomic.Int64   // workers that wait for the turn
	requests sync.WaitGroup // those that no worker waits for
	answers  answers

	turn  sync.Mutex // held by the worker that reads requests
	ended bool       // under turn
	err   error      // why reading failed; under turn

	bufMu      sync.Mutex
	bufFreed   sync.Cond
	spare      []*buffer // last in first out
	leastSpare int       // of them since the last trim
	buffers    int
}

func (o Options) withDefaults() Options {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// Mount mounts a file system with the one file name on the directory dir.
// Users of the file wait until Serve is called.
func Mount(dir, name string, o Options) (*Conn, error) {
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, errs.Wrap(err, "open /dev/fuse")
	}
	c := newConn(os.NewFile(uintptr(fd), "/dev/fuse"), State{Dir: dir, Name: name}, o)
	data := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fd)
	if err := unix.Mount(name, dir, Type, unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC|unix.MS_NOATIME, data); err != nil {
		c.file.Close()
		return nil, errs.Wrap(err, "mount %s on %s", name, dir)
	}
	if err := c.greet(); err != nil {
		c.Unmount()
		c.file.Close()
		return nil, errs.Wrap(err, "greet the kernel")
	}
	return c, nil
}

// Resume takes over a connection of a process that has ended, or has returned
// from Serve. From then on file belongs to it.
func Resume(file *os.File, s State, o Options) *Conn {
	c := newConn(file, s, o)
	c.resumed = true
	return c
}

func newConn(file *os.File, s State, o Options) *Conn {
	c := &Conn{State: s, opts: o.withDefaults(), file: file, fd: int(file.Fd())}
	c.bufFreed.L = &c.bufMu
	return c
}

// File is the open file of the connection, which a holder may duplicate.
func (c *Conn) File() *os.File { return c.file }

// Path is the file that shows the disk.
func (c *Conn) Path() string { return filepath.Join(c.Dir, c.Name) }

// Serve answers requests with disk until the connection ends, which is no
// error, or ctx does. Then it waits for the requests that were begun and
// leaves the others to a successor.
func (c *Conn) Serve(ctx context.Context, disk lsvd.Disk) error {
	c.disk, c.serving = disk, ctx
	c.queuer, _ = disk.(lsvd.Queuer)
	c.flusher, _ = disk.(lsvd.Flusher)
	c.reader, _ = disk.(lsvd.Reader)
	if c.resumed {
		if err := c.resend(); err != nil {
			return err
		}
	}
	var err error
	if c.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC); err != nil {
		return errs.Wrap(err, "make an event")
	}
	defer unix.Close(c.wake)
	if err := unix.SetNonblock(c.fd, true); err != nil {
		return errs.Wrap(err, "make /dev/fuse not block")
	}
	c.start()
	done := make(chan struct{})
	go func() {
		c.workers.Wait()
		c.requests.Wait()
		close(done)
	}()
	tick := time.NewTicker(trimInterval)
	defer tick.Stop()
	ended := ctx.Done()
	for {
		select {
		case <-tick.C:
			c.trimBuffers()
		case <-ended:
			ended = nil
			if err := c.stop(); err != nil {
				return err
			}
		case <-done:
			c.bufMu.Lock()
			c.free(len(c.spare))
			c.bufMu.Unlock()
			return c.err
		}
	}
}

// Unmount ends the connection and takes the mount away, even if it is in use.
func (c *Conn) Unmount() error { return Unmount(c.Dir) }

// Close closes the file. If no other process has it, the connection ends.
func (c *Conn) Close() error { return c.file.Close() }

// Unmount ends the connection of the mount on dir, so that requests that wait for
// it fail at once, and takes the mount away, even if it is in use.
func Unmount(dir string) error {
	err := isolatedthread.Do(func() error {
		// MNT_FORCE ends the connection whether or not the mount is busy.
		return unix.Unmount(dir, unix.MNT_FORCE|unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	})
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		return nil // not mounted
	}
	return errs.Wrap(err, "unmount %s", dir)
}

// Abort ends the connection with the number that the kernel gave it (the minor
// number of the mount's device) in all mount namespaces, if the control file
// system is mounted.
func Abort(number int) error {
	err := os.WriteFile(filepath.Join("/sys/fs/fuse/connections", strconv.Itoa(number), "abort"), []byte("1"), 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil // not mounted, or ended
	}
	return errs.Wrap(err, "abort FUSE connection %d", number)
}
