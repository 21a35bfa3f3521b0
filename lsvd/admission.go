package lsvd

import "sync/atomic"

// admission decides how many of the chances to bring in more than was asked for
// are taken: as long as it pays, all; else one in 2, 4, ... 32, so that what
// is in memory stays longer and has more chances to pay.
type admission struct {
	shift   atomic.Uint32
	chances atomic.Uint32
	score   atomic.Int32
	minHits int // hits that bringing in one frame must give
}

// maxShift keeps one in 32, which notices when times change.
const maxShift = 5

// admit reports whether this chance is taken. It does not depend on luck, so
// that a simulation repeats itself.
func (t *admission) admit() bool {
	shift := t.shift.Load()
	return shift == 0 || t.chances.Add(1)&(1<<shift-1) == 0
}

// recordHits notes how many hits a frame gave that is now evicted.
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

// readAround is how many frames around the one asked for are fetched from a store
// that is remote: 4 as long as a fifth of them is read before it is evicted.
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
