package readcache

import (
	"context"
	"slices"

	"miren.dev/runtime/lsvd/internal/manifest"
	"miren.dev/runtime/lsvd/internal/segment"
)

// Range is blocks of a segment, in a row.
type Range struct {
	Segment       *manifest.Segment
	Block, Blocks uint64
}

// Window is the most blocks that all streams together may prefetch.
func (c *Cache) Window() uint64 { return uint64(c.room.Load() / 8 / segment.Block) }

// Budget is the memory of frames, in bytes, whatever indexes need.
func (c *Cache) Budget() int64 { return c.room.Load() }

// Busy reports whether a read waits for a fetch of its own.
func (c *Cache) Busy() bool { return c.asking.Load() > 0 }

// Context ends when the cache is closed. It is for work of Go.
func (c *Cache) Context() context.Context { return c.ctx }

// Go calls f in a goroutine that Close waits for.
func (c *Cache) Go(f func()) { c.fetches.Go(f) }

// Prefetch fetches the frames of the ranges that are in no fast tier, as long as
// there is room for prefetched bytes. busy says that several reads of blocks that
// are not scattered are under way: then frames of a local store are left alone.
// It waits for reads of a local store, and only begins the others.
func (c *Cache) Prefetch(ranges []Range, busy bool) {
	var jobs []job
	for _, x := range ranges {
		jobs = c.planPrefetch(jobs, x, busy)
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
}

// PrefetchNow fetches the frames of a range like Prefetch, and waits for them. It
// calls planned before, with the number of bytes that it fetches.
func (c *Cache) PrefetchNow(x Range, planned func(bytes int64)) {
	jobs := c.planPrefetch(nil, x, false)
	for _, j := range jobs {
		planned(j.ahead)
	}
	for _, j := range jobs {
		c.runJob(c.ctx, j)
	}
}

// localReads is the reads of a job of plan, if the store is local and they are all it
// takes.
func (c *Cache) localReads(j job) (reads []*localRead) {
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

// planPrefetch adds the frames of a range that are in no tier that is
// fast, as long as there is room for prefetched bytes.
func (c *Cache) planPrefetch(jobs []job, x Range, busy bool) []job {
	var src *source
	if c.local != nil {
		var err error
		if src, err = c.source(c.ctx, x.Segment); err != nil {
			return jobs
		}
	}
	for f := int(x.Block / segment.FrameBlocks); f <= int((x.Block+x.Blocks-1)/segment.FrameBlocks); f++ {
		size := int64(frameSize(x.Segment, f))
		if busy && src != nil && src.IsPlain(f) || c.disk.Has(diskKey(x.Segment, f)) {
			continue
		}
		if c.inFlight.Load()+size > c.room.Load()/4 {
			break
		}
		fl := c.claimAhead(frameKey{x.Segment.Num, uint32(f)})
		if fl == nil {
			continue
		}
		c.inFlight.Add(size)
		c.aheadBytes.Add(size)
		jobs = c.assign(jobs, x.Segment, fl)
		jobs[len(jobs)-1].ahead += size
	}
	return jobs
}
