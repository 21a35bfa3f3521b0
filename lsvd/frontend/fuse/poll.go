package fuse

import (
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/lsvd/internal/aio"
	"miren.dev/runtime/lsvd/internal/sched"
)

// A processor that has nothing to do halts, and to wake it takes 20 to 30 µs in
// a virtual machine; with one request at a time there are several such waits in
// each. So while requests follow each other closely, and none is being carried
// out, a reader polls for the next one for a while before it sleeps, for the
// same reason as KVM and Linux's haltpoll do. Meanwhile it yields the processor
// to other threads. If they take much of it, there is other work to do: then the
// reader pauses for some time. One reader in a process polls.

// pollMost is how long a reader polls for a request, and how long a wait for a
// request may be to count as short: longer than a flush of a fast disk. Tests
// lengthen it.
var pollMost = 300 * time.Microsecond

const (
	// pollAfter is how many waits were that short.
	pollAfter = 16
	// pollGain is about what polling saves for a request: other threads may keep
	// the processor that long for each.
	pollGain = 20 * time.Microsecond
	// pollLost is what one poll takes at least if another thread had the processor.
	pollLost = 100 * time.Microsecond
	// pollCredit is how many requests count as found in advance, and
	// pollCreditMost how many at most.
	pollCredit, pollCreditMost = 64, 512
	// pollOff is how long the first pause is, and pollOffMost the longest.
	pollOff, pollOffMost = 10 * time.Millisecond, time.Second
)

// polling is whether a reader of the process may poll for requests.
var polling struct {
	taken  atomic.Bool // a reader polls; the rest belongs to it
	budget pollBudget
}

// pollBudget decides when polling pays.
type pollBudget struct {
	found int           // requests, less what they have cost
	off   time.Duration // how long the last pause was
	until time.Time
}

// got notes that a request was found.
func (p *pollBudget) got() {
	if p.found++; p.found >= pollCreditMost {
		p.found, p.off = pollCreditMost, 0
	}
}

// lost notes that another thread had the processor, until now, for a time d.
func (p *pollBudget) lost(now time.Time, d time.Duration) {
	if p.found -= int(d / pollGain); p.found >= -pollCredit {
		return
	}
	p.found, p.off = 0, min(max(2*p.off, pollOff), pollOffMost)
	p.until = now.Add(p.off)
}

// arrivalRate is how closely the requests of a connection follow each other.
type arrivalRate struct{ short atomic.Int32 }

// waited notes how long a request was waited for.
func (r *arrivalRate) waited(d time.Duration) {
	switch n := r.short.Load(); {
	case d > pollMost:
		r.short.Store(max(n-2, 0))
	case n < 2*pollAfter:
		r.short.Store(n + 1)
	}
}

// overlap notes that a request came while another was being carried out.
func (r *arrivalRate) overlap() { r.short.Store(0) }

func (r *arrivalRate) high() bool { return r.short.Load() >= pollAfter }

// poll polls for a request, for a while from began on, if that pays. Meanwhile
// the reader fetches the completions of reads, for which no thread has to be
// woken then. If it has found a request, it remains the reader that polls.
func (r *reader) poll(began time.Time) {
	if !r.mayPoll(began) {
		r.stopPolling()
		return
	}
	p := &polling.budget
	for was := began; ; {
		if aio.Poll() { // the callers of these reads send the next requests
			was = time.Now()
			began = was
		}
		n, errno := pending(r.c.fd)
		if n > 0 {
			p.got()
			return
		}
		if errno != 0 { // interrupted, say: read waits, or says why it cannot
			break
		}
		sched.Yield()
		now := time.Now()
		if now.Sub(was) > pollLost {
			p.lost(now, now.Sub(was))
			break
		}
		if now.Sub(began) > pollMost {
			break
		}
		was = now
	}
	r.stopPolling()
}

// mayPoll reports whether the reader may poll for requests now.
func (r *reader) mayPoll(now time.Time) bool {
	c := r.c
	if !c.rate.high() || c.doing.Load() > 0 || runtime.NumCPU() == 1 {
		return false
	}
	r.looking = r.looking || polling.taken.CompareAndSwap(false, true)
	return r.looking && !now.Before(polling.budget.until)
}

// stopPolling must be called before the reader does anything that may take long.
func (r *reader) stopPolling() {
	if r.looking {
		r.looking = false
		aio.StopPolling()
		polling.taken.Store(false)
	}
}

// pending is 1 if there is a request, else 0. It does not wait.
func pending(fd int) (int, unix.Errno) {
	fds := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	var at unix.Timespec // arm64 has no poll(2)
	n, _, errno := unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&fds[0])), 1, uintptr(unsafe.Pointer(&at)), 0, 0, 0)
	return int(n), errno
}
