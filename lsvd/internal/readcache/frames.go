package readcache

import (
	"context"
	"sync"
	"sync/atomic"

	"miren.dev/runtime/lsvd/internal/s3fifo"
	"miren.dev/runtime/lsvd/internal/segment"
)

// frameCost is what a frame costs beside its data: keys, links, map.
const frameCost = 256

// frameKey names a frame of a segment of the table. A number of the table is
// never given to another segment.
type frameKey struct {
	num   uint64
	frame uint32
}

func (k frameKey) hash() uint64 {
	h := (k.num+1)*0x9e3779b97f4a7c15 ^ uint64(k.frame+1)*0xc2b2ae3d27d4eb4f
	h ^= h >> 29
	h *= 0xbf58476d1ce4e5b9
	return h ^ h>>32
}

// frame is the data of a frame in memory. Its buffer is used again once the
// cache and all readers have released it.
type frame struct {
	data []byte
	refs atomic.Int32

	// The rest changes under the lock of the shard.
	key    frameKey
	hits   uint16
	top    uint32 // where the last touch ended
	reason fillReason
}

// fillReason is why a frame was brought into memory.
type fillReason uint8

const (
	demand   fillReason = iota // a read needed it
	fill                       // a read needed some of it; the whole was admitted
	prefetch                   // no read has needed it yet
)

var buffers = sync.Pool{New: func() any { return new([segment.FrameSize]byte) }}

// newFrame returns a frame of n bytes, of any content, with one reference.
func newFrame(n int) *frame {
	f := &frame{}
	f.refs.Store(1)
	if n == segment.FrameSize {
		f.data = buffers.Get().(*[segment.FrameSize]byte)[:]
	} else {
		f.data = make([]byte, n)
	}
	return f
}

func (f *frame) release() {
	if f.refs.Add(-1) == 0 && len(f.data) == segment.FrameSize {
		buffers.Put((*[segment.FrameSize]byte)(f.data))
		f.data = nil
	}
}

// flight is the loading of one frame, which all its readers await.
type flight struct {
	key     frameKey
	reason  fillReason
	waiters int32 // each has a reference to the frame; under the shard's lock until over
	over    bool
	done    chan struct{}
	f       *frame // set before done is closed
	err     error
}

// shard is a part of the frames in memory.
type shard struct {
	mu      sync.Mutex
	ids     map[frameKey]int32
	frames  []*frame // by id
	free    []int32
	flights map[frameKey]*flight
	policy  *s3fifo.Policy
	hits    int64
	misses  int64

	_ [64]byte // shards do not share cache lines
}

func newShards(limit int64) []shard {
	n := 1
	for n < 32 && limit/int64(2*n) >= 4<<20 {
		n *= 2
	}
	shards := make([]shard, n)
	for i := range shards {
		l := limit / int64(n)
		shards[i] = shard{ids: map[frameKey]int32{}, flights: map[frameKey]*flight{}, policy: s3fifo.New(l, l/4, segment.FrameSize)}
	}
	return shards
}

// touch notes a read of n bytes at at. A read that continues where the last one
// ended belongs to one pass over the frame, which is no reason to keep the frame.
// The caller holds mu.
func (s *shard) touch(c *Cache, id int32, at, n int) {
	f := s.frames[id]
	if f.reason == prefetch {
		f.reason = demand
		c.readAround.useful()
	} else if uint32(at) < f.top || at == 0 {
		s.policy.Touch(id)
	}
	f.top = uint32(at + n)
	if f.hits < 1<<15 {
		f.hits++
	}
}

// get copies from a frame in memory and returns how much; 0 if it is not there,
// which it counts if asked to.
func (c *Cache) get(k frameKey, at int, p []byte, count bool) int {
	h := k.hash()
	s := &c.shards[h&uint64(len(c.shards)-1)]
	s.mu.Lock()
	id, ok := s.ids[k]
	if !ok || at >= len(s.frames[id].data) {
		if count {
			s.misses++
		}
		s.mu.Unlock()
		return 0
	}
	f := s.frames[id]
	s.hits++
	s.touch(c, id, at, min(len(p), len(f.data)-at))
	f.refs.Add(1)
	s.mu.Unlock()
	n := copy(p, f.data[at:])
	f.release()
	return n
}

func (c *Cache) shard(k frameKey) *shard { return &c.shards[k.hash()&uint64(len(c.shards)-1)] }

// claim returns the frame, with a reference, if it is in memory by now, or
// else the flight that fetches it, which the caller must await, and start if
// mine is set.
func (c *Cache) claim(k frameKey) (f *frame, fl *flight, mine bool) {
	s := c.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	if id, ok := s.ids[k]; ok {
		f := s.frames[id]
		s.touch(c, id, 0, 0)
		f.refs.Add(1)
		return f, nil, false
	}
	if fl = s.flights[k]; fl == nil {
		fl, mine = &flight{key: k, done: make(chan struct{})}, true
		s.flights[k] = fl
	} else if fl.reason == prefetch {
		fl.reason = demand
		c.readAround.useful()
	}
	fl.waiters++
	return nil, fl, mine
}

// claimAhead returns a flight for the caller to start, unless the frame is in
// memory or on its way.
func (c *Cache) claimAhead(k frameKey) *flight {
	s := c.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.ids[k]; ok || s.flights[k] != nil {
		return nil
	}
	fl := &flight{key: k, reason: prefetch, done: make(chan struct{})}
	s.flights[k] = fl
	return fl
}

// complete ends a flight: f goes into the cache and to the readers that wait.
// The caller keeps its reference to f.
func (c *Cache) complete(fl *flight, f *frame, err error) {
	s := c.shard(fl.key)
	s.mu.Lock()
	delete(s.flights, fl.key)
	fl.over, fl.f, fl.err = true, f, err
	if err == nil {
		f.refs.Add(fl.waiters)
		s.insert(c, fl.key, f, fl.reason)
	}
	s.mu.Unlock()
	close(fl.done)
}

// markFill marks the frame of a flight as a fill.
func (c *Cache) markFill(fl *flight) {
	s := c.shard(fl.key)
	s.mu.Lock()
	fl.reason = fill
	s.mu.Unlock()
}

// await returns the frame of a flight, with a reference.
func (c *Cache) await(ctx context.Context, fl *flight) (*frame, error) {
	select {
	case <-fl.done:
		return fl.f, fl.err
	default:
	}
	select {
	case <-fl.done:
		return fl.f, fl.err
	case <-ctx.Done():
		c.abandon(fl)
		return nil, ctx.Err()
	}
}

// abandon gives up a flight that the caller does not await any more.
func (c *Cache) abandon(fl *flight) {
	s := c.shard(fl.key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !fl.over {
		fl.waiters--
	} else if fl.err == nil {
		fl.f.release()
	}
}

// put adds a frame, whose reference the caller keeps.
func (c *Cache) put(k frameKey, f *frame, w fillReason) {
	s := c.shard(k)
	s.mu.Lock()
	s.insert(c, k, f, w)
	s.mu.Unlock()
}

// insert adds a frame with a reference of its own, if it fits and is not there.
// The caller holds mu.
func (s *shard) insert(c *Cache, k frameKey, f *frame, w fillReason) {
	cost := int64(len(f.data)) + frameCost
	if _, ok := s.ids[k]; ok {
		return
	}
	if !s.evict(c, cost) {
		return // larger than the cache
	}
	id := int32(len(s.frames))
	if n := len(s.free); n > 0 {
		id, s.free = s.free[n-1], s.free[:n-1]
	} else {
		s.frames = append(s.frames, nil)
	}
	f.key, f.reason = k, w
	f.refs.Add(1)
	s.frames[id], s.ids[k] = f, id
	s.policy.Add(id, k.hash(), cost, false)
}

// evict makes room for n bytes, if there is that much. The caller holds mu.
func (s *shard) evict(c *Cache, n int64) bool {
	for !s.policy.Fits(n) {
		id, ok := s.policy.Victim()
		if !ok {
			return false
		}
		old := s.frames[id]
		switch old.reason {
		case fill:
			c.admission.recordHits(int(old.hits))
		case prefetch:
			c.readAround.wasted()
		}
		delete(s.ids, old.key)
		s.frames[id] = nil
		s.free = append(s.free, id)
		old.release()
	}
	return true
}
