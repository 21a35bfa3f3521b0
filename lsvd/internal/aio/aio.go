// Package aio is Linux's native asynchronous I/O, for two purposes.
//
// [Read] reads files past the page cache, many reads at a time, without a
// thread waiting for each. A goroutine that reads is parked, and one goroutine
// of the process fetches completions and wakes the readers, several together.
// Where each read has a thread that waits for it, most of the processor time goes
// into switching between them. [ReadAll] hands many reads to the kernel with one
// call, and waits for all of them.
//
// A [Batch] makes many small writes with one call.
package aio

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Align is what memory, offset and length of a read are multiples of.
const Align = 4096

// depth is how many reads of the process are under way at most; others wait.
const depth = 256

// iocb and event are structures of the kernel (linux/aio_abi.h).
type iocb struct {
	data   uint64
	_      uint64 // key, flags
	opcode uint16
	_      int16 // priority
	fd     uint32
	buf    *byte
	n      uint64
	off    int64
	_      [2]uint64
}

type event struct {
	data      uint64
	_         uint64 // the iocb
	res, res2 int64
}

const opRead = 0

// slot is a read under way. The kernel knows it by its number.
type slot struct {
	cb   iocb
	done chan int64 // the result; has room for one
}

// Request is a read of [ReadAll].
type Request struct {
	FD  int    // was opened for direct I/O
	P   []byte // aligned
	Off int64
	N   int // how much was read; 0 also where it failed
}

type queue struct {
	ctx   uintptr
	busy  atomic.Int32 // reads
	slots [depth]slot
	free  chan int
}

// processQueue returns the queue of the process; nil if the kernel refuses one.
var processQueue = sync.OnceValue(func() *queue {
	q := &queue{free: make(chan int, depth)}
	if _, _, errno := unix.Syscall(unix.SYS_IO_SETUP, depth, uintptr(unsafe.Pointer(&q.ctx)), 0); errno != 0 {
		return nil
	}
	for i := range q.slots {
		q.slots[i].done = make(chan int64, 1)
		q.free <- i
	}
	go q.reap()
	return q
})

// Aligned reports whether p can be read from off.
func Aligned(p []byte, off int64) bool {
	return len(p) > 0 && len(p)%Align == 0 && off%Align == 0 && uintptr(unsafe.Pointer(unsafe.SliceData(p)))%Align == 0
}

// Cached reports whether a range of a file is in the page cache; false where the
// kernel cannot tell (before Linux 6.5).
func Cached(fd int, off int64, n int) bool {
	span := struct{ off, n uint64 }{uint64(off), uint64(n)}
	var found struct{ pages, dirty, writeback, evicted, recently uint64 }
	_, _, errno := unix.RawSyscall6(unix.SYS_CACHESTAT, uintptr(fd), uintptr(unsafe.Pointer(&span)), uintptr(unsafe.Pointer(&found)), 0, 0, 0)
	return errno == 0 && found.pages >= uint64(n/Align)
}

// Read fills p, which is aligned, from off of a file that was opened for direct
// I/O, and returns how much there was. Where the kernel cannot do that, it
// fails with [errors.ErrUnsupported].
func Read(fd int, p []byte, off int64) (int, error) {
	q := processQueue()
	if q == nil {
		return 0, errors.ErrUnsupported
	}
	defer q.busy.Add(-1)
	if q.busy.Add(1) == 1 {
		// Alone, one switch is cheaper than two.
		for {
			if n, err := unix.Pread(fd, p, off); err != unix.EINTR {
				return n, err
			}
		}
	}
	s := q.acquire(<-q.free, fd, p, off)
	defer q.release(s)
	cbs := [1]*iocb{&s.cb}
	if _, errno := q.submit(cbs[:]); errno != 0 {
		return 0, errno
	}
	return result(<-s.done)
}

// acquire sets up the free slot i for a read.
func (q *queue) acquire(i, fd int, p []byte, off int64) *slot {
	s := &q.slots[i]
	s.cb = iocb{data: uint64(i), opcode: opRead, fd: uint32(fd), buf: unsafe.SliceData(p), n: uint64(len(p)), off: off}
	return s
}

// release frees a slot.
func (q *queue) release(s *slot) {
	s.cb.buf = nil
	q.free <- int(s.cb.data)
}

// submit hands reads to the kernel and returns how many it has taken, or why
// not even the first.
func (q *queue) submit(cbs []*iocb) (int, unix.Errno) {
	for {
		n, _, errno := unix.Syscall(unix.SYS_IO_SUBMIT, q.ctx, uintptr(len(cbs)), uintptr(unsafe.Pointer(&cbs[0])))
		if errno != unix.EINTR && errno != unix.EAGAIN {
			return int(n), errno
		}
		runtime.Gosched()
	}
}

func result(res int64) (int, error) {
	if res < 0 {
		return 0, unix.Errno(-res)
	}
	return int(res), nil
}

// ReadAll makes reads, as many at once as there is room for. It does not wait for
// room, since the reads under way may be on a disk that does not answer. It makes none of
// the reads without room, and none where the kernel has no such call.
func ReadAll(reqs []*Request) {
	q := processQueue()
	if q == nil {
		return
	}
	var few [submitMost]*iocb
	for len(reqs) > 0 {
		cbs := few[:0]
		for len(cbs) < min(len(few), len(reqs)) {
			i := q.spare()
			if i < 0 {
				break
			}
			r := reqs[len(cbs)]
			cbs = append(cbs, &q.acquire(i, r.FD, r.P, r.Off).cb)
		}
		if len(cbs) == 0 {
			return
		}
		q.readAll(cbs, reqs)
		reqs = reqs[len(cbs):]
	}
}

// readAll makes the reads of cbs, which are the first of reqs.
func (q *queue) readAll(cbs []*iocb, reqs []*Request) {
	q.busy.Add(int32(len(cbs)))
	failed := 0 // bits
	for at := 0; at < len(cbs); {
		n, errno := q.submit(cbs[at:])
		if errno != 0 {
			n = 1
			failed |= 1 << at
		}
		at += n
	}
	for i, cb := range cbs {
		s := &q.slots[cb.data]
		if failed&(1<<i) == 0 {
			reqs[i].N = int(max(<-s.done, 0))
		}
		q.release(s)
	}
	q.busy.Add(-int32(len(cbs)))
}

// spare returns a free slot, or -1.
func (q *queue) spare() int {
	select {
	case i := <-q.free:
		return i
	default:
		return -1
	}
}

// submitMost is how many reads are handed to the kernel at a time.
const submitMost = 32

// reap fetches completions and wakes the readers, as long as the process lives.
func (q *queue) reap() {
	var events [depth]event
	for {
		n, _, errno := unix.Syscall6(unix.SYS_IO_GETEVENTS, q.ctx, 1, depth, uintptr(unsafe.Pointer(&events[0])), 0, 0)
		if errno != 0 {
			continue // EINTR: nothing else is possible
		}
		for _, e := range events[:n] {
			q.slots[e.data].done <- e.res
		}
		runtime.Gosched() // the woken readers go first, on this thread
	}
}
