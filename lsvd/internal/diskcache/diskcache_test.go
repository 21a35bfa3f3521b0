package diskcache

import (
	"bytes"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/lsvd/internal/name"
	"miren.dev/runtime/lsvd/vfs"
	"miren.dev/runtime/lsvd/vfs/vfssim"
	"miren.dev/runtime/pkg/errs"
)

func key(num uint64, frame uint32) Key {
	return Key{Ref: name.Ref{Volume: name.Volume{1}, Kind: name.Data, Epoch: 1, Num: num}, Size: 10, First: num, Last: num, Frame: frame}
}

// content is what the tests put under a key.
func content(k Key) []byte {
	b := make([]byte, SlotSize)
	rng := rand.New(rand.NewPCG(k.Ref.Num, uint64(k.Frame)))
	if k.Frame%4 == 3 {
		b = b[:(1+rng.IntN(blocks))*block]
	}
	for i := 0; i < len(b); i += 64 {
		b[i] = byte(rng.Uint32())
	}
	return b
}

func open(t *testing.T, fs vfs.FS, slots int64) *Cache {
	t.Helper()
	c, err := Open(fs, slots*(SlotSize+recordSize), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// verify reads every frame of n segments of 8 and returns how many are there;
// those must be right.
func verify(t *testing.T, c *Cache, n uint64) (have int) {
	t.Helper()
	for num := range n {
		for f := range uint32(8) {
			k := key(num, f)
			want := content(k)
			got := make([]byte, len(want))
			if c.Get(k, 0, got) {
				have++
				if !bytes.Equal(got, want) {
					t.Fatalf("segment %d, frame %d: wrong data was served", num, f)
				}
			}
		}
	}
	return have
}

func fill(c *Cache, n uint64) {
	for num := range n {
		for f := range uint32(8) {
			c.Put(key(num, f), content(key(num, f)), f%2 == 0)
		}
	}
}

func TestWarmAfterRestart(t *testing.T) {
	fs := vfssim.New()
	c := open(t, fs, 100)
	fill(c, 10)
	if n := verify(t, c, 10); n != 80 {
		t.Fatalf("%d of 80 frames are there", n)
	}
	if _, err := Open(fs, 1<<20, slog.Default()); !errs.Is(err, errs.Conflict) {
		t.Errorf("second owner: %v", err)
	}
	fs.Kill()
	c = open(t, fs, 200) // larger
	if n := verify(t, c, 10); n != 80 {
		t.Fatalf("after a kill %d of 80 frames are there", n)
	}
	p := make([]byte, block)
	if !c.Get(key(3, 0), 5*block, p) || !bytes.Equal(p, content(key(3, 0))[5*block:6*block]) {
		t.Error("one block of a frame")
	}
	if c.Get(key(3, 3), SlotSize-block, p) && len(content(key(3, 3))) < SlotSize {
		t.Error("a block after the end of a frame")
	}
	other := key(3, 0)
	other.Last++
	if c.Get(other, 0, p) {
		t.Error("served for a segment of another history")
	}
	fs.Kill()
	if n := verify(t, open(t, fs, 50), 10); n != 0 {
		t.Errorf("%d frames of a larger cache were kept", n)
	}
}

func TestCacheIsBounded(t *testing.T) {
	dir := t.TempDir()
	fs, err := vfs.OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	c := open(t, fs, 40)
	for range 3 {
		fill(c, 20)
		if n := verify(t, c, 20); n < 30 || n > 40 {
			t.Errorf("%d frames in a cache of 40", n)
		}
	}
	var size int64
	for _, n := range []string{dataName, tableName} {
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(dir, n), &st); err != nil {
			t.Fatal(err)
		}
		size += st.Size
	}
	if s := c.Stats(); size > s.Limit+headerSize || s.Bytes > s.Limit {
		t.Errorf("%d bytes in files, %+v", size, s)
	}
}

func TestPowerLoss(t *testing.T) {
	for seed := range uint64(30) {
		fs := vfssim.New()
		rng := rand.New(rand.NewPCG(seed, 1))
		for range 3 {
			c := open(t, fs, 40)
			for range 60 {
				k := key(rng.Uint64N(12), uint32(rng.IntN(8)))
				c.Put(k, content(k), rng.IntN(2) == 0)
			}
			verify(t, c, 12)
			fs.PowerLoss(rng)
		}
	}
}

// TestHeaderCutOff: a power loss may leave a table that ends within its header. The cache
// takes frames as if it were empty.
func TestHeaderCutOff(t *testing.T) {
	fs := vfssim.New()
	table, err := fs.Open(tableName, true)
	if err == nil {
		_, err = table.WriteAt(encodeHeader(16)[:512], 0)
	}
	if err == nil {
		err = table.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	c := open(t, fs, 16)
	fill(c, 2)
	if n := verify(t, c, 2); n != 16 {
		t.Errorf("of 16 frames, the cache has %d", n)
	}
}

func TestFlippedBit(t *testing.T) {
	damaged := 0
	for seed := range uint64(120) {
		fs := vfssim.New()
		c := open(t, fs, 20)
		fill(c, 2)
		rng := rand.New(rand.NewPCG(seed, 2))
		if seed%3 == 0 {
			fs.Flip(tableName, rng.Int64N((headerSize+16*recordSize)*8))
		} else {
			fs.Flip(dataName, rng.Int64N(16*SlotSize*8))
		}
		live := verify(t, c, 2)
		if again := verify(t, c, 2); again != live {
			t.Fatalf("seed %d: a damaged frame came back", seed)
		}
		fs.Kill()
		if n := verify(t, open(t, fs, 20), 2); n < 16 {
			damaged++
		}
	}
	if damaged < 60 {
		t.Errorf("only %d of 120 flipped bits were noticed", damaged)
	}
}

// broken is a directory whose disk fails on demand.
type broken struct {
	vfs.FS
	err error
}

type brokenFile struct {
	vfs.File
	fs *broken
}

func (b *broken) Open(name string, create bool) (vfs.File, error) {
	f, err := b.FS.Open(name, create)
	return &brokenFile{f, b}, err
}

func (f *brokenFile) WriteAt(p []byte, off int64) (int, error) {
	if f.fs.err != nil {
		n, _ := f.File.WriteAt(p[:len(p)/2], off) // what a full disk does
		return n, f.fs.err
	}
	return f.File.WriteAt(p, off)
}

func (f *brokenFile) ReadAt(p []byte, off int64) (int, error) {
	if f.fs.err == unix.EIO {
		return 0, f.fs.err
	}
	return f.File.ReadAt(p, off)
}

func TestFailingDisk(t *testing.T) {
	for _, e := range []error{unix.ENOSPC, unix.EIO} {
		fs := &broken{FS: vfssim.New()}
		var log bytes.Buffer
		c, err := Open(fs, 40*(SlotSize+recordSize), slog.New(slog.NewTextHandler(&log, nil)))
		if err != nil {
			t.Fatal(err)
		}
		fill(c, 2)
		fs.err = e
		for range 4 {
			fill(c, 10)
			verify(t, c, 10)
		}
		if n := bytes.Count(log.Bytes(), []byte("disk cache fails")); n != 1 || c.Stats().Failures == 0 {
			t.Errorf("%v: %d warnings, %+v", e, n, c.Stats())
		}
		fs.err = nil
		for range 10 {
			fill(c, 5)
		}
		if n := verify(t, c, 5); n != 40 {
			t.Errorf("%v: %d frames after the disk got well", e, n)
		}
		c.Close()
	}
}

func TestConcurrentReadersGetTheirFrame(t *testing.T) {
	fs, err := vfs.OpenDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	c := open(t, fs, 16) // smaller than what is used, so that slots change hands under readers
	var wg sync.WaitGroup
	for g := range uint64(6) {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(g, 3))
			for range 400 {
				k := key(rng.Uint64N(5), uint32(rng.IntN(8)))
				want := content(k)
				if rng.IntN(2) == 0 {
					c.Put(k, want, rng.IntN(2) == 0)
					continue
				}
				got := make([]byte, len(want))
				if c.Get(k, 0, got) && !bytes.Equal(got, want) {
					t.Errorf("%v: wrong data", k)
					return
				}
			}
		})
	}
	wg.Wait()
	if s := c.Stats(); s.Damaged > 0 {
		t.Errorf("what changed hands was taken for damage: %+v", s)
	}
}

func FuzzRecord(f *testing.F) {
	s := slot{size: SlotSize}
	f.Add(encodeRecord(key(3, 1), 7, &s), int32(7))
	f.Fuzz(func(t *testing.T, b []byte, id int32) {
		if len(b) != recordSize {
			return
		}
		k, s, ok := decodeRecord(b, id)
		if ok && s.size > SlotSize {
			t.Errorf("%v has %d bytes", k, s.size)
		}
		decodeHeader(b)
	})
}

func ExampleCache_nil() {
	var c *Cache // disks without a disk cache
	c.Put(Key{}, make([]byte, block), true)
	fmt.Println(c.Get(Key{}, 0, make([]byte, block)), c.Has(Key{}), c.Close())
	// Output: false false <nil>
}
