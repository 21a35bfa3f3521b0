package readcache

import "sync/atomic"

// admission is the admission policy of the read cache. It decides which misses
// bring a whole frame into memory though a read needs only some of it: all of
// them as long as that pays, else one in 2, 4, ... 32, so that the frames in
// memory stay longer and give more hits.
type admission struct {
	shift   atomic.Uint32
	chances atomic.Uint32
	score   atomic.Int32
	minHits int // hits that an admitted frame must give
}

// maxShift lets one miss in 32 at least into the cache, so the policy notices a change of the load.
const maxShift = 5

// admit reports whether this miss is admitted. It is deterministic, so that a
// simulation repeats itself.
func (t *admission) admit() bool {
	shift := t.shift.Load()
	return shift == 0 || t.chances.Add(1)&(1<<shift-1) == 0
}

// recordHits records how many hits an evicted frame gave.
func (t *admission) recordHits(hits int) {
	d := int32(-1)
	if hits >= t.minHits {
		d = min(int32(hits/t.minHits), 8)
	}
	t.adjust(d)
}

func (t *admission) adjust(d int32) {
	const turn = 16
	switch s := t.score.Add(d); {
	case s <= -turn:
		t.score.Store(0)
		if v := t.shift.Load(); v < maxShift {
			t.shift.Store(v + 1)
		}
	case s >= turn:
		t.score.Store(0)
		if v := t.shift.Load(); v > 0 {
			t.shift.Store(v - 1)
		}
	}
}

// readAround is the read-around policy: how many frames around a missing one are
// fetched from a remote store. It is 4 as long as a fifth of them is read before
// it is evicted.
type readAround struct {
	admission
	good, bad atomic.Int64
}

func (b *readAround) useful() { b.good.Add(1); b.adjust(4) }
func (b *readAround) wasted() { b.bad.Add(1); b.adjust(-1) }

// frames is how many aligned frames a random read fetches: 1, 2 or 4.
func (b *readAround) frames() int {
	shift := b.shift.Load()
	if shift > 0 && b.chances.Add(1)%32 == 0 {
		return fetchFrames // only what is fetched can be useful
	}
	return max(fetchFrames>>shift, 1)
}
