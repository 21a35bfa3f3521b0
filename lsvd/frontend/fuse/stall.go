package fuse

import (
	"sync/atomic"
	"time"
)

// Who writes is expected back in the kernel soon, so nobody is sent there
// meanwhile. But the disk may stall, and then all would wait for it that could
// be answered without: reads from the cache, or those that find the answer in
// memory. So whoever leaves nobody in the kernel arms a timer, unless it is:
// it fires until nothing changes any more, and sends a reader if nobody is
// there then. While requests come and go that costs one look per interval.

// stallInterval is how long nobody waits in the kernel before somebody is sent
// there; it is noticed within twice the time.
const stallInterval = 2 * time.Millisecond

type stallTimer struct {
	emptied atomic.Uint64 // how often nobody was left in the kernel
	armed   atomic.Bool
	stalled atomic.Bool // a write takes long: nobody relies on who writes
	timer   *time.Timer
	seen    uint64 // emptied when it fired last; of who armed it
}

// arm notes that nobody is left in the kernel.
func (w *stallTimer) arm() {
	w.emptied.Add(1)
	if !w.armed.Load() && w.armed.CompareAndSwap(false, true) {
		w.timer.Reset(stallInterval)
	}
}

// lastReaderLeaves is called by the last reader in the kernel when it may be away for
// long.
func (c *Conn) lastReaderLeaves() {
	if c.writing.Load() == 0 || c.stall.stalled.Load() {
		c.wakeReader()
		return
	}
	c.stall.arm()
}

// writerReturns ends what counts in brief.
func (c *Conn) writerReturns() {
	if c.writing.Add(-1) == 0 && c.stall.stalled.Load() {
		c.stall.stalled.Store(false)
	}
}

// checkStall is what the timer does.
func (c *Conn) checkStall() {
	w := &c.stall
	n := w.emptied.Load()
	if n != w.seen {
		w.seen = n
		w.timer.Reset(stallInterval)
		return
	}
	if c.batching.Load() { // it waits, for a request that was given up
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

// finishBatch carries out what the only reader has gathered.
func (c *Conn) finishBatch() {
	c.beginReads()
	if c.queuer != nil {
		c.queuer.Commit()
	}
}
