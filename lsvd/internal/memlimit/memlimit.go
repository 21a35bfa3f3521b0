// Package memlimit keeps the memory of this process below a limit of which part
// is mapped outside of Go's heap, where the garbage collector does not see it.
package memlimit

import (
	"math"
	"runtime/debug"
	"sync"
)

// step is by how much the mapped memory changes before the collector's limit is updated:
// that stops the program for a moment.
const step = 16 << 20

var state = struct {
	mu       sync.Mutex
	limit    int64 // of all memory together
	offHeap  int64 // mapped
	reported int64 // offHeap at the last update of the collector's limit
}{limit: math.MaxInt64}

// Set limits the memory of the process, in bytes.
func Set(limit int64) {
	s := &state
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limit = limit
	updateGCLimit()
}

// Limit is the limit of the memory of the process, in bytes; math.MaxInt64: none.
func Limit() int64 {
	s := &state
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.limit
}

// AddOffHeap adds n to the bytes that are mapped off the heap; n may be negative.
func AddOffHeap(n int64) {
	s := &state
	s.mu.Lock()
	defer s.mu.Unlock()
	s.offHeap += n
	if s.limit < math.MaxInt64 && (s.offHeap-s.reported >= step || s.reported-s.offHeap >= step) {
		updateGCLimit()
	}
}

// updateGCLimit gives the collector the rest of the limit, and at least a quarter: with less it
// would do nothing but collect. The caller holds mu.
func updateGCLimit() {
	s := &state
	s.reported = s.offHeap
	debug.SetMemoryLimit(max(s.limit-s.offHeap, s.limit/4))
}
