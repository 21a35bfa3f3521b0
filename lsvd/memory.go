package lsvd

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"miren.dev/runtime/lsvd/internal/memlimit"
)

// Memory is a budget of bytes for what several disks keep in memory because it may be
// read again: frames and indexes of segments, and leaves of their maps. Disks whose
// reads miss get the most, up to their own Options.CacheBytes and MapBytes. A disk keeps
// its memory for a minute after its last read, and then frees it step by step.
type Memory struct {
	limit int64

	mu     sync.Mutex
	disks  []*memoryShare
	shared time.Time
}

// memoryShare is what a disk may keep.
type memoryShare struct {
	d            *Device
	hits, misses int64 // at the last look
	idle         int   // looks since the last read
	demand, most int64 // bytes
	bytes        int64 // granted
}

const (
	memoryFloor = 1 << 20     // what each disk may always keep
	memoryLook  = time.Second // how often shares are set
	memoryIdle  = 60          // looks without a read before a disk gives up memory
)

// NewMemory returns a budget of so many bytes, or of half of the memory limit of the
// process if that is less. Each disk may keep 1 MiB: with very many disks, all of them
// together may exceed the budget by that.
func NewMemory(bytes int64) *Memory { return &Memory{limit: min(bytes, memlimit.Limit()/2)} }

// MemoryStats are figures of a Memory.
type MemoryStats struct {
	Limit int64 // bytes
	Used  int64 // bytes that disks keep
}

// Stats returns the current figures.
func (m *Memory) Stats() MemoryStats {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := MemoryStats{Limit: m.limit}
	for _, x := range m.disks {
		used, _, _ := x.d.memoryUse()
		s.Used += used
	}
	return s
}

func (m *Memory) join(d *Device) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.disks = append(m.disks, &memoryShare{d: d, most: d.opts.CacheBytes + d.opts.MapBytes, bytes: d.opts.CacheBytes + d.opts.MapBytes})
	m.share()
}

func (m *Memory) leave(d *Device) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.disks = slices.DeleteFunc(m.disks, func(x *memoryShare) bool { return x.d == d })
	m.share()
}

// look sets the shares if they were not set lately. Every disk calls it now and then.
func (m *Memory) look(now time.Time) {
	if m == nil || !m.mu.TryLock() {
		return
	}
	defer m.mu.Unlock()
	if now.Sub(m.shared) >= memoryLook {
		m.shared = now
		m.share()
	}
}

// share sets how much memory each disk may keep: its demand, unless all demand too much; then
// the disks with the greatest demands get equal shares. Bytes that no disk demands are divided too, so
// that a disk that begins to read need not wait. The caller holds mu.
func (m *Memory) share() {
	if len(m.disks) == 0 {
		return
	}
	for _, x := range m.disks {
		x.look()
	}
	slices.SortStableFunc(m.disks, func(a, b *memoryShare) int { return cmp.Compare(a.demand, b.demand) })
	next := make([]int64, len(m.disks))
	left := m.limit
	for i, x := range m.disks {
		next[i] = max(min(x.demand, left/int64(len(m.disks)-i)), memoryFloor)
		left = max(left-next[i], 0)
	}
	for i, x := range m.disks {
		more := min(left/int64(len(m.disks)-i), max(x.most-next[i], 0))
		next[i] += more
		left -= more
	}
	for _, grow := range []bool{false, true} { // first they give, then they get
		for i, x := range m.disks {
			if next[i] != x.bytes && next[i] > x.bytes == grow {
				x.bytes = next[i]
				x.d.limitMemory(x.bytes)
			}
		}
	}
}

// look updates what the disk demands.
func (x *memoryShare) look() {
	used, hits, misses := x.d.memoryUse()
	missed, read := misses != x.misses, hits != x.hits || misses != x.misses
	x.hits, x.misses = hits, misses
	x.idle++
	if read {
		x.idle = 0
	}
	switch {
	case missed:
		x.demand = x.most
	case x.idle < memoryIdle:
		x.demand = max(x.demand, used)
	default:
		x.demand = used / 2
	}
	x.demand = min(x.demand, x.most)
}

// memoryUse is how many bytes the disk keeps, and its reads of frames so far.
func (d *Device) memoryUse() (bytes, hits, misses int64) {
	f := d.cache.Figures()
	d.mu.RLock()
	defer d.mu.RUnlock()
	return f.Bytes + d.loaded, f.Hits, f.Misses
}

// limitMemory bounds what the disk keeps: a third is for the map, or what the cache
// may not have.
func (d *Device) limitMemory(bytes int64) {
	forMap := min(max(bytes/3, bytes-d.opts.CacheBytes), d.opts.MapBytes)
	d.cache.SetLimit(min(bytes-forMap, d.opts.CacheBytes))
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mapLimit = forMap
	if d.pins == 0 && d.loaded > d.mapLimit {
		d.loaded = d.base.Evict(false, d.mapLimit)
	}
}
