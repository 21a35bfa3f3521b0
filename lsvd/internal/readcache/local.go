package readcache

import (
	"cmp"
	"context"
	"slices"

	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/pkg/errs"
)

// Reads of segments in a local store, as far as they are stored plain:
//
//   - frames that are wanted whole, in a row, with one operation, right into
//     the reader's memory;
//   - of other frames single blocks, checked by their sums; or the frame, which
//     stays in memory, as long as that pays (see admission) and always if the read
//     belongs to a stream. On a disk that was written at random what a stream
//     wants is spread over many segments, but each has it in the same order:
//     the rest of the frame is what the stream comes to next.

// localFrames is what is wanted of frames of one segment.
type localFrames struct {
	src   *source
	first int
	n     int    // how many: wanted whole if parts is nil
	whole Part   // all of them
	parts []Part // pieces of the only one
}

// errNotBrought completes flights of frames that could not be read from a local
// store. A caller that awaits one tries other ways.
var errNotBrought = errs.New(errs.Unavailable, "frame was not read")

// loadLocal reads parts from the local store and returns the parts that it could not
// read. It reports no error: the caller reads those parts from the next tier, which does.
func (c *Cache) loadLocal(ctx context.Context, parts []Part, stream bool) (left []Part) {
	bring := stream
	if len(parts) == 1 && !stream {
		var done bool
		if done, bring = c.readLocalBlocks(ctx, parts[0]); done {
			return nil
		}
	}
	var all []localFrames
	all, left = c.splitLocal(ctx, parts)
	failed := make([]bool, len(all))
	waits := make([]*flight, len(all)) // flights of other readers
	var reads []*localRead
	for i := range all {
		x := &all[i]
		if x.parts == nil {
			off, _ := x.src.Range(x.first, x.first+1)
			reads = append(reads, newLocalRead(x.src, x.whole.P, off, func(ok bool) { failed[i] = !ok || !c.checkLocalFrames(x) }))
			continue
		}
		reads, waits[i] = c.planLocalFrame(reads, x, bring, stream, func() { failed[i] = true })
	}
	c.readAll(ctx, reads)
	for i, x := range all {
		if fl := waits[i]; fl != nil {
			fr, err := c.await(ctx, fl)
			if err == nil {
				copyParts(x.parts, fr)
				fr.release()
			}
			failed[i] = err != nil
		}
		switch {
		case !failed[i]:
		case x.parts == nil:
			left = append(left, x.whole)
		default:
			left = append(left, x.parts...)
		}
	}
	return left
}

// splitLocal sorts out what can be read without detour.
func (c *Cache) splitLocal(ctx context.Context, parts []Part) (all []localFrames, left []Part) {
	var some []localFrames
	for _, x := range parts {
		src, err := c.source(ctx, x.Segment)
		if err != nil {
			left = append(left, x)
			continue
		}
		for len(x.P) > 0 {
			f, _, p := x.head()
			head := Part{x.Segment, x.Block, p}
			switch {
			case !src.IsPlain(f):
				left = append(left, head)
			case len(p) < src.PlainSize(f):
				some = append(some, localFrames{src: src, first: f, n: 1, parts: []Part{head}})
			default:
				n := 1
				for len(p) < len(x.P) && f+n < src.Frames() && src.IsPlain(f+n) && len(p)+src.PlainSize(f+n) <= len(x.P) {
					p = x.P[:len(p)+src.PlainSize(f+n)]
					n++
				}
				all = append(all, localFrames{src: src, first: f, n: n, whole: Part{x.Segment, x.Block, p}})
			}
			x = x.skip(len(p))
		}
	}
	slices.SortStableFunc(some, func(a, b localFrames) int {
		return cmp.Or(cmp.Compare(a.src.num, b.src.num), cmp.Compare(a.first, b.first))
	})
	for _, x := range some {
		if n := len(all) - 1; n >= 0 && all[n].parts != nil && all[n].src.num == x.src.num && all[n].first == x.first {
			all[n].parts = append(all[n].parts, x.parts...)
			continue
		}
		all = append(all, x)
	}
	return all, left
}

// readLocalBlocks reads blocks of one frame, if they can be checked alone, unless
// the admission policy wants the whole frame.
func (c *Cache) readLocalBlocks(ctx context.Context, x Part) (done, bring bool) {
	src, err := c.source(ctx, x.Segment)
	if err != nil {
		return false, false
	}
	f, at, p := x.head()
	if len(p) < len(x.P) || !src.IsPlain(f) || len(p) == src.PlainSize(f) || !src.knows(f) {
		return false, false
	}
	if c.admitFrame() {
		return false, true
	}
	off, _ := src.Range(f, f+1)
	return c.readLocal(ctx, src, p, off+int64(at)) && src.intact(f, at, p), false
}

// checkLocalFrames checks whole frames that were read.
func (c *Cache) checkLocalFrames(x *localFrames) bool {
	b := x.whole.P
	for f := x.first; f < x.first+x.n; f++ {
		size := x.src.PlainSize(f)
		if !x.src.Holds(f, b[:size]) {
			return false
		}
		if c.admitFrame() {
			whole := newFrame(size)
			copy(whole.data, b)
			c.put(frameKey{x.src.num, uint32(f)}, whole, fill)
			whole.release()
		}
		b = b[size:]
	}
	return true
}

// planLocalFrame adds the reads that fill parts of a frame; bring says that the
// whole frame must be fetched. If another read fetches it already, it returns that flight, which
// the caller must await, after its own reads. It calls failed if one fails.
func (c *Cache) planLocalFrame(reads []*localRead, x *localFrames, bring, stream bool, failed func()) ([]*localRead, *flight) {
	f := x.first
	off, _ := x.src.Range(f, f+1)
	if x.src.knows(f) && !bring && !c.admitFrame() {
		for _, y := range x.parts {
			_, at, p := y.head()
			reads = append(reads, newLocalRead(x.src, p, off+int64(at), func(ok bool) {
				if !ok || !x.src.intact(f, at, p) {
					failed()
				}
			}))
		}
		return reads, nil
	}
	fr, fl, mine := c.claim(frameKey{x.src.num, uint32(f)})
	switch {
	case fr != nil:
		copyParts(x.parts, fr)
		fr.release()
		return reads, nil
	case !mine:
		return reads, fl
	}
	return append(reads, c.fetchLocal(x.src, f, fl, func(fr *frame) {
		switch {
		case fr == nil:
			failed()
		default:
			copyParts(x.parts, fr)
		}
		c.abandon(fl)
	}, !stream)), nil
}

// fetchLocal is the read that fetches a frame, for the flight fl. It calls got
// when the flight is complete, with nil if it failed; fills says that the whole
// frame is a fill.
func (c *Cache) fetchLocal(src *source, f int, fl *flight, got func(*frame), fills bool) *localRead {
	fr := newFrame(src.PlainSize(f))
	off, _ := src.Range(f, f+1)
	return newLocalRead(src, fr.data, off, func(ok bool) {
		if c.completeLocal(src, f, fl, fr, ok, fills) {
			got(fr)
		} else {
			got(nil)
		}
		fr.release()
	})
}

// completeLocal ends the flight of frame f, which was read into fr if ok says so,
// and reports whether fr holds it; fills says that the whole frame is a fill.
func (c *Cache) completeLocal(src *source, f int, fl *flight, fr *frame, ok, fills bool) bool {
	if !ok || !src.Holds(f, fr.data) {
		c.complete(fl, nil, errNotBrought)
		return false
	}
	src.learn(f, fr.data)
	if fills {
		c.markFill(fl)
	}
	c.complete(fl, fr, nil)
	return true
}

// localRead is one of several reads of a local store.
type localRead struct {
	store.ObjectRead
	end func(ok bool) // is called with the outcome
}

func newLocalRead(src *source, p []byte, off int64, end func(ok bool)) *localRead {
	return &localRead{ObjectRead: store.ObjectRead{Key: src.key, P: p, Off: off}, end: end}
}

// readAll makes reads together, and calls end for each.
func (c *Cache) readAll(ctx context.Context, reads []*localRead) {
	if len(reads) == 0 {
		return
	}
	all := make([]*store.ObjectRead, len(reads))
	for i, r := range reads {
		c.storeReads.Add(1)
		c.storeBytes.Add(int64(len(r.P)))
		all[i] = &r.ObjectRead
	}
	c.local.ReadObjects(ctx, all)
	for _, r := range reads {
		r.end(r.Err == nil)
	}
}

func copyParts(parts []Part, fr *frame) {
	for _, x := range parts {
		_, at, p := x.head()
		copy(p, fr.data[at:])
	}
}

func (c *Cache) readLocal(ctx context.Context, src *source, p []byte, off int64) bool {
	c.storeReads.Add(1)
	c.storeBytes.Add(int64(len(p)))
	return c.local.ReadObject(ctx, src.key, p, off) == nil
}
