package fuse

import "time"

// SetTrimInterval is for tests that run nothing else meanwhile.
func SetTrimInterval(d time.Duration) (undo func()) {
	old := trimInterval
	trimInterval = d
	return func() { trimInterval = old }
}

// Count returns how many workers wait for the turn, and how many buffers there are.
func (c *Conn) Count() (waiting, buffers int) {
	c.bufMu.Lock()
	defer c.bufMu.Unlock()
	return int(c.waiting.Load()), c.buffers
}
