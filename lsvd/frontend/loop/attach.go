// Package loop makes a block device of a disk: a loop device, with direct I/O
// and blocks of 4096 bytes, on a FUSE file that this process serves (package
// fuse). The process must be able to answer itself: it calls [Prepare] first.
//
// # What the device promises
//
// A flush of the device, which file systems and fsync make, is one Flush of
// the disk. The device has no FUA: the kernel writes and flushes instead. A
// discard, and a write of zeros that may free space, are a Trim; other writes
// of zeros are a Zero. An error of the disk is an I/O error at once: nothing
// is tried again.
//
// # Names
//
// The mount's source, the file in it and so the loop device's backing file are
// "lsvd:<owner>:<volume>:<generation>"; the mount is on
// <dir>/<owner>/<volume>.<generation>. So what a dead process left behind can be
// found ([List]) and taken away ([Sweep]) without asking its file system,
// which no process may serve any more.
//
// # When the process ends
//
// Without a holder everything that waits for the device, and everything later,
// gets an I/O error at once; mounts on it can be unmounted and the device
// cleared. With a [Holder], requests wait until a successor calls Attach for
// the same owner and volume, or the holder gives up. The successor opens the
// disk first, so it has the disk's lock and the predecessor is dead. Opening
// may take long: [Claim] comes before it, and then the holder does not give up
// while the successor lives. If the holder itself ends, no request is delayed;
// [Attachment.Hold] gives the connection to the next.
//
// A process must not use its own device or FUSE file by package os or net:
// their poller may stop the whole scheduler until the process has answered.
package loop

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/frontend/fuse"
	"miren.dev/runtime/pkg/errs"
)

// Holder keeps the connection while no process serves it. The client of
// package holder is one.
type Holder interface {
	Put(ctx context.Context, name string, meta []byte, files ...*os.File) error
	// Take returns what was put under a name; if nothing was, NotFound.
	Take(ctx context.Context, name string) (meta []byte, files []*os.File, err error)
	Drop(ctx context.Context, name string) error
}

// Options say for whom and how a disk is attached.
type Options struct {
	Owner  string // the id of the installation that sweeps its leftovers
	Volume string // names the disk among those of the owner
	Dir    string // where mounts are made; default /run/lsvd
	Holder Holder // default: none, and the device fails when the process ends
	Logger *slog.Logger
}

var nameRE = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

func (o Options) withDefaults() (Options, error) {
	if !nameRE.MatchString(o.Owner) || !nameRE.MatchString(o.Volume) {
		return o, errs.New(errs.InvalidArgument, "owner %q or volume %q is not a name of up to 64 letters, digits, '.', '_' and '-'", o.Owner, o.Volume)
	}
	if o.Dir == "" {
		o.Dir = "/run/lsvd"
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o, nil
}

// held is what a successor must know, as JSON with the held file.
type held struct {
	Version int `json:"version"`
	fuse.State
}

const heldVersion = 1

// Attachment is an attached disk.
type Attachment struct {
	o      Options
	disk   lsvd.Disk
	conn   *fuse.Conn
	loop   int
	cancel context.CancelFunc
	done   chan struct{}
	err    error       // of serving, once done
	ending atomic.Bool // this process ends the serving

	mu   sync.Mutex // one Detach or Resize at a time
	gone bool
}

// undoTimeout bounds the undo of what failed.
const undoTimeout = 10 * time.Second

// holdName is the name of an attachment at the holder.
func (o Options) holdName() string { return "lsvd:" + o.Owner + ":" + o.Volume }

// Attach makes a block device of disk, or goes on with the one that a
// predecessor has left to the holder. The disk is open, and ctx bounds only
// the call. What dead predecessors have left without a holder goes away.
func Attach(ctx context.Context, disk lsvd.Disk, o Options) (*Attachment, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	conn, err := o.resume(ctx)
	if err != nil {
		return nil, errs.Wrap(err, "attach %s", o.Volume)
	}
	resumed := conn != nil
	if !resumed {
		if conn, err = o.mount(ctx); err != nil {
			return nil, errs.Wrap(err, "attach %s", o.Volume)
		}
	}
	serving, cancel := context.WithCancel(context.WithoutCancel(ctx))
	a := &Attachment{o: o, disk: disk, conn: conn, loop: -1, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(a.done)
		if a.err = conn.Serve(serving, disk); a.err == nil && !a.ending.Load() {
			a.err = errs.New(errs.Unavailable, "its connection to the kernel has ended, and not by this process")
		}
	}()
	if resumed {
		if a.loop, err = findLoop(conn.Name); err != nil {
			a.Release()
			return nil, errs.Wrap(err, "attach %s", o.Volume)
		}
	}
	if a.loop < 0 {
		a.loop, err = configureLoop(ctx, conn.Path(), conn.Name)
	}
	// Held only now: a process that is killed before ends at once, with the
	// thread that has just waited for it.
	if err == nil && !resumed && o.Holder != nil && conn.Resend {
		err = a.Hold(ctx, o.Holder)
	}
	if err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
		defer cancel()
		if e := a.Abandon(ctx); e != nil {
			o.Logger.Warn("undo of an attach failed", "volume", o.Volume, "error", e)
		}
		return nil, errs.Wrap(err, "attach %s", o.Volume)
	}
	o.Logger.Info("disk is attached", "volume", o.Volume, "device", a.Path(), "resumed", resumed)
	return a, nil
}

// resume takes what a predecessor has left to the holder, if anything.
func (o Options) resume(ctx context.Context) (*fuse.Conn, error) {
	if o.Holder == nil {
		return nil, nil
	}
	meta, files, err := o.take(ctx)
	if errs.Is(err, errs.NotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var h held
	if err := json.Unmarshal(meta, &h); err != nil || len(files) != 1 || h.Version != heldVersion {
		for _, f := range files {
			f.Close()
		}
		return nil, errs.New(errs.FailedPrecondition, "what the holder has of %s was left by another version (%d files, %q)", o.Volume, len(files), meta)
	}
	left, err := list(func(e Entry) bool { return e.name == h.Name && e.Mount == h.Dir })
	if err != nil {
		files[0].Close()
		return nil, err
	}
	if len(left) > 0 && h.Resend {
		return fuse.Resume(files[0], h.State, o.fuse()), nil
	}
	// Unmounted, or the kernel cannot go on with it: it is no use.
	files[0].Close()
	return nil, o.Holder.Drop(ctx, o.holdName())
}

// take takes from the holder. The predecessor is dead, but its files are
// closed one after the other: the lock of its disk maybe a little before its
// connection to the holder.
func (o Options) take(ctx context.Context) (meta []byte, files []*os.File, err error) {
	ctx, cancel := context.WithTimeout(ctx, takeTimeout)
	defer cancel()
	var conflict error
	e := until(ctx, func() (bool, error) {
		meta, files, err = o.Holder.Take(ctx, o.holdName())
		if errs.Is(err, errs.Conflict) {
			conflict = err
			return false, nil
		}
		return true, err
	})
	if e != nil && err == nil || errs.Is(err, errs.Conflict) {
		return nil, nil, conflict
	}
	return meta, files, err
}

// takeTimeout bounds how long the holder may say that the predecessor lives.
const takeTimeout = 5 * time.Second

func (o Options) fuse() fuse.Options { return fuse.Options{Logger: o.Logger} }

// mount makes a new mount.
func (o Options) mount(ctx context.Context) (*fuse.Conn, error) {
	if _, err := sweep(ctx, o.own); err != nil {
		o.Logger.Warn("what was left of an attachment stays", "volume", o.Volume, "error", err)
	}
	var b [4]byte
	rand.Read(b[:])
	generation := hex.EncodeToString(b[:])
	dir := filepath.Join(o.Dir, o.Owner, o.Volume+"."+generation)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, errs.Wrap(err, "make a mount point")
	}
	conn, err := fuse.Mount(dir, strings.Join([]string{"lsvd", o.Owner, o.Volume, generation}, ":"), o.fuse())
	if err != nil {
		os.Remove(dir)
	}
	return conn, err
}

// Hold gives the connection to a holder, instead of the one it had: for when
// that one has ended. It returns Unimplemented if this kernel cannot hand over.
func (a *Attachment) Hold(ctx context.Context, h Holder) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.gone {
		return errs.New(errs.FailedPrecondition, "%s is detached", a.o.Volume)
	}
	if !a.conn.Resend {
		return errs.New(errs.Unimplemented, "this kernel cannot hand %s over (Linux 6.9 can)", a.o.Volume)
	}
	meta, err := json.Marshal(held{Version: heldVersion, State: a.conn.State})
	if err == nil {
		err = h.Put(ctx, a.o.holdName(), meta, a.conn.File())
	}
	if err != nil {
		return errs.Wrap(err, "hold %s", a.o.Volume)
	}
	a.o.Holder = h
	return nil
}

// HandsOver reports whether the kernel can hand the device over (Linux 6.9). Hold is then possible.
func (a *Attachment) HandsOver() bool { return a.conn.Resend }

// Path is the block device: "/dev/loop3".
func (a *Attachment) Path() string { return loopPath(a.loop) }

// Done is closed when the disk is not served any more: after Detach and
// Release, or because another process has ended the connection.
func (a *Attachment) Done() <-chan struct{} { return a.done }

// Err is why the disk is not served any more, once Done is closed; nil after Detach,
// Abandon and Release.
func (a *Attachment) Err() error {
	<-a.done
	return a.err
}

// Release stops serving without detaching, for a successor: what has been
// begun is brought to its end, everything else waits. Without a holder it fails.
// The disk may be closed afterwards.
func (a *Attachment) Release() {
	a.ending.Store(true)
	a.cancel()
	<-a.done
	a.conn.Close()
}

// Detach takes the device away and flushes the disk. It refuses while
// the device is mounted or claimed, and waits for processes that have it
// open otherwise. It may be called again after an error.
func (a *Attachment) Detach(ctx context.Context) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.gone {
		return nil
	}
	if err := clearLoop(ctx, a.loop, a.conn.Name); err != nil {
		return errs.Wrap(err, "detach %s", a.o.Volume)
	}
	if err := a.disk.Flush(ctx); err != nil {
		return errs.Wrap(err, "detach %s", a.o.Volume)
	}
	if err := a.end(ctx); err != nil {
		return errs.Wrap(err, "detach %s", a.o.Volume)
	}
	a.gone = true
	a.o.Logger.Info("disk is detached", "volume", a.o.Volume, "device", a.Path())
	return nil
}

// Abandon takes everything away at once, even if it is in use: users get I/O errors.
func (a *Attachment) Abandon(ctx context.Context) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.gone {
		return nil
	}
	if err := a.end(ctx); err != nil {
		return errs.Wrap(err, "abandon %s", a.o.Volume)
	}
	a.gone = true
	return nil
}

// end drops what is held, unmounts and waits until no goroutine serves any more.
func (a *Attachment) end(ctx context.Context) error {
	if err := a.o.drop(ctx); err != nil {
		return err
	}
	a.ending.Store(true)
	if err := a.conn.Unmount(); err != nil {
		return err
	}
	a.cancel()
	<-a.done
	a.conn.Close()
	// Of a predecessor that was killed while it attached there may be others.
	all, err := loops()
	for n, name := range all {
		if name == a.conn.Name {
			err = errors.Join(err, forceLoop(n, name))
		}
	}
	return errors.Join(err, removeDir(a.conn.Dir))
}

// Resize gives the device the size that the disk has now.
func (a *Attachment) Resize(ctx context.Context) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.gone {
		return errs.New(errs.FailedPrecondition, "%s is detached", a.o.Volume)
	}
	if err := resizeLoop(a.loop, a.conn.Path()); err != nil {
		return errs.Wrap(err, "resize %s", a.Path())
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return errs.Wrap(until(ctx, func() (bool, error) {
		n, err := loopSize(a.loop)
		return n == a.disk.Size(), err
	}), "resize %s", a.Path())
}
