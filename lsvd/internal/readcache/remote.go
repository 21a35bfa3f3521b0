package readcache

import (
	"context"

	"miren.dev/runtime/lsvd/internal/manifest"
	"miren.dev/runtime/lsvd/internal/sched"
	"miren.dev/runtime/lsvd/internal/segment"
	"miren.dev/runtime/lsvd/store"
)

// job is frames of a segment, in a row, that one operation on the store fetches.
type job struct {
	s       *manifest.Segment
	flights []*flight
	ahead   int64 // bytes of prefetched frames, counted in inFlight
}

func (j job) first() int { return int(j.flights[0].key.frame) }

// loadRemote fills x with one operation on the store for each run of frames that
// is neither in memory nor being fetched.
func (c *Cache) loadRemote(ctx context.Context, x Part) error {
	type wait struct {
		fl   *flight
		part Part
		mine bool
	}
	var waits []wait
	var jobs []job
	for len(x.P) > 0 {
		f, at, p := x.head()
		k := frameKey{x.Segment.Num, uint32(f)}
		switch fr, fl, mine := c.claim(k); {
		case fr != nil:
			copy(p, fr.data[at:])
			fr.release()
		default:
			waits = append(waits, wait{fl, Part{x.Segment, x.Block, p}, mine})
			if mine {
				jobs = c.assign(jobs, x.Segment, fl)
			}
		}
		x = x.skip(len(p))
	}
	if len(jobs) == 1 && len(jobs[0].flights) == 1 && c.local == nil {
		c.widen(&jobs[0])
	}
	if len(jobs) > 0 {
		c.asking.Add(1)
		defer c.asking.Add(-1)
	}
	for _, j := range jobs {
		c.startJob(ctx, j)
	}
	var failed error
	for _, w := range waits {
		if failed != nil {
			c.abandon(w.fl)
			continue
		}
		fr, err := c.await(ctx, w.fl)
		if err == nil {
			_, at, p := w.part.head()
			copy(p, fr.data[at:])
			fr.release()
			continue
		}
		if !w.mine && ctx.Err() == nil {
			// The attempt of another reader, which may have been cancelled, or
			// may have begun when the segment was still there: make an own one.
			err = c.loadRemote(ctx, w.part)
		}
		failed = err
	}
	return failed
}

// assign adds a flight to the last job or begins a new one.
func (c *Cache) assign(jobs []job, s *manifest.Segment, fl *flight) []job {
	most := maxFetchFrames
	if c.local != nil {
		most = fetchFrames // unpacked beside each other
	}
	if n := len(jobs) - 1; n >= 0 {
		j := &jobs[n]
		if k := len(j.flights); k < most && j.s == s && j.flights[k-1].key.frame+1 == fl.key.frame {
			j.flights = append(j.flights, fl)
			return jobs
		}
	}
	return append(jobs, job{s: s, flights: []*flight{fl}})
}

// widen adds the neighbours of the only frame of a job.
func (c *Cache) widen(j *job) {
	n := uint32(c.readAround.frames())
	if c.room.Load() < int64(n)*4*segment.FrameSize {
		return
	}
	f := j.flights[0].key.frame
	lo := f / n * n
	hi := min(lo+n, uint32(segment.FrameCount(j.s.Blocks)))
	for i := f; i > lo; i-- {
		fl := c.claimAhead(frameKey{j.s.Num, i - 1})
		if fl == nil {
			break
		}
		j.flights = append([]*flight{fl}, j.flights...)
	}
	for i := f + 1; i < hi; i++ {
		fl := c.claimAhead(frameKey{j.s.Num, i})
		if fl == nil {
			break
		}
		j.flights = append(j.flights, fl)
	}
}

// startJob begins a job. It does not end with its reader: others may wait for
// the same frames.
func (c *Cache) startJob(ctx context.Context, j job) {
	if c.manual {
		c.runJob(ctx, j)
		return
	}
	c.fetches.Go(func() { c.runJob(c.ctx, j) })
}

// runJob fetches the frames of a job and completes all its flights.
func (c *Cache) runJob(ctx context.Context, j job) {
	rest := j.flights
	err := func() error {
		x, e, err := c.findSource(ctx, j)
		if err != nil {
			return err
		}
		var missing []*flight
		for _, fl := range rest {
			if b := e.wait(x, int(fl.key.frame)); b == nil || c.unpack(x, j.s, fl, b) != nil {
				missing = append(missing, fl)
			}
		}
		if rest = missing; len(rest) == 0 {
			return nil
		}
		return store.RetryCorrupt(func() error {
			off, n := x.Range(int(rest[0].key.frame), int(rest[len(rest)-1].key.frame)+1)
			b, err := c.readStored(ctx, x, j.s, off, n)
			if err != nil {
				return err
			}
			for len(rest) > 0 {
				at, size := x.Range(int(rest[0].key.frame), int(rest[0].key.frame)+1)
				if err := c.unpack(x, j.s, rest[0], b[at-off:at-off+size]); err != nil {
					return err
				}
				rest = rest[1:]
			}
			return nil
		})
	}()
	for _, fl := range rest {
		c.complete(fl, nil, err)
	}
	c.inFlight.Add(-j.ahead)
}

// unpack completes a flight, unless b, which it overwrites, is not the stored
// bytes of its frame.
func (c *Cache) unpack(x *source, s *manifest.Segment, fl *flight, b []byte) error {
	f := int(fl.key.frame)
	fr := newFrame(x.PlainSize(f))
	defer fr.release()
	if err := x.DecodeInto(f, b, fr.data); err != nil {
		return err
	}
	c.complete(fl, fr, nil)
	if c.disk != nil {
		c.disk.Put(diskKey(s, f), fr.data, false)
	}
	return nil
}

// readStored reads stored bytes of a segment, into memory of the caller's own.
func (c *Cache) readStored(ctx context.Context, x *source, s *manifest.Segment, off, n int64) ([]byte, error) {
	if c.local != nil {
		b := make([]byte, n)
		if c.readLocal(ctx, x, b, off) {
			return b, nil
		}
	}
	return c.fetch(ctx, s, off, n)
}

// Add caches a segment that was just created: its blocks are likely to
// be read soon. object is the segment s.
func (c *Cache) Add(s *manifest.Segment, object []byte) {
	if c.disk == nil && c.local == nil && c.room.Load() < segment.FrameSize {
		return
	}
	x, _, err := segment.Open(s.Ref, c.keys, int64(len(object)), object)
	if err != nil || x.Fence {
		return // it was built a moment ago; caching it is optional
	}
	var src *source
	if c.local != nil {
		src = c.keepIndex(s, x)
	}
	for f := range x.Frames() {
		sched.Yield()
		off, n := x.Range(f, f+1)
		if src != nil && x.IsPlain(f) {
			src.learn(f, object[off:off+n]) // read from the store just as well
			continue
		}
		if c.disk == nil && src != nil {
			continue
		}
		fr := newFrame(x.PlainSize(f))
		if x.DecodeInto(f, append([]byte(nil), object[off:off+n]...), fr.data) == nil {
			if c.disk != nil {
				c.disk.Put(diskKey(s, f), fr.data, true)
			} else {
				c.put(frameKey{s.Num, uint32(f)}, fr, demand)
			}
		}
		fr.release()
	}
}
