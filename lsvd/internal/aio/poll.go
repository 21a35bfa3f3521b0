package aio

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Who takes what has completed: one goroutine of the process, which the kernel
// wakes for it. Somebody who looks around for work anyway may do so instead
// (Take), as long as he does (Leave): then nobody is woken. The goroutine
// looks after him now and then, so nothing depends on it that he comes back.

// pollerPause is how long the goroutine leaves to somebody else what has
// completed.
const pollerPause = 2 * time.Millisecond

// poller is somebody else who takes what has completed.
type poller struct {
	active atomic.Bool   // there is one
	parked atomic.Bool   // the goroutine leaves it to him
	wake   chan struct{} // the goroutine; has room for one

	mu sync.Mutex
	completions
}

// completions is room for what has completed.
type completions struct {
	events [depth]event
	begun  [depth]*Request
}

// Poll takes what has completed, if there is something, tells those whose reads
// those were, and reports whether there were any. It does not wait. Until Leave
// is called, nobody else does so, but for a look now and then.
func Poll() bool {
	q := created.Load()
	if q == nil {
		return false
	}
	if !q.poller.active.Load() {
		q.poller.active.Store(true)
	}
	if q.busy.Load() == 0 || !q.poller.mu.TryLock() {
		return false
	}
	defer q.poller.mu.Unlock()
	return q.poll(&q.poller.completions)
}

// StopPolling ends what Take began.
func StopPolling() {
	q := created.Load()
	if q == nil || !q.poller.active.Load() {
		return
	}
	q.poller.active.Store(false)
	if !q.poller.parked.Load() {
		return
	}
	select {
	case q.poller.wake <- struct{}{}:
	default:
	}
}

// reap takes what has completed, as long as the process lives.
func (q *queue) reap() {
	var c completions
	timer := time.NewTimer(pollerPause)
	for {
		if !q.poller.active.Load() {
			if n, _, errno := unix.Syscall6(unix.SYS_IO_GETEVENTS, q.ctx, 1, depth, uintptr(unsafe.Pointer(&c.events[0])), 0, 0); errno == 0 {
				q.completeAll(&c, int(n))
			} // else EINTR: nothing else is possible
			continue
		}
		q.poller.parked.Store(true)
		if q.poller.active.Load() { // else he may not have seen that he is relied on
			timer.Reset(pollerPause)
			select {
			case <-q.poller.wake:
			case <-timer.C:
				q.poll(&c)
			}
		}
		q.poller.parked.Store(false)
	}
}

// poll takes what has completed without waiting for it.
func (q *queue) poll(c *completions) bool {
	var none unix.Timespec
	n, _, errno := unix.RawSyscall6(unix.SYS_IO_GETEVENTS, q.ctx, 0, depth, uintptr(unsafe.Pointer(&c.events[0])), uintptr(unsafe.Pointer(&none)), 0)
	if errno != 0 || n == 0 {
		return false
	}
	q.completeAll(c, int(n))
	return true
}

// completeAll tells those whose reads have completed, the first n of c.
func (q *queue) completeAll(c *completions, n int) {
	waited, calls := false, 0
	for i := range c.events[:n] {
		e := &c.events[i]
		s := &q.slots[e.data]
		r := s.req.Load()
		if r == nil {
			s.done <- e.res
			waited = true
			continue
		}
		c.begun[calls], c.events[calls].res = r, e.res
		calls++
		q.release(s)
	}
	q.busy.Add(-int32(calls))
	for i, r := range c.begun[:calls] {
		n, err := result(c.events[i].res)
		r.Completion.Done(n, err, i+1 < calls)
	}
	for i, r := range c.begun[:calls] {
		c.begun[i] = nil
		r.Completion.BatchDone()
	}
	if waited {
		runtime.Gosched() // they go first, on this thread
	}
}
