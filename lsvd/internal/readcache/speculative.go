package readcache

import (
	"context"

	"miren.dev/runtime/lsvd/internal/manifest"
	"miren.dev/runtime/lsvd/internal/segment"
)

// Where a frame lies in a segment is in the segment's index, so the first read
// of a segment in a remote store takes two requests, one after the other. But the
// manifest's entry of a segment tells where the frame is, if nothing is
// compressed, or about where it is. So both are requested at once. The range that
// was fetched speculatively is used if it has the frame, as the index tells, and
// the frame its checksum.
const (
	speculativeFrames = 16        // most frames of a job for which it is worth it
	speculativeSlack  = 192 << 10 // of what is fetched on each side where the place is not exact
)

// speculativeFetch is a range of a segment that is fetched before its index is known.
type speculativeFetch struct {
	off, n int64
	b      []byte // nil if it could not be read
	done   chan struct{}
}

// estimateRange estimates where frames [a,b) of a segment are.
func estimateRange(s *manifest.Segment, encrypted bool, a, b int) (off, n int64) {
	frames := int64(segment.FrameCount(s.Blocks))
	tag := int64(0)
	if encrypted {
		tag = segment.TagSize
	}
	index := frames * segment.LeastFrame // at least
	room := s.Size - segment.TrailerSize - index
	if plain := int64(s.Blocks)*segment.Block + frames*tag; plain <= room {
		off = int64(a) * (segment.FrameSize + tag)
		return off, min(int64(b)*(segment.FrameSize+tag), plain) - off
	}
	lo := max(room*int64(a)/frames-speculativeSlack, 0)
	return lo, min(room*int64(b)/frames+speculativeSlack, room) - lo
}

// findSource returns what it takes to read the segment of a job, and what was fetched
// of it meanwhile: nil if it was known already, or it is not worth it.
func (c *Cache) findSource(ctx context.Context, j job) (*source, *speculativeFetch, error) {
	if x := c.sources.get(j.s.Num); x != nil {
		return x, nil, nil
	}
	e := &speculativeFetch{done: make(chan struct{})}
	e.off, e.n = estimateRange(j.s, c.keys != nil, j.first(), j.first()+len(j.flights))
	if c.local != nil || j.ahead > 0 || len(j.flights) > speculativeFrames || e.n <= 0 {
		x, err := c.source(ctx, j.s)
		return x, nil, err
	}
	get := func() {
		defer close(e.done)
		if b, err := c.fetch(ctx, j.s, e.off, e.n); err == nil {
			e.b = b // else what is needed is fetched again, and gives the error
		}
	}
	if c.manual {
		get()
	} else {
		c.fetches.Go(get)
	}
	x, err := c.source(ctx, j.s)
	return x, e, err
}

// wait returns the stored bytes of frame f if e has them. Whether they are
// undamaged is not known.
func (e *speculativeFetch) wait(x *source, f int) []byte {
	if e == nil {
		return nil
	}
	off, n := x.Range(f, f+1)
	if off < e.off || off+n > e.off+e.n {
		return nil
	}
	<-e.done
	if e.b == nil {
		return nil
	}
	return e.b[off-e.off:][:n]
}
