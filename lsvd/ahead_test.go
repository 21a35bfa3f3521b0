package lsvd_test

import (
	"bytes"
	"context"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/store/storesim"
	"miren.dev/runtime/lsvd/vfs/vfssim"
)

// remote is a store that counts reads of parts of segments and takes its time.
type remote struct {
	storesim.Fault
	reads atomic.Int64
	delay atomic.Int64
	busy  atomic.Int64
	peak  atomic.Int64 // most operations at once
}

// GetRange implements [store.Store].
func (f *remote) GetRange(ctx context.Context, key string, off, n int64) ([]byte, error) {
	now := f.busy.Add(1)
	defer f.busy.Add(-1)
	for old := f.peak.Load(); now > old && !f.peak.CompareAndSwap(old, now); old = f.peak.Load() {
	}
	return f.Fault.GetRange(ctx, key, off, n)
}

func newRemote() *remote {
	f := &remote{}
	f.Store = &storesim.Mem{}
	f.Hook = func(op storesim.Op, key string) storesim.Action {
		if op == storesim.OpGetRange && !strings.Contains(key, "/map/") {
			f.reads.Add(1)
		}
		time.Sleep(time.Duration(f.delay.Load()))
		return storesim.Action{}
	}
	return f
}

// remoteDisk is a disk with content in a remote store; nothing is cached.
func remoteDisk(t *testing.T, size int64, opts lsvd.Options) (*remote, *lsvd.Device, []byte) {
	t.Helper()
	f, id := newRemote(), lsvd.NewID()
	if err := lsvd.Create(t.Context(), f, id, size, nil); err != nil {
		t.Fatal(err)
	}
	content := make([]byte, size)
	rng := rand.NewChaCha8([32]byte{9})
	for i := 0; i < len(content); i += 4 << 10 {
		rng.Read(content[i : i+2<<10])
	}
	fs := vfssim.New()
	open := func() *lsvd.Device {
		d, _, err := lsvd.Open(t.Context(), f, fs, id, opts)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close(t.Context()) })
		return d
	}
	d := open()
	step := int64(1 << 20)
	if opts.CutBytes > 0 {
		step = opts.CutBytes // each its own cut
	}
	for off := int64(0); off < size; off += step {
		if err := d.WriteAt(t.Context(), content[off:off+step], off, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	return f, open(), content
}

// The clock is a simulated one, which stands while anybody can go on: how many
// processors there are and who else uses them does not matter.
func TestReadAhead(t *testing.T) { synctest.Test(t, testReadAhead) }

func testReadAhead(t *testing.T) {
	const size = 32 << 20
	f, d, content := remoteDisk(t, size, lsvd.Options{Compression: lsvd.CompressNone}) // the compressor has goroutines of its own
	f.reads.Store(0)
	f.delay.Store(int64(20 * time.Millisecond))
	// Three readers, each through a part of the disk, 16 KiB at a time, in turns.
	const readers, step, length = 3, 16 << 10, 8 << 20
	p := make([]byte, step)
	start := time.Now()
	for off := int64(0); off < length; off += step {
		for r := range int64(readers) {
			at := r*(10<<20) + off
			if err := d.ReadAt(t.Context(), p, at); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(p, content[at:at+step]) {
				t.Fatalf("wrong data at %d", at)
			}
		}
	}
	// 24 MiB in pieces of 256 KiB would be 96 reads of 20 ms, one after the other.
	s := d.Stats()
	t.Logf("%d reads, %v, %+v", f.reads.Load(), time.Since(start), s)
	if n := f.reads.Load(); n > 60 {
		t.Errorf("%d reads of the store", n)
	}
	if s.ReadAheadUsed < 300 {
		t.Errorf("%d frames were read ahead and used", s.ReadAheadUsed)
	}
}

// TestReadAheadBound reads on in a cache that has room for little.
func TestReadAheadBound(t *testing.T) {
	for _, cache := range []int64{1, 300 << 10, 4 << 20} {
		t.Run(strconv.FormatInt(cache, 10), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testReadAheadBound(t, cache) })
		})
	}
}

func testReadAheadBound(t *testing.T, cache int64) {
	f, d, content := remoteDisk(t, 8<<20, lsvd.Options{CacheBytes: cache, Compression: lsvd.CompressNone})
	f.reads.Store(0)
	f.delay.Store(int64(time.Millisecond))
	p := make([]byte, 4<<10)
	for off := int64(0); off < int64(len(content)); off += int64(len(p)) {
		if err := d.ReadAt(t.Context(), p, off); err != nil || !bytes.Equal(p, content[off:off+int64(len(p))]) {
			t.Fatalf("read at %d: %v", off, err)
		}
		if s := d.Stats(); s.CacheBytes > cache {
			t.Fatalf("%d bytes in a cache of %d", s.CacheBytes, cache)
		}
	}
	s := d.Stats()
	t.Logf("cache %d: %d reads, %+v", cache, f.reads.Load(), s)
	if cache >= 4<<20 && s.ReadAheadWasted > 8 {
		t.Errorf("cache of %d: %d frames were read ahead for nothing", cache, s.ReadAheadWasted)
	}
}

// TestRandomReadsFetchLittle: where reading more than asked for does not pay,
// it ends.
func TestRandomReadsFetchLittle(t *testing.T) {
	f, d, content := remoteDisk(t, 64<<20, lsvd.Options{CacheBytes: 2 << 20})
	rng := rand.New(rand.NewPCG(1, 1))
	p := make([]byte, 4<<10)
	read := func(n int) {
		for range n {
			off := rng.Int64N(int64(len(content))/4096) * 4096
			if err := d.ReadAt(t.Context(), p, off); err != nil || !bytes.Equal(p, content[off:off+4096]) {
				t.Fatalf("read at %d: %v", off, err)
			}
		}
	}
	read(500)
	before := d.Stats()
	f.reads.Store(0)
	read(500)
	after := d.Stats()
	perRead := (after.StoreReadBytes - before.StoreReadBytes) / 500
	t.Logf("%d bytes for each read, %d reads of the store; %+v", perRead, f.reads.Load(), after)
	if perRead > 64<<10 { // half of the content compresses
		t.Errorf("%d bytes were fetched for each random read of 4 KiB", perRead)
	}
}

// TestConcurrentMissesShare: many readers of one place make one fetch.
func TestConcurrentMissesShare(t *testing.T) {
	f, d, _ := remoteDisk(t, 2<<20, lsvd.Options{})
	f.reads.Store(0)
	f.delay.Store(int64(10 * time.Millisecond))
	errs := make(chan error)
	for range 16 {
		go func() { errs <- d.ReadAt(t.Context(), make([]byte, 4096), 0) }()
	}
	for range 16 {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
	if n := f.reads.Load(); n > 2 { // index and data
		t.Errorf("%d reads of the store", n)
	}
}

// TestScatteredMissesOverlap: the pieces of one read are fetched at once.
func TestScatteredMissesOverlap(t *testing.T) {
	f, d, content := remoteDisk(t, 4<<20, lsvd.Options{CutBytes: 64 << 10, LogFile: 1 << 20})
	f.delay.Store(int64(20 * time.Millisecond))
	p := make([]byte, 1<<20) // of 16 segments, each with an index
	f.peak.Store(0)
	if err := d.ReadAt(t.Context(), p, 0); err != nil || !bytes.Equal(p, content[:1<<20]) {
		t.Fatal(err)
	}
	if n := f.peak.Load(); n < 8 {
		t.Errorf("at most %d fetches at once", n)
	}
}

// TestFirstReadOfClone: opening a clone takes three operations on the store
// one after the other, and the first read of it one: the page of the map came
// meanwhile, and the index comes beside the frame.
func TestFirstReadOfClone(t *testing.T) { synctest.Test(t, testFirstReadOfClone) }

func testFirstReadOfClone(t *testing.T) {
	const delay = 20 * time.Millisecond
	opts := lsvd.Options{Compression: lsvd.CompressNone, CutBytes: 256 << 10}
	f, d, content := remoteDisk(t, 32<<20, opts) // of 128 segments
	if err := d.Snapshot(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	id := lsvd.NewID()
	if err := lsvd.Clone(t.Context(), f, d.ID(), "s", id, nil); err != nil {
		t.Fatal(err)
	}
	f.delay.Store(int64(delay))
	start := time.Now()
	c, _, err := lsvd.Open(t.Context(), f, vfssim.New(), id, opts)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(t.Context())
	if took := time.Since(start); took > 3*delay {
		t.Errorf("opening took %v", took)
	}
	synctest.Wait() // the page of the map comes at the same time as the end of Open
	for _, at := range []int64{1 << 20, 17<<20 + 8192} {
		start, reads := time.Now(), f.reads.Load()
		p := make([]byte, 4096)
		if err := c.ReadAt(t.Context(), p, at); err != nil || !bytes.Equal(p, content[at:at+4096]) {
			t.Fatal(err)
		}
		if took := time.Since(start); took != delay || f.reads.Load() != reads+2 {
			t.Errorf("reading at %d took %v and %d operations", at, took, f.reads.Load()-reads)
		}
	}
}
