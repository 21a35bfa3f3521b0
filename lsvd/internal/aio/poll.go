package aio

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// One goroutine of the process fetches the completions of reads: the kernel wakes
// it for them. A caller that polls for work anyway may fetch them instead (Poll)
// until it stops (StopPolling): then no thread is woken. The goroutine checks now
// and then, so completions are fetched even if that caller does not come back.

// pollerPause is how long the goroutine leaves completions to the caller of Poll.
const pollerPause = 2 * time.Millisecond

// poller is the state of a caller that polls.
type poller struct {
	active atomic.Bool   // a caller polls
	parked atomic.Bool   // the goroutine leaves completions to that caller
	wake   chan struct{} // wakes the goroutine; has room for one

	mu sync.Mutex
	completions
}

// completions is room for what has completed.
type completions struct {
	events [depth]event
	begun  [depth]*Request
}

// Poll fetches the completions that are there, completes their reads, and reports
// whether there were any. It does not wait. Until StopPolling is called, the
// goroutine fetches none, but for a check now and then.
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

// StopPolling ends the polling that Poll began.
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

// reap fetches completions, as long as the process lives.
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
		if q.poller.active.Load() { // else that caller may have stopped before it saw parked
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

// poll fetches the completions that are there, without waiting.
func (q *queue) poll(c *completions) bool {
	var none unix.Timespec
	n, _, errno := unix.RawSyscall6(unix.SYS_IO_GETEVENTS, q.ctx, 0, depth, uintptr(unsafe.Pointer(&c.events[0])), uintptr(unsafe.Pointer(&none)), 0)
	if errno != 0 || n == 0 {
		return false
	}
	q.completeAll(c, int(n))
	return true
}

// completeAll completes the reads of the first n completions of c.
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
		runtime.Gosched() // the woken readers go first, on this thread
	}
}
