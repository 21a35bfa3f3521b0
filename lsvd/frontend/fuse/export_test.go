package fuse

import "time"

// SetTrimInterval is for tests that run nothing else meanwhile.
func SetTrimInterval(d time.Duration) (undo func()) {
	old := trimInterval
	trimInterval = d
	return func() { trimInterval = old }
}

// SetPollMost is for tests that run nothing else meanwhile.
func SetPollMost(d time.Duration) (undo func()) {
	old := pollMost
	pollMost = d
	return func() { pollMost = old }
}

// SetReady replaces how the only reader asks whether there is a further
// request; it is for tests that run nothing else meanwhile.
func SetReady(f func(fd int) bool) (undo func()) {
	old := ready
	ready = f
	return func() { ready = old }
}

// Pending reports whether there is a request.
func Pending(fd int) bool {
	n, _ := pending(fd)
	return n > 0
}

// Single reports whether a single reader waits in the kernel, and nobody else would.
func (c *Conn) Single() bool { return c.enough() == 1 && c.idle.Load() == 1 }

// Polling reports whether a reader looks for requests.
func Polling() bool { return polling.taken.Load() }

// Count returns how many readers there are, and how many of them are parked.
func (c *Conn) Count() (total, parked int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.total, len(c.parked)
}

// Slabs returns how many pairs of buffers have memory.
func (c *Conn) Slabs() int {
	c.bufMu.Lock()
	defer c.bufMu.Unlock()
	return len(c.slabs)
}
