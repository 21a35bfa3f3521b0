package lsvd

import (
	"slices"
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
	firstWindow = 256 << 10 / BlockSize
	maxWindow   = 8 << 20 / BlockSize
	idleStream  = 4096 // reads without one of the stream
)

// streams finds streams among reads.
type streams struct {
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

// note takes a read of n blocks at lba into account, and returns what to read
// ahead, for which stream, and whether the read belongs to one that was found;
// most is the largest window, in blocks, of all streams together.
func (t *streams) note(lba, n uint64, missed bool, most uint64) (of int, from, to uint64, found bool) {
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

// has reports whether a read of n blocks at lba belongs to a stream that was
// found.
func (t *streams) has(lba, n uint64) bool {
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

// remaining is where what is still of use to a stream of [from,to) begins.
func (t *streams) remaining(of int, from, to uint64) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := &t.all[of]; s.ahead >= to {
		from = max(from, s.next)
	}
	return from
}

func (t *streams) advance(s *stream, lba, n, most uint64) (from, to uint64) {
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

// noteRead notes a read and prefetches the blocks that are likely to be read next. It reports
// whether the read belongs to a stream. busy says that several are under way,
// of blocks that are not scattered. The caller is in a reader epoch.
func (d *Device) noteRead(lba, n uint64, missed, busy bool) bool {
	c := d.cache
	if c.manual {
		return false
	}
	of, from, to, found := d.streams.note(lba, n, missed, uint64(c.room/8/BlockSize))
	to = min(to, uint64(d.size.Load()/BlockSize))
	if from >= to {
		return found
	}
	c.fetches.Go(func() {
		// The stream may have overtaken this goroutine.
		if from = d.streams.remaining(of, from, to); from >= to {
			return
		}
		pieces, g, err := d.locate(c.ctx, from, to-from, nil)
		if err != nil {
			return // a read of these blocks reports the error
		}
		// Segments may be deleted while they are read ahead; then that fails.
		g.exit()
		var jobs []job
		for _, x := range pieces {
			if x.seg != nil && !x.seg.lost {
				jobs = c.planPrefetch(jobs, part{s: &x.seg.Segment, block: x.block}, x.n, busy)
			}
		}
		var reads []*localRead
		for _, j := range jobs {
			if local := c.localReads(j); local != nil {
				reads = append(reads, local...)
			} else {
				c.startJob(c.ctx, j)
			}
		}
		c.readAll(c.ctx, reads)
	})
	return found
}

// localReads is the reads of a job of plan, if the store is local and they are all it
// takes.
func (c *cache) localReads(j job) (reads []*localRead) {
	if c.local == nil {
		return nil
	}
	src := c.sources.get(j.s.Num)
	if src == nil || slices.ContainsFunc(j.flights, func(fl *flight) bool { return !src.IsPlain(int(fl.key.frame)) }) {
		return nil
	}
	for _, fl := range j.flights {
		f := int(fl.key.frame)
		reads = append(reads, c.fetchLocal(src, f, fl, func(*frame) { c.inFlight.Add(-int64(frameSize(j.s, f))) }, false))
	}
	return reads
}

// planPrefetch adds the frames with n blocks of a segment that are in no tier that is
// fast, as long as there is room for prefetched bytes.
func (c *cache) planPrefetch(jobs []job, x part, n uint64, busy bool) []job {
	var src *source
	if c.local != nil {
		var err error
		if src, err = c.source(c.ctx, x.s); err != nil {
			return jobs
		}
	}
	for f := int(x.block / segment.FrameBlocks); f <= int((x.block+n-1)/segment.FrameBlocks); f++ {
		size := int64(frameSize(x.s, f))
		if busy && src != nil && src.IsPlain(f) || c.disk.Has(diskKey(x.s, f)) {
			continue
		}
		if c.inFlight.Load()+size > c.room/4 {
			break
		}
		fl := c.claimAhead(frameKey{x.s.Num, uint32(f)})
		if fl == nil {
			continue
		}
		c.inFlight.Add(size)
		c.aheadBytes.Add(size)
		jobs = c.assign(jobs, x.s, fl)
		jobs[len(jobs)-1].ahead += size
	}
	return jobs
}
