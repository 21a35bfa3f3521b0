package readcache

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/singleflight"

	"miren.dev/runtime/lsvd/internal/manifest"
	"miren.dev/runtime/lsvd/internal/s3fifo"
	"miren.dev/runtime/lsvd/internal/segment"
	"miren.dev/runtime/lsvd/internal/wire"
)

// source is what it takes to read frames of a segment.
type source struct {
	*segment.Index // without entries
	key            string
	num            uint64

	// Of a local store: checksums of the blocks of frames that are
	// stored plain, known once the frame was read whole and found intact. With
	// them single blocks can be read and checked.
	sums  []atomic.Uint32 // by block
	known []atomic.Uint32 // a bit for each frame
}

func (x *source) cost() int64 {
	return 256 + 24*int64(x.Frames()) + 4*int64(len(x.sums)+len(x.known))
}

// learn notes the sums of frame i, whose data is b.
func (x *source) learn(i int, b []byte) {
	if x.knows(i) {
		return
	}
	for at := 0; at < len(b); at += segment.Block {
		x.sums[i*segment.FrameBlocks+at/segment.Block].Store(wire.CRC(b[at : at+segment.Block]))
	}
	x.known[i/32].Or(1 << (i % 32))
}

func (x *source) knows(i int) bool { return x.known[i/32].Load()&(1<<(i%32)) != 0 }

// intact reports whether p is the data of frame i from at on, by its sums.
func (x *source) intact(i, at int, p []byte) bool {
	sums := x.sums[i*segment.FrameBlocks+at/segment.Block:]
	for b := 0; b < len(p)/segment.Block; b++ {
		if wire.CRC(p[b*segment.Block:(b+1)*segment.Block]) != sums[b].Load() {
			return false
		}
	}
	return true
}

// sources are the indexes kept in memory.
type sources struct {
	flight singleflight.Group

	mu     sync.Mutex
	ids    map[uint64]int32 // by number of the table
	kept   []*source
	free   []int32
	policy *s3fifo.Policy
}

func (s *sources) get(num uint64) *source {
	s.mu.Lock()
	defer s.mu.Unlock()
	id, ok := s.ids[num]
	if !ok {
		return nil
	}
	s.policy.Touch(id)
	return s.kept[id]
}

func (s *sources) put(x *source) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.ids[x.num]; ok {
		return
	}
	if !s.evict(x.cost()) {
		return
	}
	id := int32(len(s.kept))
	if n := len(s.free); n > 0 {
		id, s.free = s.free[n-1], s.free[:n-1]
	} else {
		s.kept = append(s.kept, nil)
	}
	s.kept[id], s.ids[x.num] = x, id
	s.policy.Add(id, frameKey{num: x.num}.hash(), x.cost(), false)
}

// evict makes room for n bytes, if there is that much. The caller holds mu.
func (s *sources) evict(n int64) bool {
	for !s.policy.Fits(n) {
		id, ok := s.policy.Victim()
		if !ok {
			return false
		}
		delete(s.ids, s.kept[id].num)
		s.kept[id] = nil
		s.free = append(s.free, id)
	}
	return true
}

func (s *sources) resize(limit int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.policy.Resize(limit, limit/10)
	s.evict(0)
}

func (s *sources) drop(num uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id, ok := s.ids[num]
	if !ok {
		return
	}
	s.policy.Remove(id)
	delete(s.ids, num)
	s.kept[id] = nil
	s.free = append(s.free, id)
}

func (s *sources) bytes() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.policy.Bytes()
}

// source returns what it takes to read a segment.
func (c *Cache) source(ctx context.Context, s *manifest.Segment) (*source, error) {
	if x := c.sources.get(s.Num); x != nil {
		return x, nil
	}
	v, err, _ := c.sources.flight.Do(strconv.FormatUint(s.Num, 16), func() (any, error) {
		if x := c.sources.get(s.Num); x != nil {
			return x, nil
		}
		// What one reader gives up, others may wait for.
		x, err := c.Index(context.WithoutCancel(ctx), s)
		if err != nil {
			return nil, err
		}
		return c.keepIndex(s, x), nil
	})
	if err != nil {
		return nil, err
	}
	return v.(*source), nil
}

// warmIndexes bounds the indexes that are read while a disk is opened.
const warmIndexes = 32

// Warm begins to read the indexes of the newest of the segments, so that the
// first reads of a disk in a remote store need not wait for them.
func (c *Cache) Warm(segments []manifest.Segment) {
	if c.manual || c.local != nil {
		return
	}
	for _, s := range segments[max(0, len(segments)-warmIndexes):] {
		c.fetches.Go(func() {
			_, _ = c.source(c.ctx, &s) // a read of the segment reports the error
		})
	}
}

func (c *Cache) keepIndex(s *manifest.Segment, x *segment.Index) *source {
	src := &source{Index: x.Slim(), key: s.Ref.Key(), num: s.Num}
	if c.local != nil {
		src.sums = make([]atomic.Uint32, x.Blocks)
		src.known = make([]atomic.Uint32, (x.Frames()+31)/32)
	}
	c.keeping.Lock()
	defer c.keeping.Unlock()
	c.resizeBudget(src.cost())
	c.sources.put(src)
	return src
}

// Drop gives up the indexes of segments that are gone.
func (c *Cache) Drop(nums []uint64) {
	c.keeping.Lock()
	defer c.keeping.Unlock()
	for _, num := range nums {
		c.sources.drop(num)
	}
	c.resizeBudget(0)
}

// resizeBudget gives the frames the part of the indexes' budget that the indexes
// do not use, in steps. The indexes are about to grow by n bytes. The caller
// holds keeping.
func (c *Cache) resizeBudget(n int64) {
	most := c.limit - c.room.Load()
	step := most/16 + 1
	lent := max(most-(c.sources.bytes()+n+step-1)/step*step, 0)
	if lent == c.borrowed {
		return
	}
	c.borrowed = lent
	each := (c.room.Load() + lent) / int64(len(c.shards))
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.Lock()
		s.policy.Resize(each, each/4)
		s.evict(c, 0)
		s.mu.Unlock()
	}
}

// Index reads the index of a segment, with its entries.
func (c *Cache) Index(ctx context.Context, s *manifest.Segment) (*segment.Index, error) {
	return segment.ReadIndex(s.Ref, c.keys, s.Size, s.Blocks, func(off, n int64) ([]byte, error) { return c.fetch(ctx, s, off, n) })
}
