package lsvd

import (
	"bytes"
	"container/list"
	"context"
	"fmt"
	"sync"

	"golang.org/x/sync/singleflight"

	"miren.dev/runtime/lsvd/internal/manifest"
	"miren.dev/runtime/lsvd/internal/name"
	"miren.dev/runtime/lsvd/internal/segment"
	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/pkg/errs"
)

// Read-ahead, in frames of 64 KiB: a miss fetches 256 KiB; misses that follow
// each other fetch twice as much each time, up to 8 MiB.
const (
	fetchFrames    = 4
	maxFetchFrames = 128
	// maxIndexes bounds the segment indexes kept; each has about 6 KiB.
	maxIndexes = 1024
)

// cache holds plain frames of segments in memory, evicting by SIEVE: a hand
// goes from old to new and evicts what was not read since it passed. Segments
// never change, so nothing is ever invalidated.
type cache struct {
	st     store.Store
	key    []byte
	limit  int64
	flight singleflight.Group

	mu      sync.Mutex
	frames  map[frameKey]*list.Element
	order   *list.List // of *cached, newest in front
	hand    *list.Element
	bytes   int64
	hits    int64
	misses  int64
	next    frameKey // the frame after the last fetch
	ramp    int
	indexes map[name.Ref]*segment.Index
}

type frameKey struct {
	ref   name.Ref
	frame int
}

type cached struct {
	key  frameKey
	data []byte
	seen bool
}

func newCache(st store.Store, key []byte, limit int64) *cache {
	return &cache{st: st, key: key, limit: limit, frames: map[frameKey]*list.Element{}, order: list.New(), indexes: map[name.Ref]*segment.Index{}}
}

func (c *cache) figures() (hits, misses, bytes int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.hits, c.misses, c.bytes
}

// index returns the index of a segment.
func (c *cache) index(ctx context.Context, s *manifest.Segment) (*segment.Index, error) {
	c.mu.Lock()
	x := c.indexes[s.Ref]
	c.mu.Unlock()
	if x != nil {
		return x, nil
	}
	for n := min(s.Size, 32<<10); ; {
		var need int64
		err := again(func() error {
			tail, err := c.fetch(ctx, s, s.Size-n, n)
			if err == nil {
				x, need, err = segment.Open(s.Ref, c.key, s.Size, tail)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
		if x == nil {
			n = need
			continue
		}
		if x.Fence || x.Blocks != s.Blocks {
			return nil, errs.New(errs.Corrupt, "segment %s is not what the manifest says", s.Ref)
		}
		c.mu.Lock()
		if len(c.indexes) >= maxIndexes {
			for r := range c.indexes { // any: they cost one small read
				delete(c.indexes, r)
				break
			}
		}
		c.indexes[s.Ref] = x
		c.mu.Unlock()
		return x, nil
	}
}

// fetch reads a range of a segment, whole. A segment that the manifest names
// and the store does not have is damage, not absence.
func (c *cache) fetch(ctx context.Context, s *manifest.Segment, off, n int64) ([]byte, error) {
	b, err := c.st.GetRange(ctx, s.Ref.Key(), off, n)
	if errs.Is(err, errs.NotFound) || errs.Is(err, errs.InvalidArgument) {
		return nil, errs.New(errs.Corrupt, "segment %s is missing or cut off", s.Ref)
	}
	if err == nil && int64(len(b)) != n {
		err = errs.New(errs.Unavailable, "segment %s: store sent %d bytes of %d", s.Ref, len(b), n)
	}
	return b, err
}

// read fills p with the data of a segment from block on.
func (c *cache) read(ctx context.Context, s *manifest.Segment, block uint64, p []byte) error {
	for len(p) > 0 {
		f := int(block / segment.FrameBlocks)
		data, err := c.frame(ctx, s, f)
		if err != nil {
			return err
		}
		at := int(block%segment.FrameBlocks) * BlockSize
		if at >= len(data) {
			return errs.New(errs.Corrupt, "segment %s has no block %d", s.Ref, block)
		}
		n := copy(p, data[at:])
		p, block = p[n:], block+uint64(n/BlockSize)
	}
	return nil
}

func (c *cache) frame(ctx context.Context, s *manifest.Segment, f int) ([]byte, error) {
	k := frameKey{s.Ref, f}
	if data := c.get(k); data != nil {
		return data, nil
	}
	x, err := c.index(ctx, s)
	if err != nil {
		return nil, err
	}
	if f >= x.Frames() {
		return nil, errs.New(errs.Corrupt, "segment %s has no frame %d", s.Ref, f)
	}
	start := f / fetchFrames * fetchFrames
	v, err, _ := c.flight.Do(fmt.Sprintf("%s/%d", s.Ref, start), func() (any, error) {
		// What one reader gives up, others may wait for.
		return c.load(context.WithoutCancel(ctx), s, x, start)
	})
	if err != nil {
		return nil, err
	}
	return v.([][]byte)[f-start], nil
}

// load fetches the frames from start on, and more when reads are sequential.
func (c *cache) load(ctx context.Context, s *manifest.Segment, x *segment.Index, start int) ([][]byte, error) {
	c.mu.Lock()
	if c.next == (frameKey{s.Ref, start}) && int64(c.ramp)*segment.FrameSize*4 <= c.limit {
		c.ramp = min(2*c.ramp, maxFetchFrames)
	} else {
		c.ramp = fetchFrames
	}
	end := min(start+c.ramp, x.Frames())
	c.next = frameKey{s.Ref, end}
	c.mu.Unlock()
	off, n := x.Range(start, end)
	out := make([][]byte, end-start)
	err := again(func() error {
		b, err := c.fetch(ctx, s, off, n)
		for i := 0; i < len(out) && err == nil; i++ {
			at, size := x.Range(start+i, start+i+1)
			out[i], err = x.Decode(start+i, b[at-off:at-off+size])
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	for i, data := range out {
		if x.Raw(start + i) {
			data = bytes.Clone(data) // do not pin all fetched bytes
		}
		c.put(frameKey{s.Ref, start + i}, data)
	}
	return out, nil
}

func (c *cache) get(k frameKey) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.frames[k]
	if e == nil {
		c.misses++
		return nil
	}
	c.hits++
	f := e.Value.(*cached)
	f.seen = true
	return f.data
}

func (c *cache) put(k frameKey, data []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.frames[k] != nil || int64(len(data)) > c.limit {
		return
	}
	for c.bytes+int64(len(data)) > c.limit {
		c.evict()
	}
	c.frames[k] = c.order.PushFront(&cached{key: k, data: data})
	c.bytes += int64(len(data))
}

// evict removes one frame; there is one. The caller holds mu.
func (c *cache) evict() {
	for {
		if c.hand == nil {
			c.hand = c.order.Back()
		}
		f := c.hand.Value.(*cached)
		prev := c.hand.Prev()
		if f.seen {
			f.seen = false
			c.hand = prev
			continue
		}
		c.order.Remove(c.hand)
		delete(c.frames, f.key)
		c.bytes -= int64(len(f.data))
		c.hand = prev
		return
	}
}
