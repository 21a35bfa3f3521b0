package lsvd

import (
	"context"
	"encoding/hex"
	"io"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"

	"miren.dev/runtime/lsvd/internal/extent"
	"miren.dev/runtime/lsvd/internal/keyring"
	"miren.dev/runtime/lsvd/internal/manifest"
	"miren.dev/runtime/lsvd/internal/name"
	"miren.dev/runtime/lsvd/internal/readcache"
	"miren.dev/runtime/lsvd/internal/reclaim"
	"miren.dev/runtime/lsvd/internal/segment"
	"miren.dev/runtime/lsvd/internal/wal"
	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/pkg/errs"
)

// Device is an open disk. Its methods may be called concurrently. Operations
// that overlap in time may happen in either order; each is atomic for extents
// of up to 1 MiB.
type Device struct {
	opts    Options
	st      store.Store
	logger  *slog.Logger
	vol     ID
	epoch   uint64
	owner   [16]byte
	size    atomic.Int64
	wal     *wal.Log
	lock    io.Closer
	cache   *readcache.Cache
	keys    *keyring.Ring // of an encrypted volume
	plain   bool          // segments are not compressed
	streams readcache.Streams
	boot    recorder

	align sync.RWMutex // held by writes until they are done, for writing by those that read, change and write blocks

	qmu      sync.Mutex
	queue    []*op
	leading  bool
	writable atomic.Bool // writes may be queued; changes under mu

	// Of the committer: reused from record to record.
	extents []wal.Extent
	batch   []*op
	chunks  []wal.Chunk

	pub             ctxMutex // held by the one that changes the state in the store
	man             *manifest.Manifest
	version         store.Version
	since           int  // segments since the last checkpoint
	dirty           bool // base has changed since then
	nextMap         uint64
	nextGC          uint64
	budget          int64  // blocks that GC may move
	heldAt          uint64 // revision at which others held all garbage
	heldSince       time.Time
	lastMaintenance time.Time // when something was published or collected last
	others          *reclaim.Usage
	othersAt        time.Time
	collectDue      bool                 // reclaim is to collect
	collected       bool                 // and has moved something the last time
	snapshots       int                  // that this device made
	snapped         map[name.Kind]uint64 // objects of this epoch below these numbers may be in a snapshot

	collecting ctxMutex      // held while data is moved; before pub
	deleting   ctxMutex      // held while doomed objects are deleted
	reclaiming chan struct{} // kicks reclaim

	mu      sync.RWMutex
	garbage []name.Ref // the next manifest drops it
	doomed  []doomed
	active  *cut
	frozen  []*cut      // oldest first
	recent  *extent.Map // over base; see basemap.go
	base    *extent.Map
	table   map[uint64]*seg

	objects    map[uint32]mapObject // that have pages of base
	nextObject uint32               // never used again
	lostMaps   map[name.Ref]bool
	uncounted  bool  // live blocks of segments are not to be trusted
	loaded     int64 // about what leaves of base take
	mapLimit   int64 // bound of it
	pins       int   // callers of pin without unpin
	faults     singleflight.Group

	readers *readerEpoch
	unsent  int64
	space   chan struct{} // closed and replaced when unsent falls
	closed  bool
	failed  error
	failing chan struct{} // closed when failed is set
	last    uint64        // sequence number of the newest change
	logFull bool          // the log had no room at the last attempt to write

	confirmed time.Time // when the store showed last that the volume is the device's; see owner.go

	stop       context.CancelFunc
	done       chan struct{}
	kick       chan struct{}
	background sync.WaitGroup // goroutines: log files, owner check

	ending chan struct{} // closed when Close begins

	stats counters
}

// ctxMutex is a mutex whose waiters give up when their context ends: its holder
// may wait long for the store. The channel has room for one.
type ctxMutex chan struct{}

func (b ctxMutex) lock(ctx context.Context) error {
	select {
	case b <- struct{}{}:
		return nil
	default:
	}
	select {
	case b <- struct{}{}:
		return nil
	case <-ctx.Done():
		return errs.Wrap(ctx.Err(), "wait for the store")
	}
}

func (b ctxMutex) unlock() { <-b }

// seg is one segment of the table. live changes under Device.mu.
type seg struct {
	manifest.Segment
	live        uint64
	lost        bool // it is not in the store
	moving      bool // GC reads or fills it: it stays in the manifest
	quarantined bool // it is damaged: GC leaves it alone
}

// cut is a run of sequence numbers on its way to the store.
type cut struct {
	first, last uint64
	bytes       int64
	born        time.Time
	over        *extent.Map     // to sequence numbers of chunks
	chunks      []wal.Chunk     // by sequence number from first on
	defined     []segment.Entry // what its segment defines
	object      []byte          // its segment
	created     bool            // the store has it
}

func newCut() *cut {
	return &cut{over: extent.New(extent.MaxBlocks)}
}

// chunk is where the data of a sequence number of the cut is.
func (c *cut) chunk(seq uint64) *wal.Chunk { return &c.chunks[seq-c.first] }

// readerEpoch counts the readers that entered while it was the current one. enter is
// called with Device.mu held, and so is shut, after the epoch was replaced.
type readerEpoch struct {
	n    atomic.Int64 // readers, plus one until shut
	idle chan struct{}
}

func newReaderEpoch() *readerEpoch {
	g := &readerEpoch{idle: make(chan struct{})}
	g.n.Store(1)
	return g
}

func (g *readerEpoch) enter() { g.n.Add(1) }

// readers is how many are in the epoch, as long as it is not shut.
func (g *readerEpoch) readers() int { return int(g.n.Load()) - 1 }

func (g *readerEpoch) exit() {
	if g.n.Add(-1) == 0 {
		close(g.idle)
	}
}

// waitForReaders waits for all readers that may use what was current before.
func (d *Device) waitForReaders() {
	d.mu.Lock()
	old := d.readers
	d.readers = newReaderEpoch()
	d.mu.Unlock()
	old.exit()
	<-old.idle
}

// Size is the size of the disk in bytes.
func (d *Device) Size() int64 { return d.size.Load() }

// ID is the volume.
func (d *Device) ID() ID { return d.vol }

// Owner identifies the process that has the volume open, as the volume's
// manifest and package inspect name it.
func (d *Device) Owner() string { return hex.EncodeToString(d.owner[:]) }

// fail makes the disk refuse everything from now on. It keeps the first reason,
// unless the new one is that another owner has opened the volume: from then on
// it must not be read either.
func (d *Device) fail(err error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.failed == nil {
		close(d.failing)
	}
	if d.failed == nil || errs.Is(err, errs.Conflict) && !errs.Is(d.failed, errs.Conflict) {
		d.failed = err
		d.updateWritable()
		d.logger.Error("disk has failed", "volume", d.vol.String(), "error", err)
		close(d.space)
		d.space = make(chan struct{})
	}
	return d.failed
}

// usable returns why the disk cannot be used. The caller holds mu.
func (d *Device) usable() error {
	if d.closed {
		return errs.New(errs.FailedPrecondition, "disk %s is closed", d.vol)
	}
	return d.failed
}

// readable is usable for reads: a log that failed does not spoil what the map
// names, but a volume that another owner has opened may have changed.
func (d *Device) readable() error {
	if d.closed || errs.Is(d.failed, errs.Conflict) {
		return d.usable()
	}
	return nil
}

func (d *Device) usableNow() error {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.usable()
}

// failure is why the disk has failed for good, or nil.
func (d *Device) failure() error {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.failed
}

// Err is why the disk has failed for good, or nil. It does not recover: what
// can be done is to close it and open it again.
func (d *Device) Err() error { return d.failure() }

// Failed is closed when the disk fails for good.
func (d *Device) Failed() <-chan struct{} { return d.failing }

// Last is the sequence number of the newest change. After an Open whose
// Recovery.Last is not lower, nothing that was acknowledged before is lost.
func (d *Device) Last() uint64 {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.last
}

// Flush makes all writes acknowledged before it survive a power loss.
func (d *Device) Flush(ctx context.Context) error {
	if err := d.usableNow(); err != nil {
		return err
	}
	if err := d.wal.Sync(); err != nil {
		return d.fail(err)
	}
	if d.opts.RemoteFlush {
		return d.Drain(ctx)
	}
	return nil
}

// Close sends what is unsent, marks the volume clean and releases it. If the
// store cannot be reached before ctx ends, it returns the error and releases
// the volume all the same: the log keeps the data for the next Open.
func (d *Device) Close(ctx context.Context) error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return nil
	}
	d.closed = true
	d.updateWritable()
	close(d.ending)
	failed := d.failed
	close(d.space) // writes that wait for space see that the disk is closed
	d.space = make(chan struct{})
	d.mu.Unlock()
	if d.stop != nil {
		d.stop()
		<-d.done
		d.background.Wait()
	}
	d.waitQueue()
	for _, l := range []ctxMutex{d.collecting, d.pub} {
		_ = l.lock(context.WithoutCancel(ctx)) // the holder sees soon that the disk is closed
		defer l.unlock()
	}
	err := failed
	if err == nil {
		err = d.wal.Sync()
	}
	if err == nil {
		err = d.retryWhile(ctx, d.failure, d.progress, func() error { return d.drain(ctx, true) })
	}
	d.opts.Memory.leave(d)
	d.waitForReaders()
	d.cache.Close()
	d.wal.Close()
	d.lock.Close()
	return err
}

// UnsentCut is a run of acknowledged changes that reaches the store as a whole.
type UnsentCut struct {
	Last  uint64 // sequence number of the newest one
	Bytes int64  // of data, in whole blocks
}

// Stats are figures of an open disk.
type Stats struct {
	UnsentBytes   int64         // acknowledged, not yet in the store
	UnsentLimit   int64         // writes wait while more is unsent
	Last          uint64        // sequence number of the newest change
	Durable       uint64        // and up to which the store has everything
	Unsent        []UnsentCut   // the changes between them, oldest first
	Lag           time.Duration // age of the oldest of them
	Written       int64         // bytes written by the caller
	Stored        int64         // bytes created in the store, by cuts and GC
	StoredGC      int64         // of these, by GC
	StoredMap     int64         // of these, checkpoints of the map
	Published     int64         // bytes of the disk that cuts brought to the store, before compression
	Moved         int64         // bytes of the disk that GC moved; (Published+Moved)/Written is the write amplification
	LiveBlocks    int64         // blocks that segments hold and the disk uses
	StoredBlocks  int64         // blocks that segments hold
	Segments      int
	LogBytes      int64 // space of log files in use
	LogFull       bool  // writes wait for room in the log
	CacheHits     int64 // reads of frames that were in memory
	CacheMisses   int64
	CacheBytes    int64 // in memory, with indexes
	MapBytes      int64 // of the map in memory, about
	StoreFailures int64 // operations that are or were tried again
	Queue         int   // operations that wait for the committer

	CacheDiskHits   int64 // of the misses, those that the disk cache had
	StoreReads      int64 // reads of parts of segments
	StoreReadBytes  int64
	ReadAhead       int64 // bytes brought in before they were asked for
	ReadAheadUsed   int64 // frames brought in that were read then
	ReadAheadWasted int64 // or were not
}

type counters struct {
	written, stored, storedGC, storedMap, published, moved, failures atomic.Int64
}

// Stats returns the current figures.
func (d *Device) Stats() Stats {
	d.qmu.Lock()
	queue := len(d.queue)
	d.qmu.Unlock()
	d.mu.RLock()
	defer d.mu.RUnlock()
	s := Stats{
		Queue: queue, UnsentBytes: d.unsent, Written: d.stats.written.Load(), Stored: d.stats.stored.Load(),
		StoredGC: d.stats.storedGC.Load(), StoredMap: d.stats.storedMap.Load(), Published: d.stats.published.Load(), Moved: d.stats.moved.Load(), StoreFailures: d.stats.failures.Load(), Segments: len(d.table), LogBytes: d.wal.Held(),
	}
	s.MapBytes, s.LogFull = d.loaded, d.logFull
	s.UnsentLimit, s.Last, s.Durable = d.opts.MaxUnsent, d.last, d.last
	for i, c := range slices.Concat(d.frozen, []*cut{d.active}) {
		if c.last == 0 {
			continue
		}
		if i == 0 {
			s.Durable = c.first - 1
		}
		s.Unsent = append(s.Unsent, UnsentCut{Last: c.last, Bytes: c.bytes - int64(c.last-c.first+1)*extentBytes})
	}
	oldest := d.active
	if len(d.frozen) > 0 {
		oldest = d.frozen[0]
	}
	if oldest.last != 0 {
		s.Lag = d.opts.Now().Sub(oldest.born)
	}
	for _, g := range d.table {
		s.LiveBlocks += int64(g.live)
		s.StoredBlocks += int64(g.Blocks)
	}
	f := d.cache.Figures()
	s.CacheHits, s.CacheMisses, s.CacheBytes, s.CacheDiskHits = f.Hits, f.Misses, f.Bytes, f.DiskHits
	s.StoreReads, s.StoreReadBytes = f.StoreReads, f.StoreBytes
	s.ReadAhead, s.ReadAheadUsed, s.ReadAheadWasted = f.Prefetched, f.PrefetchUsed, f.PrefetchWasted
	return s
}
