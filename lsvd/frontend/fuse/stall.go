package fuse

import (
	"sync/atomic"
	"time"
)

// A reader that carries out writes soon reads /dev/fuse again, so no extra reader
// is started meanwhile. But the disk may stall, and then requests would wait that
// the cache can answer. So the last reader that leaves the kernel arms a timer,
// unless it is armed. The timer fires until no reader has come or gone for an
// interval, and wakes a reader if none is in the kernel then. While requests come
// and go, that costs one check per interval.

// stallInterval is how long no reader waits in the kernel before one is woken. It
// is noticed within twice the time.
const stallInterval = 2 * time.Millisecond

// stallTimer wakes a reader when none has read /dev/fuse for a while.
type stallTimer struct {
	emptied atomic.Uint64 // how often no reader was left in the kernel
	armed   atomic.Bool
	stalled atomic.Bool // a write takes long: its reader does not count as coming back soon
	timer   *time.Timer
	seen    uint64 // emptied when the timer fired last; only checkStall uses it
}

// arm notes that no reader is left in the kernel.
func (w *stallTimer) arm() {
	w.emptied.Add(1)
	if !w.armed.Load() && w.armed.CompareAndSwap(false, true) {
		w.timer.Reset(stallInterval)
	}
}

// lastReaderLeaves is called by the last reader in the kernel when it may be away
// for long.
func (c *Conn) lastReaderLeaves() {
	if c.writing.Load() == 0 || c.stall.stalled.Load() {
		c.wakeReader()
		return
	}
	c.stall.arm()
}

// writerReturns notes that a reader has carried out its writes.
func (c *Conn) writerReturns() {
	if c.writing.Add(-1) == 0 && c.stall.stalled.Load() {
		c.stall.stalled.Store(false)
	}
}

// checkStall is called by the timer.
func (c *Conn) checkStall() {
	w := &c.stall
	n := w.emptied.Load()
	if n != w.seen {
		w.seen = n
		w.timer.Reset(stallInterval)
		return
	}
	if c.batching.Load() { // the only reader waits, for a request that was interrupted
		go c.finishBatch()
	}
	if c.idle.Load() == 0 {
		w.stalled.Store(c.writing.Load() > 0)
		c.wakeReader()
	}
	w.armed.Store(false)
	if w.emptied.Load() != n && w.armed.CompareAndSwap(false, true) {
		w.timer.Reset(stallInterval)
	}
}

// finishBatch carries out the requests that the only reader has batched.
func (c *Conn) finishBatch() {
	c.beginReads()
	if c.queuer != nil {
		c.queuer.Commit()
	}
}
