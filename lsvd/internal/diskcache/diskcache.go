// Package diskcache keeps frames of segments in a bounded directory, for all
// disks of a process. It is warm after a restart, and every byte read from it
// is checked, so whatever a crash, a full disk or decay does to it, the worst
// is a miss.
//
// The file data has slots of 64 KiB; the file table a header and a record for
// each slot: which frame it has, and the CRC-32C of each of its 4 KiB blocks.
// docs/formats/lsvd-cache.md has the bytes. Nothing is ever synced: a record
// that is newer than its slot, or older, names sums that do not fit.
//
// What is kept is decided by S3-FIFO; what was just written enters as hot.
//
// Lock order: mu is never held while files are read or written.
package diskcache

import (
	"errors"
	"io"
	"log/slog"
	"sync"

	"miren.dev/runtime/lsvd/internal/name"
	"miren.dev/runtime/lsvd/internal/s3fifo"
	"miren.dev/runtime/lsvd/internal/wire"
	"miren.dev/runtime/lsvd/vfs"
	"miren.dev/runtime/pkg/errs"
)

// Sizes of the format.
const (
	SlotSize = 64 << 10
	block    = 4096
	blocks   = SlotSize / block
)

// Key names a frame. Segments never change, and their names are not used
// twice; sequence numbers and size tell apart those of a store that was put
// back to an earlier state and went on differently.
type Key struct {
	Ref         name.Ref
	Size        uint64 // of the segment
	First, Last uint64
	Frame       uint32
}

func (k Key) segment() Key {
	k.Frame = 0
	return k
}

func (k Key) hash() uint64 {
	h := uint64(k.Frame+1) * 0xc2b2ae3d27d4eb4f
	for _, v := range []uint64{uint64(k.Ref.Volume[0]) | uint64(k.Ref.Volume[7])<<8 | uint64(k.Ref.Volume[15])<<16, uint64(k.Ref.Kind), k.Ref.Epoch, k.Ref.Num} {
		h = (h ^ v) * 0x9e3779b97f4a7c15
		h ^= h >> 32
	}
	return h
}

// slot is what a slot holds.
type slot struct {
	seg   *held // nil: nothing
	frame uint32
	size  uint32
	turn  uint32 // tells apart what the slot held at different times
	sums  [blocks]uint32
}

// held is a segment of which some frames are here.
type held struct {
	key   Key // with frame 0
	slots map[uint32]int32
}

// Stats are figures of a cache.
type Stats struct {
	Bytes    int64 // of data
	Limit    int64
	Hits     int64
	Misses   int64
	Damaged  int64 // frames dropped because they were not what the record says
	Failures int64 // reads and writes that failed
}

// Cache is an open directory. A nil *Cache is one that has nothing.
type Cache struct {
	data, table vfs.File
	lock        io.Closer
	logger      *slog.Logger

	mu       sync.Mutex
	segments map[Key]*held
	slots    []slot
	busy     map[Key]bool // being written
	free     []int32      // below top, empty
	turn     uint32
	top      int32 // slots from here on were never used
	policy   *s3fifo.Policy
	stats    Stats
	skip     int // writes to leave out, since one failed
	failing  bool
	closed   bool
}

// afterFailure is how many writes are left out after one that failed.
const afterFailure = 256

// Open opens the directory fs, which belongs to the cache alone, as a cache
// of limit bytes. What another version of the format has left, or one with
// more space, is thrown away.
func Open(fs vfs.FS, limit int64, logger *slog.Logger) (*Cache, error) {
	n := limit / (SlotSize + recordSize)
	if n < 1 || n > 1<<30 {
		return nil, errs.New(errs.InvalidArgument, "disk cache of %d bytes", limit)
	}
	c := &Cache{logger: logger, segments: map[Key]*held{}, slots: make([]slot, n), busy: map[Key]bool{}, policy: s3fifo.New(n, n/10, 1)}
	c.stats.Limit = limit
	var err error
	if c.lock, err = fs.Lock(); err != nil {
		return nil, errs.Wrap(err, "open disk cache")
	}
	if err := c.open(fs); err != nil {
		c.closeFiles()
		return nil, errs.Wrap(err, "open disk cache")
	}
	return c, nil
}

func (c *Cache) open(fs vfs.FS) error {
	for try := 0; ; try++ {
		var err error
		if c.table, err = fs.Open(tableName, true); err != nil {
			return err
		}
		if c.data, err = fs.Open(dataName, true); err != nil {
			return err
		}
		switch fits, err := c.readHeader(); {
		case err != nil:
			return err
		case fits:
			return c.load()
		case try > 0:
			return errs.New(errs.Corrupt, "its header does not hold what was written")
		}
		c.table.Close()
		c.data.Close()
		for _, n := range []string{tableName, dataName} {
			if err := fs.Remove(n); err != nil {
				return err
			}
		}
	}
}

// Close closes the files. What is in the cache stays for the next Open.
func (c *Cache) Close() error {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.closed = true
		c.closeFiles()
	}
	return nil
}

func (c *Cache) closeFiles() {
	if c.table != nil {
		c.table.Close()
	}
	if c.data != nil {
		c.data.Close()
	}
	c.lock.Close()
}

// Stats returns the current figures.
func (c *Cache) Stats() Stats {
	if c == nil {
		return Stats{}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stats
}

// find returns the slot of a frame. The caller holds mu.
func (c *Cache) find(k Key) (int32, bool) {
	h := c.segments[k.segment()]
	if h == nil {
		return 0, false
	}
	id, ok := h.slots[k.Frame]
	return id, ok
}

// Has reports whether a frame is here, as far as is known without reading it.
func (c *Cache) Has(k Key) bool {
	if c == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.find(k)
	return ok
}

// Get fills p from a frame, whole blocks from offset at on, and reports
// whether all of it is there and intact.
func (c *Cache) Get(k Key, at int, p []byte) bool {
	if c == nil || at%block != 0 || len(p)%block != 0 {
		return false
	}
	c.mu.Lock()
	id, ok := c.find(k)
	if !ok || c.closed || at+len(p) > int(c.slots[id].size) {
		c.stats.Misses++
		c.mu.Unlock()
		return false
	}
	var sums [blocks]uint32
	copy(sums[:], c.slots[id].sums[at/block:])
	turn := c.slots[id].turn
	c.policy.Touch(id)
	c.mu.Unlock()

	_, err := c.data.ReadAt(p, int64(id)*SlotSize+int64(at))
	good := err == nil || errors.Is(err, io.EOF)
	for i := 0; good && i < len(p)/block; i++ {
		good = wire.CRC(p[i*block:(i+1)*block]) == sums[i]
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if good {
		c.stats.Hits++
		return true
	}
	c.stats.Misses++
	// Unless the slot was given to another frame meanwhile, it is damaged.
	if now, ok := c.find(k); ok && c.slots[now].turn == turn && !c.closed {
		c.drop(id)
		if err != nil && !errors.Is(err, io.EOF) {
			c.failed("read", err)
		} else {
			c.stats.Damaged++
			c.logger.Warn("disk cache: a frame is damaged, it is dropped", "segment", k.Ref.String(), "frame", k.Frame)
		}
	}
	return false
}

// Put keeps the data of a frame, if it can. Hot is what was just written.
func (c *Cache) Put(k Key, p []byte, hot bool) {
	if c == nil || len(p) == 0 || len(p) > SlotSize || len(p)%block != 0 {
		return
	}
	c.mu.Lock()
	_, have := c.find(k)
	if have || c.closed || c.busy[k] {
		c.mu.Unlock()
		return
	}
	if c.skip > 0 {
		c.skip--
		c.mu.Unlock()
		return
	}
	id, ok := c.take()
	if !ok {
		c.mu.Unlock()
		return
	}
	c.busy[k] = true
	c.mu.Unlock()

	s := slot{frame: k.Frame, size: uint32(len(p))}
	for i := 0; i < len(p)/block; i++ {
		s.sums[i] = wire.CRC(p[i*block : (i+1)*block])
	}
	_, err := c.data.WriteAt(p, int64(id)*SlotSize)
	if err == nil {
		_, err = c.table.WriteAt(encodeRecord(k, id, &s), recordAt(id))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.busy, k)
	if err != nil {
		c.free = append(c.free, id)
		if !c.closed {
			c.skip = afterFailure
			c.failed("write", err)
		}
		return
	}
	if c.failing {
		c.failing = false
		c.logger.Info("disk cache works again")
	}
	c.set(id, k, s, hot)
}

// failed notes a failure and says so once until something works again. The
// caller holds mu.
func (c *Cache) failed(what string, err error) {
	c.stats.Failures++
	if !c.failing {
		c.failing = true
		c.logger.Warn("disk cache fails, going on without it for now", "operation", what, "error", err)
	}
}

// take returns an empty slot, evicting if there is none. The caller holds mu.
func (c *Cache) take() (int32, bool) {
	if n := len(c.free); n > 0 {
		id := c.free[n-1]
		c.free = c.free[:n-1]
		return id, true
	}
	if int(c.top) < len(c.slots) {
		c.top++
		return c.top - 1, true
	}
	id, ok := c.policy.Victim()
	if ok {
		c.forget(id)
	}
	return id, ok
}

// set makes the slot that of a frame. The caller holds mu.
func (c *Cache) set(id int32, k Key, s slot, hot bool) {
	h := c.segments[k.segment()]
	if h == nil {
		h = &held{key: k.segment(), slots: map[uint32]int32{}}
		c.segments[h.key] = h
	}
	c.turn++
	s.seg, s.turn = h, c.turn
	h.slots[k.Frame] = id
	c.slots[id] = s
	c.policy.Add(id, k.hash(), 1, hot)
	c.stats.Bytes += int64(s.size)
}

// forget empties a slot that the policy does not have any more. The caller
// holds mu.
func (c *Cache) forget(id int32) {
	s := &c.slots[id]
	delete(s.seg.slots, s.frame)
	if len(s.seg.slots) == 0 {
		delete(c.segments, s.seg.key)
	}
	c.stats.Bytes -= int64(s.size)
	*s = slot{}
}

// drop empties a slot. The caller holds mu.
func (c *Cache) drop(id int32) {
	c.policy.Remove(id)
	c.forget(id)
	c.free = append(c.free, id)
}
