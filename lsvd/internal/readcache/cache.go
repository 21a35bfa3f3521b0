package readcache

import (
	"context"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"miren.dev/runtime/lsvd/internal/diskcache"
	"miren.dev/runtime/lsvd/internal/keyring"
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

// Cache answers reads of segments, from the nearest tier that can: frames in
// memory; the disk cache, if there is one; the store. Segments never change,
// so nothing is ever invalidated. All it keeps in memory, indexes too, is
// within limit; what readers and fetches are busy with comes on top.
//
// From tiers that are as fast as a local file only the blocks asked for are
// read, and whole frames brought into memory as long as that pays: see admission.
//
// Lock order: none of its locks but keeping is held while another is taken, and
// none while anything is read.
type Cache struct {
	st     store.Store
	local  store.Local // st, if it is local
	disk   *diskcache.Cache
	keys   *keyring.Ring // of an encrypted volume
	manual bool          // no goroutines

	shards     []shard
	limit      int64        // of all it keeps; under keeping
	room       atomic.Int64 // for frames, whatever indexes need; changes under keeping
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

// Config configures a cache.
type Config struct {
	Keys   *keyring.Ring    // of an encrypted volume; see also UseKeys
	Bytes  int64            // bound of the memory of frames and indexes
	Disk   *diskcache.Cache // nil: none
	Manual bool             // no goroutines: for tests
}

// New returns a cache of segments in st.
func New(st store.Store, o Config) *Cache {
	c := &Cache{st: st, disk: o.Disk, keys: o.Keys, manual: o.Manual, admission: admission{minHits: 4}}
	c.local, _ = st.(store.Local)
	indexes := c.forIndexes(o.Bytes)
	c.limit = o.Bytes
	c.room.Store(o.Bytes - indexes)
	c.shards = newShards(o.Bytes - indexes)
	c.sources.ids = map[uint64]int32{}
	c.sources.policy = s3fifo.New(indexes, indexes/10, 8<<10)
	c.ctx, c.stop = context.WithCancel(context.Background())
	c.resizeBudget(0)
	return c
}

// UseKeys sets the keys of an encrypted volume, before anything is read.
func (c *Cache) UseKeys(keys *keyring.Ring) { c.keys = keys }

// forIndexes is the part of a limit that indexes may take.
func (c *Cache) forIndexes(limit int64) int64 {
	if c.local != nil {
		return limit / 4 // they have checksums of blocks
	}
	return limit / 8
}

// SetLimit changes the bound of what is kept in memory, to at most Config.Bytes.
func (c *Cache) SetLimit(bytes int64) {
	c.keeping.Lock()
	defer c.keeping.Unlock()
	indexes := c.forIndexes(bytes)
	c.limit = bytes
	c.room.Store(bytes - indexes)
	c.sources.resize(indexes)
	c.borrowed = -1 // shards are to be resized
	c.resizeBudget(0)
}

// Close ends the fetches in the background. No reads may come.
func (c *Cache) Close() {
	c.stop()
	c.fetches.Wait()
}

// Local reports whether the store is local.
func (c *Cache) Local() bool { return c.local != nil }

// Figures are what a cache has counted.
type Figures struct {
	Hits, Misses                 int64 // reads of frames that were in memory, or not
	Bytes                        int64 // in memory, with indexes
	DiskHits                     int64 // of the misses, those that the disk cache had
	StoreReads, StoreBytes       int64
	Prefetched                   int64 // bytes
	PrefetchUsed, PrefetchWasted int64 // frames
}

// Figures returns the current figures.
func (c *Cache) Figures() Figures {
	s := Figures{DiskHits: c.diskHits.Load(), StoreReads: c.storeReads.Load(), StoreBytes: c.storeBytes.Load(), Prefetched: c.aheadBytes.Load(),
		PrefetchUsed: c.readAround.good.Load(), PrefetchWasted: c.readAround.bad.Load()}
	for i := range c.shards {
		x := &c.shards[i]
		x.mu.Lock()
		s.Hits += x.hits
		s.Misses += x.misses
		s.Bytes += x.policy.Bytes()
		x.mu.Unlock()
	}
	s.Bytes += c.sources.bytes()
	return s
}

// fetch reads a range of a segment, whole. A segment that the manifest names
// and the store does not have is damage, not absence.
func (c *Cache) fetch(ctx context.Context, s *manifest.Segment, off, n int64) ([]byte, error) {
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

// Part is a piece of a read: blocks of a segment, in a row, and where to.
type Part struct {
	Segment *manifest.Segment
	Block   uint64
	P       []byte
}

// head is the part of x that lies in its first frame.
func (x Part) head() (f, at int, p []byte) {
	f, at = int(x.Block/segment.FrameBlocks), int(x.Block%segment.FrameBlocks)*segment.Block
	return f, at, x.P[:min(len(x.P), segment.FrameSize-at)]
}

// skip is x without its first n bytes.
func (x Part) skip(n int) Part {
	return Part{x.Segment, x.Block + uint64(n/segment.Block), x.P[n:]}
}

// Read fills p with the data of a segment from block on.
func (c *Cache) Read(ctx context.Context, s *manifest.Segment, block uint64, p []byte) error {
	return c.Load(ctx, c.CopyCached(nil, Part{s, block, p}), false)
}

// CopyCached copies what is in memory and appends the rest to missing.
func (c *Cache) CopyCached(missing []Part, x Part) []Part {
	gap := x
	for len(x.P) > 0 {
		f, at, p := x.head()
		n := c.get(frameKey{x.Segment.Num, uint32(f)}, at, p, true)
		if n > 0 {
			if k := len(gap.P) - len(x.P); k > 0 {
				missing = append(missing, Part{gap.Segment, gap.Block, gap.P[:k]})
			}
			x = x.skip(n)
			gap = x
			continue
		}
		x = x.skip(len(p))
	}
	if len(gap.P) > 0 {
		missing = append(missing, gap)
	}
	return missing
}

// CopyAllCached copies what is in memory, and reports whether that is all. What is
// missing is not counted: it will be asked for.
func (c *Cache) CopyAllCached(x Part) bool {
	for len(x.P) > 0 {
		f, at, p := x.head()
		n := c.get(frameKey{x.Segment.Num, uint32(f)}, at, p, false)
		if n == 0 {
			return false
		}
		x = x.skip(n)
	}
	return true
}

// Load loads parts in parallel. stream says that the read goes on
// where others ended.
func (c *Cache) Load(ctx context.Context, parts []Part, stream bool) error {
	for _, x := range parts {
		if end := x.Block + uint64(len(x.P)/segment.Block); end > x.Segment.Blocks {
			return errs.New(errs.Corrupt, "segment %s has no block %d", x.Segment.Ref, end-1)
		}
	}
	if c.local != nil {
		parts = c.loadLocal(ctx, parts, stream)
	}
	if c.manual || len(parts) < 2 {
		for _, x := range parts {
			if err := c.load(ctx, x); err != nil {
				return err
			}
		}
		return nil
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(parallelParts)
	for _, x := range parts {
		g.Go(func() error {
			if err := gctx.Err(); err != nil {
				return err
			}
			return c.load(gctx, x)
		})
	}
	return g.Wait()
}

// parallelParts is how many parts of one read are loaded at a time.
const parallelParts = 32

// load fills what is neither in memory nor in a local store.
func (c *Cache) load(ctx context.Context, x Part) error {
	if c.disk == nil {
		return c.loadRemote(ctx, x)
	}
	rest := x
	for len(x.P) > 0 {
		n := c.loadDisk(x)
		if n == 0 {
			_, _, p := x.head()
			x = x.skip(len(p))
			continue
		}
		if k := len(rest.P) - len(x.P); k > 0 {
			if err := c.loadRemote(ctx, Part{rest.Segment, rest.Block, rest.P[:k]}); err != nil {
				return err
			}
		}
		x = x.skip(n)
		rest = x
	}
	if len(rest.P) > 0 {
		return c.loadRemote(ctx, rest)
	}
	return nil
}

// admitFrame reports whether a whole frame should be brought into memory.
func (c *Cache) admitFrame() bool {
	return c.room.Load() >= segment.FrameSize+frameCost && c.admission.admit()
}

// frameSize is how many bytes of data a frame of a segment has.
func frameSize(s *manifest.Segment, f int) int {
	return int(min(segment.FrameBlocks, s.Blocks-uint64(f)*segment.FrameBlocks)) * segment.Block
}

func diskKey(s *manifest.Segment, f int) diskcache.Key {
	return diskcache.Key{Ref: s.Ref, Size: uint64(s.Size), First: s.First, Last: s.Last, Frame: uint32(f)}
}

// loadDisk fills the head of x from the disk cache, and returns how much.
func (c *Cache) loadDisk(x Part) int {
	f, at, p := x.head()
	if c.admitFrame() {
		whole := newFrame(frameSize(x.Segment, f))
		defer whole.release()
		if !c.disk.Get(diskKey(x.Segment, f), 0, whole.data) {
			return 0
		}
		copy(p, whole.data[at:])
		c.put(frameKey{x.Segment.Num, uint32(f)}, whole, fill)
	} else if !c.disk.Get(diskKey(x.Segment, f), at, p) {
		return 0
	}
	c.diskHits.Add(1)
	return len(p)
}
