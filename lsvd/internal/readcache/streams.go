package readcache

import (
	"sync"
	"sync/atomic"

	"miren.dev/runtime/lsvd/internal/segment"
)

// Read-ahead: reads that follow each other are a stream, several at a time.
// Blocks ahead of a stream are fetched into memory while it goes on, first 256
// KiB, and twice as much each time it gets through half of that, up to 8 MiB
// or what its share of the memory allows. From a local store only where
// a stream has one read at a time, as several have the device busy already, or
// its blocks are scattered over segments.
const (
	maxStreams  = 16
	firstWindow = 256 << 10 / segment.Block
	maxWindow   = 8 << 20 / segment.Block
	idleStream  = 4096 // reads without one of the stream
)

// Streams finds streams among reads. The zero value is ready.
type Streams struct {
	found atomic.Int32 // those with a window

	mu    sync.Mutex
	clock uint64
	all   [maxStreams]stream
}

type stream struct {
	next   uint64 // block where the next read is expected
	ahead  uint64 // up to where was read ahead
	window uint64 // blocks; 0: maybe it is none
	steps  int
	seen   uint64 // clock of its last read; 0: unused
}

// covers reports whether a read of n blocks at lba belongs to s. Several may be
// under way at once, so they come in any order, and one may be late by many.
// Before it is known to be a stream only its misses are seen, and each fetches
// the frames around it too, so the next one may be a fetch further on.
func (s *stream) covers(lba, n uint64) bool {
	late, early := min(32*n, 4*maxWindow), max(min(8*n, maxWindow), fetchFrames*segment.FrameBlocks)
	return s.seen != 0 && lba+late >= s.next && lba <= s.next+early
}

// Note takes a read of n blocks at lba into account, and returns what to read
// ahead, for which stream, and whether the read belongs to one that was found;
// most is the largest window, in blocks, of all streams together.
func (t *Streams) Note(lba, n uint64, missed bool, most uint64) (of int, from, to uint64, found bool) {
	if !missed && t.found.Load() == 0 {
		return 0, 0, 0, false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.clock++
	// What was found comes first: any read may have left something near it.
	mine, oldest := -1, (*stream)(nil)
	for i := range t.all {
		s := &t.all[i]
		if s.covers(lba, n) && (mine < 0 || s.window > 0 && t.all[mine].window == 0) {
			mine = i
		}
		if s.window > 0 && i != mine && t.clock-s.seen > idleStream {
			*s = stream{}
			t.found.Add(-1)
		}
		if s.window == 0 && (oldest == nil || s.seen < oldest.seen) {
			oldest = s
		}
	}
	if mine >= 0 {
		s := &t.all[mine]
		from, to = t.advance(s, lba, n, most)
		return mine, from, to, s.window > 0
	}
	if missed && oldest != nil {
		*oldest = stream{next: lba + n, seen: t.clock}
	}
	return 0, 0, 0, false
}

// Has reports whether a read of n blocks at lba belongs to a stream that was
// found.
func (t *Streams) Has(lba, n uint64) bool {
	if t.found.Load() == 0 {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.all {
		if s := &t.all[i]; s.window > 0 && s.covers(lba, n) {
			return true
		}
	}
	return false
}

// Remaining is where what is still of use to a stream of [from,to) begins.
func (t *Streams) Remaining(of int, from, to uint64) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := &t.all[of]; s.ahead >= to {
		from = max(from, s.next)
	}
	return from
}

func (t *Streams) advance(s *stream, lba, n, most uint64) (from, to uint64) {
	s.seen = t.clock
	if lba+n <= s.next {
		if s.window == 0 { // what was ahead of it may have been any read
			s.next, s.steps = lba+n, 0
		}
		return 0, 0
	}
	s.next = lba + n
	s.steps++
	share := most
	if f := t.found.Load(); f > 1 {
		share /= uint64(f)
	}
	share = min(share, maxWindow)
	if share < firstWindow || s.steps < 2 && n < segment.FrameBlocks {
		return 0, 0
	}
	if s.window == 0 {
		t.found.Add(1)
		s.window, s.ahead = firstWindow, s.next
	}
	s.ahead = max(s.ahead, s.next)
	if s.ahead-s.next > s.window/2 {
		return 0, 0
	}
	from, to = s.ahead, s.next+s.window
	s.ahead = to
	s.window = min(2*s.window, share)
	return from, to
}
