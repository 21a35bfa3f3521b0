package fuse

import (
	"errors"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/lsvd/internal/isolatedthread"
	"miren.dev/runtime/pkg/errs"
)

// Readers are goroutines that wait in the kernel for a request. A reader carries
// out its request itself, so no other goroutine has to be woken. So that the next
// request does not wait meanwhile, the last reader that leaves the kernel wakes
// another one, parked or new, unless a reader that writes is about to come back
// (stall.go sees to it that it does). A reader that comes back parks if enough
// wait in the kernel already. So a disk with one request at a time has a few warm
// readers, and one with many requests has a reader for each.
//
// Writes do not keep a reader each: see queue.go. While all requests are small
// and need not wait, one reader is enough (batch.go): the kernel wakes waiting
// readers in turn, and it is faster to wake the one that has just been there.

// reader is a goroutine with a buffer.
type reader struct {
	*buffer
	wake    chan struct{} // has room for one; closed to dismiss it
	looking bool          // it is the reader that polls for requests
}

// start starts a reader. The caller holds mu.
func (c *Conn) start() {
	b, err := c.getBuffer()
	if b == nil {
		if c.total == 0 {
			c.failed(err)
		}
		return // the existing readers come back to read
	}
	c.total++
	go (&reader{buffer: b, wake: make(chan struct{}, 1)}).run()
}

// wakeReader wakes a parked reader, or starts one, unless all have ended.
func (c *Conn) wakeReader() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := len(c.parked); n > 0 {
		c.parked[n-1].wake <- struct{}{}
		c.parked = c.parked[:n-1]
		c.least = min(c.least, n-1)
	} else if c.total > 0 && c.total < c.opts.Readers && !c.stopping.Load() {
		c.start()
	}
}

// failed notes why the connection cannot be served. The caller holds mu.
func (c *Conn) failed(err error) {
	if c.err == nil {
		c.err = err
	}
}

func (r *reader) run() {
	c := r.c
	ended, err := r.loop()
	c.putBuffer(r.buffer)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.failed(err)
	}
	if c.total--; c.total == 0 {
		close(c.quiet)
		return
	}
	if ended {
		c.dismiss(len(c.parked)) // no reader is left to wake them
	}
}

// loop works until the reader is not needed, the connection has ended, or stop
// was called.
func (r *reader) loop() (ended bool, err error) {
	c := r.c
	for {
		n := int(c.idle.Add(1))
		if n > stopped {
			c.idle.Add(-1)
			r.stopPolling()
			return false, nil
		}
		if n > c.enough() {
			r.stopPolling()
			switch r.park() {
			case woken:
				continue
			case dismissed:
				return false, nil
			}
		}
		counted := false // by stop: it must take a stop request
		last := false    // no other reader waits in the kernel
		for again := true; again; again = counted {
			began := time.Now()
			r.poll(began)
			n, errno := r.read()
			c.rate.waited(time.Since(began))
			queued := false
			if !counted {
				if errno == 0 {
					n, queued = r.batchRequests(n)
				}
				left := c.idle.Add(-1)
				counted = left >= stopped
				last = left == 0
			}
			if errno != 0 || queued || n > 0 {
				r.stopPolling()
			}
			switch errno {
			case 0:
				if c.doing.Add(1) > 1 {
					c.rate.overlap()
				}
				switch {
				case queued && n > 0: // the request need not wait for the writes
					c.writes.Go(func() {
						c.doing.Add(1)
						c.commit(false)
						c.doing.Add(-1)
					})
				case queued:
					c.commit(last)
				}
				stop := n > 0 && r.handle(n, last)
				c.doing.Add(-1)
				if stop && counted {
					return false, nil
				}
			case unix.EINTR, unix.EAGAIN, unix.ENOENT: // ENOENT: the request was given up
			case unix.ENODEV:
				return true, nil
			default:
				return true, errs.Wrap(errno, "read from /dev/fuse")
			}
		}
	}
}

// enough is how many readers wait in the kernel at most.
func (c *Conn) enough() int {
	if c.batching.Load() || c.smallRun.isLong() {
		return 1
	}
	return c.opts.Idle
}

// largeRequest notes a request that is not small.
func (c *Conn) largeRequest() {
	if c.smallRun.end() && c.idle.Load() == 0 {
		c.wakeReader()
	}
}

// stopped is added to idle when the readers must stop.
const stopped = 1 << 20

// stop ends the readers. Those that carry out requests see it when they come
// back. Those in the kernel wait for a request, so each is sent one: a stop
// request, which it recognises by the thread that sends it.
func (c *Conn) stop() {
	c.mu.Lock()
	c.stopping.Store(true) // no reader parks any more
	c.dismiss(len(c.parked))
	c.mu.Unlock()
	inside := int(c.idle.Add(stopped)) - stopped
	for range inside {
		if err := isolatedthread.Do(func() error {
			c.stopThread.Store(int64(unix.Gettid()))
			var s unix.Statfs_t
			return unix.Statfs(c.Dir, &s)
		}); err != nil {
			break // the connection has ended, and so do they
		}
	}
	<-c.quiet
}

// parking is the outcome of an attempt to park.
type parking int

const (
	needed    parking = iota // not parked, still counted as idle
	woken                    // was parked, is needed again
	dismissed                // was parked, must end
)

func (r *reader) park() parking {
	c := r.c
	c.mu.Lock()
	if c.stopping.Load() || int(c.idle.Load()) <= c.enough() {
		c.mu.Unlock()
		return needed
	}
	c.idle.Add(-1)
	c.parked = append(c.parked, r)
	c.mu.Unlock()
	if _, ok := <-r.wake; !ok {
		return dismissed
	}
	return woken
}

// trim dismisses parked readers that were not needed since it ran last.
func (c *Conn) trim() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dismiss(c.least)
	c.least = len(c.parked)
	c.trimBuffers()
}

// dismiss ends the n readers that have been parked longest. The caller holds mu.
func (c *Conn) dismiss(n int) {
	for _, r := range c.parked[:n] {
		close(r.wake)
	}
	c.parked = append([]*reader(nil), c.parked[n:]...)
	c.least = min(c.least, len(c.parked))
}

// read waits for a request and returns its length.
func (r *reader) read() (int, unix.Errno) {
	n, _, errno := unix.Syscall(unix.SYS_READV, uintptr(r.c.fd), uintptr(unsafe.Pointer(&r.in[0])), 2)
	return int(n), errno
}

// answer sends the answer to a request: r.out and data. It does not block, so
// Go's scheduler need not know of it.
func (r *buffer) answer(data []byte) {
	parts := r.parts(data)
	_, _, errno := unix.RawSyscall(unix.SYS_WRITEV, uintptr(r.c.fd), uintptr(unsafe.Pointer(&parts[0])), uintptr(len(parts)))
	r.answered(errno)
}

// parts is the answer r.out and data, as the kernel takes it.
func (r *buffer) parts(data []byte) []unix.Iovec {
	r.vec[0].Base = &r.out[0]
	r.vec[0].SetLen(len(r.out))
	if len(data) == 0 {
		return r.vec[:1]
	}
	r.vec[1].Base = &data[0]
	r.vec[1].SetLen(len(data))
	return r.vec[:]
}

// answered says what came of an answer.
func (r *buffer) answered(errno unix.Errno) {
	if errno != 0 && !errors.Is(errno, unix.ENOENT) && !errors.Is(errno, unix.ENODEV) { // given up, or unmounted
		r.c.opts.Logger.Error("answer to the kernel failed", "volume", r.c.Name, "error", errno)
	}
}
