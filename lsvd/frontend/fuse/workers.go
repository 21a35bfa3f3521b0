package fuse

import (
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/errs"
)

// Workers are goroutines that take turns to read requests. The one that has the
// turn reads the requests that are there, as long as they are small, gives the
// turn on, and carries out those requests. So no request is handed to another
// goroutine, a slow request delays no other, and those that came together are
// carried out together.
//
// A worker that comes back ends if enough wait for the turn. If none waits when
// the turn is given on, another worker is started. So a disk with one request at a
// time has a few workers, and one with many requests has a worker for each.

const (
	// waitingMost is how many workers wait for the turn at most.
	waitingMost = 2
	// smallRequest is how long a request may be for others to be read with it.
	smallRequest = 16 << 10
	// batchMost is how many requests a worker reads at most.
	batchMost = 32
)

// request is a request that was read, with its buffer, which belongs to it.
type request struct {
	*buffer
	h head
	n int // its length
}

// in are the arguments of the request.
func (q *request) in() []byte { return q.head[inHead:min(q.n, len(q.head))] }

// more is how many bytes of arguments are in data.
func (q *request) more() int { return max(q.n-len(q.head), 0) }

// batch holds the requests that a worker has read in its turn.
type batch struct {
	reads  []request // small
	writes bool      // some were queued
	last   *request  // any other request, the last one
}

// start starts a worker.
func (c *Conn) start() { c.workers.Go(c.work) }

func (c *Conn) work() {
	for {
		if c.waiting.Add(1) > waitingMost {
			c.waiting.Add(-1)
			return
		}
		c.turn.Lock()
		c.waiting.Add(-1)
		var b batch
		if !c.ended {
			b = c.readBatch()
		}
		ended := c.ended
		c.turn.Unlock()
		if !ended && c.waiting.Load() == 0 {
			c.start()
		}
		c.carryOutBatch(b)
		if ended {
			return
		}
	}
}

// readBatch waits for a request and reads it, and those that are there after it, and
// queues the writes among them. The caller has the turn.
func (c *Conn) readBatch() (b batch) {
	for i := range batchMost {
		r := c.getBuffer(i == 0)
		if r == nil {
			return b // its requests give their buffers back
		}
		n := c.read(r, i == 0)
		if n == 0 {
			c.putBuffer(r)
			return b
		}
		if n < inHead {
			c.opts.Logger.Error("request of the kernel is too short", "volume", c.Name, "length", n)
			c.putBuffer(r)
			continue
		}
		q := request{r, parseHead(r.head), n}
		switch {
		case q.h.op == opForget || q.h.op == opBatchForget: // are not answered
			c.putBuffer(r)
		case q.h.op == opInterrupt:
			// The kernel sends no interrupts after a refusal. The request that it meant ends by itself.
			r.out = r.out[:outHead]
			r.finish(q.h.unique, nil, unix.ENOSYS)
			c.putBuffer(r)
		case q.h.op == opWrite && q.more() <= smallRequest && c.queueWrite(&q):
			b.writes = true
		case q.h.op == opRead && c.smallRead(q.in()):
			b.reads = append(b.reads, q)
		default:
			b.last = &q
			return b
		}
	}
	return b
}

// read reads a request and returns its length, 0 if there is none or the
// connection has ended; wait says whether to wait for one.
func (c *Conn) read(r *buffer, wait bool) int {
	for {
		if wait {
			fds := []unix.PollFd{{Fd: int32(c.fd), Events: unix.POLLIN}, {Fd: int32(c.wake), Events: unix.POLLIN}}
			if _, err := unix.Ppoll(fds, nil, nil); err != nil && !errors.Is(err, unix.EINTR) {
				c.end(errs.Wrap(err, "wait for /dev/fuse"))
				return 0
			}
			if fds[1].Revents != 0 {
				c.ended = true // the rest is for the successor
				return 0
			}
		}
		n, _, errno := unix.Syscall(unix.SYS_READV, uintptr(c.fd), uintptr(unsafe.Pointer(&r.in[0])), 2)
		switch errno {
		case 0:
			return int(n)
		case unix.EAGAIN:
			if !wait {
				return 0
			}
		case unix.EINTR, unix.ENOENT: // ENOENT: the request was given up
		case unix.ENODEV:
			c.end(nil)
			return 0
		default:
			c.end(errs.Wrap(errno, "read from /dev/fuse"))
			return 0
		}
	}
}

// end notes that the connection has ended. The caller has the turn.
func (c *Conn) end(err error) { c.ended, c.err = true, err }

// stop ends the workers: those that carry out requests end when they come back.
func (c *Conn) stop() error {
	_, err := unix.Write(c.wake, ne.AppendUint64(nil, 1))
	return errs.Wrap(err, "stop the workers")
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
