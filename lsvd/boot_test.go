package lsvd_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/inspect"
	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/lsvd/vfs/vfssim"
	"miren.dev/runtime/testsupport/wait"
)

// bootReads are what a machine would read first, scattered.
func bootReads(size int64, n int) (offs []int64) {
	rng := rand.New(rand.NewPCG(4, 4))
	for range n {
		offs = append(offs, rng.Int64N(size/4096)*4096)
	}
	return offs
}

// booted is a remote store with a volume that has a boot list and the snapshot s.
func booted(t *testing.T, size int64, opts lsvd.Options, offs []int64) (*remote, lsvd.ID, []byte) {
	t.Helper()
	f, d, content := remoteDisk(t, size, opts)
	p := make([]byte, 4096)
	for _, off := range offs {
		if err := d.ReadAt(t.Context(), p, off); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Snapshot(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	return f, d.ID(), content
}

func cloneOf(t *testing.T, st store.Store, from lsvd.ID, opts lsvd.Options) *lsvd.Device {
	t.Helper()
	id := lsvd.NewID()
	if err := lsvd.Clone(t.Context(), st, from, "s", id, nil); err != nil {
		t.Fatal(err)
	}
	d, _, err := lsvd.Open(t.Context(), st, vfssim.New(), id, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close(t.Context()) })
	return d
}

// lists are the keys of the boot lists in a store.
func lists(t *testing.T, st store.Store) (keys []string) {
	t.Helper()
	for i, err := range st.List(t.Context(), "objects/") {
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(i.Key, "/boot/") {
			keys = append(keys, i.Key)
		}
	}
	return keys
}

// TestBootList: what was read before a snapshot is in memory of a clone soon
// after it was opened, and reading it takes nothing from the store. Of the
// volume itself too.
func TestBootList(t *testing.T) { synctest.Test(t, testBootList) }

func testBootList(t *testing.T) {
	opts := lsvd.Options{Compression: lsvd.CompressNone, CutBytes: 1 << 20}
	offs := bootReads(64<<20, 200)
	f, id, content := booted(t, 64<<20, opts, offs)
	own, _, err := lsvd.Open(t.Context(), f, vfssim.New(), id, opts)
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close(t.Context())
	for what, d := range map[string]*lsvd.Device{"clone": cloneOf(t, f, id, opts), "volume": own} {
		time.Sleep(time.Second) // of a simulated clock
		synctest.Wait()
		f.reads.Store(0)
		f.delay.Store(int64(20 * time.Millisecond))
		start := time.Now()
		p := make([]byte, 4096)
		for _, off := range offs {
			if err := d.ReadAt(t.Context(), p, off); err != nil || !bytes.Equal(p, content[off:off+4096]) {
				t.Fatalf("%s: read at %d: %v", what, off, err)
			}
		}
		s := d.Stats()
		if took := time.Since(start); f.reads.Load() > 0 || took > 0 {
			t.Errorf("%s: reading what is in the list took %d reads of the store and %v: %+v", what, f.reads.Load(), took, s)
		}
		if s.ReadAhead == 0 || s.ReadAheadUsed < 100 || s.ReadAhead > s.CacheBytes {
			t.Errorf("%s: %+v", what, s)
		}
	}
}

// TestBootListOfLongUse: after a minute, the list is what was read until then,
// in the place of the one before.
func TestBootListOfLongUse(t *testing.T) { synctest.Test(t, testBootListOfLongUse) }

func testBootListOfLongUse(t *testing.T) {
	opts := lsvd.Options{Compression: lsvd.CompressNone}
	f, id, content := booted(t, 32<<20, opts, []int64{0, 8 << 20})
	before := lists(t, f)
	fs := vfssim.New()
	open := func() *lsvd.Device {
		d, _, err := lsvd.Open(t.Context(), f, fs, id, opts)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	d := open()
	p := make([]byte, 4096)
	read := func(off int64) {
		t.Helper()
		if err := d.ReadAt(t.Context(), p, off); err != nil || !bytes.Equal(p, content[off:off+4096]) {
			t.Fatalf("read at %d: %v", off, err)
		}
	}
	read(3 << 20)
	if err := d.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if now := lists(t, f); len(before) != 1 || len(now) != 1 || now[0] != before[0] {
		t.Errorf("a short use made %v of the lists %v", now, before)
	}
	d = open()
	read(17 << 20)
	time.Sleep(time.Minute)
	read(25 << 20) // too late
	time.Sleep(time.Minute)
	synctest.Wait()
	// The one before is of the snapshot now.
	if now := lists(t, f); len(now) != 2 {
		t.Errorf("lists are %v, were %v", now, before)
	}
	if err := d.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	d = open()
	defer d.Close(t.Context())
	time.Sleep(time.Second)
	synctest.Wait()
	for off, want := range map[int64]int64{17 << 20: 0, 25 << 20: 1} {
		f.reads.Store(0)
		read(off)
		if n := f.reads.Load(); min(n, 1) != want {
			t.Errorf("reading at %d took %d reads of the store", off, n)
		}
	}
}

// TestBootListIsBounded: it does not take more than half of the cache, and not
// more requests at once than it may.
func TestBootListIsBounded(t *testing.T) { synctest.Test(t, testBootListIsBounded) }

func testBootListIsBounded(t *testing.T) {
	const cache = 8 << 20
	opts := lsvd.Options{Compression: lsvd.CompressNone, CacheBytes: cache}
	f, id, _ := booted(t, 64<<20, opts, bootReads(64<<20, 2000))
	f.delay.Store(int64(20 * time.Millisecond))
	f.peak.Store(0)
	d := cloneOf(t, f, id, opts)
	time.Sleep(time.Minute)
	synctest.Wait()
	s := d.Stats()
	if s.ReadAhead > cache/2+2<<20 || s.ReadAhead < cache/4 || s.CacheBytes > cache {
		t.Errorf("%+v", s)
	}
	if n := f.peak.Load(); n > 16+8 { // and the map and indexes
		t.Errorf("%d operations at once", n)
	}
	for _, size := range []int64{1, 1 << 20} {
		opts.CacheBytes = size
		if s := cloneOf(t, f, id, opts).Stats(); s.CacheBytes > size {
			t.Errorf("%d bytes in a cache of %d", s.CacheBytes, size)
		}
	}
}

// TestBootListIsAHint: without the list, and with a damaged or a strange one,
// the disk is as it was, and the log says it.
func TestBootListIsAHint(t *testing.T) {
	offs := bootReads(16<<20, 50)
	f, id, content := booted(t, 16<<20, lsvd.Options{}, offs)
	keys := lists(t, f)
	if len(keys) != 1 {
		t.Fatalf("lists: %v", keys)
	}
	list, _, err := f.Get(t.Context(), keys[0])
	if err != nil {
		t.Fatal(err)
	}
	put := func(b []byte) {
		if err := f.Delete(t.Context(), keys[0]); err != nil {
			t.Fatal(err)
		}
		if b == nil {
			return
		}
		if _, err := f.Create(t.Context(), keys[0], b); err != nil {
			t.Fatal(err)
		}
	}
	rng := rand.New(rand.NewPCG(8, 8))
	cases := map[string][]byte{"missing": nil, "empty": {}, "cut off": list[:len(list)/2], "too long": append(bytes.Clone(list), make([]byte, 64<<10)...)}
	for range 20 {
		bit := rng.IntN(len(list) * 8)
		b := bytes.Clone(list)
		b[bit/8] ^= 1 << (bit % 8)
		cases[fmt.Sprintf("bit %d", bit)] = b
	}
	for what, b := range cases {
		put(b)
		var log lockedBuffer
		d := cloneOf(t, f, id, lsvd.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		got := make([]byte, len(content))
		if err := d.ReadAt(t.Context(), got, 0); err != nil || !bytes.Equal(got, content) {
			t.Fatalf("%s: %v", what, err)
		}
		wait.For(t, "line in the log", func() bool { return strings.Contains(log.String(), "the list of it cannot be used") })
		r, err := inspect.Check(t.Context(), f, d.ID(), nil, true, nil)
		if err != nil || len(r.Damage) != 1 || r.Damage[0].Key != keys[0] || r.Damage[0].Missing != (b == nil) || len(r.Damage[0].Ranges) != 0 {
			t.Errorf("%s: check says %+v, %v", what, r, err)
		}
		if err := d.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		// By now it has a list of its own, or one like the old one.
		if r, err := inspect.Check(t.Context(), f, d.ID(), nil, true, nil); err != nil || !r.OK() {
			t.Errorf("%s: check after the next use says %+v, %v", what, r, err)
		}
	}
	put(list)
	if r, err := inspect.Check(t.Context(), f, id, nil, true, nil); err != nil || !r.OK() {
		t.Errorf("check says %+v, %v", r, err)
	}
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// TestBootListIsDeleted: the list stays as long as a volume, snapshot or clone
// names it, and goes with the last.
func TestBootListIsDeleted(t *testing.T) {
	f, id, _ := booted(t, 4<<20, lsvd.Options{}, bootReads(4<<20, 50))
	sweep := func(want int) {
		t.Helper()
		if _, _, err := lsvd.Sweep(t.Context(), f); err != nil {
			t.Fatal(err)
		}
		if keys := lists(t, f); len(keys) != want {
			t.Fatalf("lists: %v", keys)
		}
	}
	sweep(1)
	c := cloneOf(t, f, id, lsvd.Options{})
	for _, err := range []error{lsvd.DeleteSnapshot(t.Context(), f, id, "s"), lsvd.Delete(t.Context(), f, id)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	sweep(1)
	if err := c.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	sweep(1)
	if err := lsvd.Delete(t.Context(), f, c.ID()); err != nil {
		t.Fatal(err)
	}
	sweep(0)
	for i := range f.List(t.Context(), "") {
		t.Errorf("%s is left", i.Key)
	}
}
