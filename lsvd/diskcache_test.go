package lsvd_test

import (
	"bytes"
	"context"
	"math/rand/v2"
	"strings"
	"testing"

	"miren.dev/runtime/lsvd"
	dirstore "miren.dev/runtime/lsvd/store/dir"
	"miren.dev/runtime/lsvd/vfs/vfssim"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/wait"
)

// TestDiskCache: what was written is there without asking the store, after
// restarts too and for clones; what decayed is asked for again.
func TestDiskCache(t *testing.T) {
	const size = 8 << 20
	files := vfssim.New()
	cache := func() *lsvd.DiskCache {
		c, err := lsvd.OpenDiskCache(files, 2*size, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	opts := lsvd.Options{CacheBytes: 1, CutBytes: 1 << 20, DiskCache: cache()}
	f, d, content := remoteDisk(t, size, opts)
	log := vfssim.New()
	read := func(d *lsvd.Device) (reads int64) {
		t.Helper()
		f.reads.Store(0)
		p := make([]byte, 64<<10)
		rng := rand.New(rand.NewPCG(4, 4))
		for range 300 {
			n := 1 + rng.Int64N(int64(len(p)))
			off := rng.Int64N(size - n)
			if err := d.ReadAt(t.Context(), p[:n], off); err != nil || !bytes.Equal(p[:n], content[off:off+n]) {
				t.Fatalf("read %d+%d: %v", off, n, err)
			}
		}
		return f.reads.Load()
	}
	if n := read(d); n != 0 {
		t.Errorf("%d reads of the store for what was just written", n)
	}
	if err := d.Snapshot(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	clone := lsvd.NewID()
	if err := lsvd.Clone(t.Context(), f, d.ID(), "s", clone, nil); err != nil {
		t.Fatal(err)
	}
	segments := int64(0)
	for i, err := range f.List(t.Context(), "objects/") {
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(i.Key, "/data/") {
			segments++
		}
	}
	open := func() *lsvd.Device {
		f.reads.Store(0)
		c, _, err := lsvd.Open(t.Context(), f, log, clone, opts)
		if err != nil {
			t.Fatal(err)
		}
		// Which goes on to read the index of each.
		wait.For(t, "indexes", func() bool { return f.reads.Load() >= segments })
		return c
	}
	c := open()
	if n := read(c); n != 0 {
		t.Errorf("%d reads of the store by a clone", n)
	}
	if err := c.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The process is killed, some bits flip, a new one begins.
	d.Close(t.Context())
	files.Kill()
	rng := rand.New(rand.NewPCG(5, 5))
	for range 40 {
		files.Flip("cache-data", rng.Int64N(size*8))
		files.Flip("cache-table", rng.Int64N(8*(4096+100*144)))
	}
	opts.DiskCache = cache()
	c = open()
	defer c.Close(context.Background())
	n := read(c)
	if s := opts.DiskCache.Stats(); n == 0 || s.Damaged == 0 {
		t.Errorf("%d reads of the store after bits flipped, %+v", n, s)
	}
	for range 3 {
		n = read(c)
	}
	if n != 0 {
		t.Errorf("%d reads of the store once the cache is whole again", n)
	}
}

// TestDiskCacheClosed goes on without it.
func TestDiskCacheClosed(t *testing.T) {
	c, err := lsvd.OpenDiskCache(vfssim.New(), 4<<20, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, d, content := remoteDisk(t, 2<<20, lsvd.Options{DiskCache: c})
	c.Close()
	p := make([]byte, len(content))
	if err := d.ReadAt(t.Context(), p, 0); err != nil || !bytes.Equal(p, content) {
		t.Fatal(err)
	}
}

// TestReadBatch makes reads of different kinds together, of a disk in a directory: of single blocks,
// of data in memory, of data in the log, of several frames, of a part of a block, and beyond the
// end. Each read returns the disk's data, or an error of its own.
func TestReadBatch(t *testing.T) {
	const size = 4 << 20
	r := newFixture(t, size)
	r.opts.CacheBytes = 1 << 20
	d := r.open()
	content := make([]byte, size)
	rand.NewChaCha8([32]byte{9}).Read(content)
	write := func(off int64, n int) {
		t.Helper()
		if err := d.WriteAt(t.Context(), content[off:][:n], off, 0); err != nil {
			t.Fatal(err)
		}
	}
	write(0, size)
	if err := d.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	d = r.open()
	content[256<<10]++
	write(256<<10, 4096)
	for range 5 { // frames at first, blocks when that does not pay
		perm := rand.Perm(size / 4096)
		for len(perm) > 0 {
			now := perm[:min(len(perm), 20)]
			perm = perm[len(now):]
			var reads []lsvd.Read
			for _, i := range now {
				reads = append(reads, lsvd.Read{P: make([]byte, 4096), Off: int64(i) * 4096, Completion: make(waiter, 1)})
			}
			reads = append(reads, lsvd.Read{P: make([]byte, 8192), Off: 3<<20 - 4096, Completion: make(waiter, 1)},
				lsvd.Read{P: make([]byte, 100), Off: 256<<10 + 50, Completion: make(waiter, 1)},
				lsvd.Read{P: make([]byte, 8192), Off: size - 4096, Completion: make(waiter, 1)})
			d.ReadBatch(t.Context(), reads)
			for i, r := range reads {
				err := <-r.Completion.(waiter)
				if beyond := i == len(reads)-1; (err != nil) != beyond || !beyond && !bytes.Equal(r.P, content[r.Off:][:len(r.P)]) {
					t.Fatalf("%d+%d: %v, or it differs", r.Off, len(r.P), err)
				}
			}
		}
	}
	s := d.Stats()
	if s.CacheHits == 0 || s.CacheMisses == 0 || s.CacheBytes > r.opts.CacheBytes {
		t.Errorf("%+v", s)
	}
	if err := d.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := readBatch(d, make([]byte, 8192), 0); err == nil {
		t.Error("read after Close")
	}
}

// TestLocalStoreIsReadByBlock: from a directory, blocks are read one by one once their frame is
// known, and damage is told.
func TestLocalStoreIsReadByBlock(t *testing.T) {
	const size = 4 << 20
	r := newFixture(t, size)
	r.opts.CacheBytes = 1
	d := r.open()
	content := make([]byte, size)
	rand.NewChaCha8([32]byte{8}).Read(content)
	if err := d.WriteAt(t.Context(), content, 0, 0); err != nil {
		t.Fatal(err)
	}
	if err := d.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	p := make([]byte, 4096)
	read := func() int64 {
		t.Helper()
		before := d.Stats().StoreReadBytes
		for off := int64(0); off < size; off += 4096 {
			if err := d.ReadAt(t.Context(), p, off); err != nil || !bytes.Equal(p, content[off:off+4096]) {
				t.Fatalf("read at %d: %v", off, err)
			}
		}
		return d.Stats().StoreReadBytes - before
	}
	read()
	// Without memory for indexes and sums all is read each time; with some, blocks.
	d.Close(t.Context())
	r.opts.CacheBytes = 400 << 10
	d = r.open()
	if n := read(); n > 3*size {
		t.Errorf("%d bytes read for %d", n, size)
	}
	if n := read(); n > 3*size {
		t.Errorf("%d bytes read for %d", n, size)
	}
	var segments []string
	for i, err := range r.st.List(t.Context(), "objects/") {
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(i.Key, "/data/") {
			segments = append(segments, i.Key)
		}
	}
	// A bit flips below: blocks of the frame fail, none is served.
	b, _, err := r.st.Get(t.Context(), segments[0])
	if err != nil {
		t.Fatal(err)
	}
	b[300_000] ^= 4
	if err := r.st.Delete(t.Context(), segments[0]); err != nil {
		t.Fatal(err)
	}
	if _, err := r.st.Create(t.Context(), segments[0], b); err != nil {
		t.Fatal(err)
	}
	failed := 0
	for off := int64(0); off < size; off += 4096 {
		err := d.ReadAt(t.Context(), p, off)
		if errs.Is(err, errs.Corrupt) {
			failed++
		} else if err != nil || !bytes.Equal(p, content[off:off+4096]) {
			t.Fatalf("read at %d: %v", off, err)
		}
		first, other := make(waiter, 1), make(waiter, 1)
		d.ReadBatch(t.Context(), []lsvd.Read{{P: p, Off: off, Completion: first}, {P: make([]byte, 4096), Off: size - 4096 - off, Completion: other}})
		again := <-first
		<-other
		switch {
		case errs.Is(err, errs.Corrupt) && !errs.Is(again, errs.Corrupt):
			t.Errorf("at %d, which is damaged, a read of a batch: %v", off, again)
		case err == nil && (again != nil || !bytes.Equal(p, content[off:off+4096])):
			t.Errorf("at %d, a read of a batch: %v", off, again)
		}
	}
	if failed < 1 || failed > 16 {
		t.Errorf("%d blocks fail after one bit flipped", failed)
	}
	dir := r.st.(*dirstore.Store)
	if err := dir.ReadObject(t.Context(), segments[0], p, 1<<30); err == nil {
		t.Error("read after the end of an object")
	}
}
