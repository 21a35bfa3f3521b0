package lsvd

import (
	"context"
	"sync"
	"sync/atomic"

	"miren.dev/runtime/lsvd/internal/diskcache"
	"miren.dev/runtime/lsvd/internal/manifest"
	"miren.dev/runtime/lsvd/internal/s3fifo"
	"miren.dev/runtime/lsvd/internal/segment"
	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/pkg/errs"
)

// Frames of 64 KiB fetched at once from a remote store: 256 KiB around
// what a random read asks for, as long as that pays, and at most 8 MiB.
const (
	fetchFrames    = 4
	maxFetchFrames = 128
)

// cache answers reads of segments, from the nearest tier that can: frames in
// memory; the disk cache, if there is one; the store. Segments never change,
// so nothing is ever invalidated. All it keeps in memory, indexes too, is
// within limit; what readers and fetches are busy with comes on top.
//
// From tiers that are as fast as a local file only the blocks asked for are
// read, and whole frames brought into memory as long as that pays: see admission.
//
// Lock order: none of its locks but keeping is held while another is taken, and
// none while anything is read.
type cache struct {
	st     store.Store
	local  store.Local // st, if it is local
	disk   *diskcache.Cache
	key    []byte
	manual bool // no goroutines

	shards     []shard
	limit      int64 // of all it keeps
	room       int64 // for frames, whatever indexes need
	sources    sources
	keeping    sync.Mutex // held while indexes come and go; others are taken under it
	borrowed   int64      // what frames have of the room of indexes; under keeping
	admission  admission  // whole frames from local tiers
	readAround readAround // how much is fetched around a missing frame

	ctx      context.Context // of fetches in the background
	stop     context.CancelFunc
	fetches  sync.WaitGroup
	inFlight atomic.Int64 // bytes of prefetches under way
	asking   atomic.Int32 // reads that wait for a fetch of their own

	storeReads, storeBytes, diskHits, aheadBytes atomic.Int64
}

func newCache(st store.Store, disk *diskcache.Cache, opts Options) *cache {
	c := &cache{st: st, disk: disk, key: opts.Key, manual: opts.manual, admission: admission{minHits: 4}}
	indexes := opts.CacheBytes / 8
	if local, ok := st.(store.Local); ok {
		c.local = local
		indexes = opts.CacheBytes / 4 // they have checksums of blocks
	}
	c.limit, c.room = opts.CacheBytes, opts.CacheBytes-indexes
	c.shards = newShards(c.room)
	c.sources.ids = map[uint64]int32{}
	c.sources.policy = s3fifo.New(indexes, indexes/10, 8<<10)
	c.ctx, c.stop = context.WithCancel(context.Background())
	c.resizeBudget(0)
	return c
}

// close ends the fetches in the background. No reads may come.
func (c *cache) close() {
	c.stop()
	c.fetches.Wait()
}

func (c *cache) figures(s *Stats) {
	for i := range c.shards {
		x := &c.shards[i]
		x.mu.Lock()
		s.CacheHits += x.hits
		s.CacheMisses += x.misses
		s.CacheBytes += x.policy.Bytes()
		x.mu.Unlock()
	}
	s.CacheBytes += c.sources.bytes()
	s.CacheDiskHits = c.diskHits.Load()
	s.StoreReads = c.storeReads.Load()
	s.StoreReadBytes = c.storeBytes.Load()
	s.ReadAhead = c.aheadBytes.Load()
	s.ReadAheadUsed = c.readAround.good.Load()
	s.ReadAheadWasted = c.readAround.bad.Load()
}

// fetch reads a range of a segment, whole. A segment that the manifest names
// and the store does not have is damage, not absence.
func (c *cache) fetch(ctx context.Context, s *manifest.Segment, off, n int64) ([]byte, error) {
	c.storeReads.Add(1)
	c.storeBytes.Add(n)
	b, err := c.st.GetRange(ctx, s.Ref.Key(), off, n)
	if errs.Is(err, errs.NotFound) || errs.Is(err, errs.InvalidArgument) {
		return nil, errs.New(errs.Corrupt, "segment %s is missing or cut off", s.Ref)
	}
	if err == nil && int64(len(b)) != n {
		err = errs.New(errs.Unavailable, "segment %s: store sent %d bytes of %d", s.Ref, len(b), n)
	}
	return b, err
}

// part is a piece of a read: blocks of a segment, in a row, and where to.
type part struct {
	s     *manifest.Segment
	block uint64
	p     []byte
}

// head is the part of x that lies in its first frame.
func (x part) head() (f, at int, p []byte) {
	f, at = int(x.block/segment.FrameBlocks), int(x.block%segment.FrameBlocks)*BlockSize
	return f, at, x.p[:min(len(x.p), segment.FrameSize-at)]
}

// skip is x without its first n bytes.
func (x part) skip(n int) part {
	return part{x.s, x.block + uint64(n/BlockSize), x.p[n:]}
}

// read fills p with the data of a segment from block on.
func (c *cache) read(ctx context.Context, s *manifest.Segment, block uint64, p []byte) error {
	return c.loadAll(ctx, c.copyCached(nil, part{s, block, p}), false)
}

// copyCached copies what is in memory and appends the rest to missing.
func (c *cache) copyCached(missing []part, x part) []part {
	gap := x
	for len(x.p) > 0 {
		f, at, p := x.head()
		n := c.get(frameKey{x.s.Num, uint32(f)}, at, p, true)
		if n > 0 {
			if k := len(gap.p) - len(x.p); k > 0 {
				missing = append(missing, part{gap.s, gap.block, gap.p[:k]})
			}
			x = x.skip(n)
			gap = x
			continue
		}
		x = x.skip(len(p))
	}
	if len(gap.p) > 0 {
		missing = append(missing, gap)
	}
	return missing
}

// copyAllCached copies what is in memory, and reports whether that is all. What is
// missing is not counted: it will be asked for.
func (c *cache) copyAllCached(x part) bool {
	for len(x.p) > 0 {
		f, at, p := x.head()
		n := c.get(frameKey{x.s.Num, uint32(f)}, at, p, false)
		if n == 0 {
			return false
		}
		x = x.skip(n)
	}
	return true
}

// loadAll loads parts in parallel. stream says that the read goes on
// where others ended.
func (c *cache) loadAll(ctx context.Context, parts []part, stream bool) error {
	for _, x := range parts {
		if end := x.block + uint64(len(x.p)/BlockSize); end > x.s.Blocks {
			return errs.New(errs.Corrupt, "segment %s has no block %d", x.s.Ref, end-1)
		}
	}
	if c.local != nil {
		parts = c.loadLocal(ctx, parts, stream)
	}
	if len(parts) == 0 {
		return nil
	}
	failed := make([]error, len(parts))
	var stop atomic.Bool
	c.forEachParallel(len(parts), func(i int) {
		if !stop.Load() {
			failed[i] = c.load(ctx, parts[i])
			stop.Store(failed[i] != nil)
		}
	})
	for _, err := range failed {
		if err != nil {
			return err
		}
	}
	return nil
}

// forEachParallel calls f for 0 to n-1, up to 32 at a time.
func (c *cache) forEachParallel(n int, f func(i int)) {
	if n <= 1 || c.manual {
		for i := range n {
			f(i)
		}
		return
	}
	const most = 32
	var next atomic.Int64
	var wg sync.WaitGroup
	work := func() {
		for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
			f(i)
		}
	}
	for range min(n, most) - 1 {
		wg.Go(work)
	}
	work()
	wg.Wait()
}

// load fills what is neither in memory nor in a local store.
func (c *cache) load(ctx context.Context, x part) error {
	if c.disk == nil {
		return c.loadRemote(ctx, x)
	}
	rest := x
	for len(x.p) > 0 {
		n := c.loadDisk(x)
		if n == 0 {
			_, _, p := x.head()
			x = x.skip(len(p))
			continue
		}
		if k := len(rest.p) - len(x.p); k > 0 {
			if err := c.loadRemote(ctx, part{rest.s, rest.block, rest.p[:k]}); err != nil {
				return err
			}
		}
		x = x.skip(n)
		rest = x
	}
	if len(rest.p) > 0 {
		return c.loadRemote(ctx, rest)
	}
	return nil
}

// admitFrame reports whether a whole frame should be brought into memory.
func (c *cache) admitFrame() bool {
	return c.room >= segment.FrameSize+frameCost && c.admission.admit()
}

// frameSize is how many bytes of data a frame of a segment has.
func frameSize(s *manifest.Segment, f int) int {
	return int(min(segment.FrameBlocks, s.Blocks-uint64(f)*segment.FrameBlocks)) * BlockSize
}

func diskKey(s *manifest.Segment, f int) diskcache.Key {
	return diskcache.Key{Ref: s.Ref, Size: uint64(s.Size), First: s.First, Last: s.Last, Frame: uint32(f)}
}

// loadDisk fills the head of x from the disk cache, and returns how much.
func (c *cache) loadDisk(x part) int {
	f, at, p := x.head()
	if c.admitFrame() {
		whole := newFrame(frameSize(x.s, f))
		defer whole.release()
		if !c.disk.Get(diskKey(x.s, f), 0, whole.data) {
			return 0
		}
		copy(p, whole.data[at:])
		c.put(frameKey{x.s.Num, uint32(f)}, whole, fill)
	} else if !c.disk.Get(diskKey(x.s, f), at, p) {
		return 0
	}
	c.diskHits.Add(1)
	return len(p)
}
