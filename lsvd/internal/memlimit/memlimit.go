// Package memlimit keeps the memory of this process below a limit of which part
// is mapped outside of Go's heap, where the garbage collector does not see it.
package memlimit

import (
	"math"
	"runtime/debug"
	"sync"
)

// step is by how much the mapped memory changes before the collector is told:
// that stops the program for a moment.
const step = 16 << 20

var state = struct {
	mu      sync.Mutex
	limit   int64 // of all memory together
	outside int64 // mapped
	told    int64 // what outside was when the collector was told
}{limit: math.MaxInt64}

// Set limits the memory of the process, in bytes.
func Set(limit int64) {
	s := &state
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limit = limit
	updateGCLimit()
}

// AddOffHeap notes that n bytes more are mapped; fewer, if it is negative.
func AddOffHeap(n int64) {
	s := &state
	s.mu.Lock()
	defer s.mu.Unlock()
	s.outside += n
	if s.limit < math.MaxInt64 && (s.outside-s.told >= step || s.told-s.outside >= step) {
		updateGCLimit()
	}
}

// updateGCLimit gives the collector what is left, and at least a quarter: with less it
// would do nothing but collect. The caller holds mu.
func updateGCLimit() {
	s := &state
	s.told = s.outside
	debug.SetMemoryLimit(max(s.limit-s.outside, s.limit/4))
}
