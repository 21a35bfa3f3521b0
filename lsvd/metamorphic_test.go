package lsvd_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/lsvd/store/dir"
	"miren.dev/runtime/lsvd/store/storesim"
	"miren.dev/runtime/lsvd/vfs"
	"miren.dev/runtime/lsvd/vfs/vfssim"
)

const metaSize = 6 << 20

// metaDisk is a disk in one configuration, among others that do the same.
type metaDisk struct {
	name  string
	st    store.Store
	fs    *vfssim.Sim
	id    lsvd.ID
	opts  lsvd.Options
	clean bool // restarts close it first
	d     *lsvd.Device
}

func (m *metaDisk) open(t *testing.T) {
	t.Helper()
	d, rec, err := lsvd.Open(t.Context(), m.st, m.fs, m.id, m.opts)
	if err != nil {
		t.Fatalf("%s: %v", m.name, err)
	}
	if rec.LostLog || rec.LostAfter {
		t.Fatalf("%s: %+v", m.name, rec)
	}
	m.d = d
}

// metaDisks are configurations between which nobody may tell a difference.
func metaDisks(t *testing.T, rng *rand.Rand) []*metaDisk {
	shared, err := vfs.OpenDir(filepath.Join(t.TempDir(), "cache"))
	if err != nil {
		t.Fatal(err)
	}
	// Smaller than the disks that share it, so that it evicts.
	disk, err := lsvd.OpenDiskCache(shared, 3<<20, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { disk.Close() })
	key := bytes.Repeat([]byte{7}, 32)
	small := lsvd.Options{LogFile: 256 << 10, CutBytes: 64 << 10, MaxUnsent: 2 << 20, CutAge: 20 * time.Millisecond, Checkpoint: 2, GCRatio: 1.1, CacheBytes: 1 << 20}
	with := func(o lsvd.Options, change func(*lsvd.Options)) lsvd.Options {
		change(&o)
		return o
	}
	memory := lsvd.NewMemory(1)
	all := []*metaDisk{
		{name: "defaults"},
		{name: "small", opts: small, clean: true},
		{name: "no cache", opts: with(small, func(o *lsvd.Options) { o.CacheBytes = 1 })},
		{name: "tiny cache", opts: with(small, func(o *lsvd.Options) { o.CacheBytes = 150 << 10 })},
		{name: "disk cache", opts: with(small, func(o *lsvd.Options) { o.DiskCache = disk }), clean: true},
		{name: "disk cache alone, encrypted", opts: with(small, func(o *lsvd.Options) { o.DiskCache, o.CacheBytes, o.Key = disk, 1, key })},
		{name: "remote flush, encrypted", opts: with(small, func(o *lsvd.Options) { o.RemoteFlush, o.Key = true, key })},
		{name: "tiny cuts, all collected, little map", opts: with(small, func(o *lsvd.Options) { o.CutBytes, o.Checkpoint, o.GCRatio, o.MapBytes = 8<<10, 1, 1, 1 })},
		{name: "little log space", opts: with(small, func(o *lsvd.Options) { o.LogSpace = lsvd.NewLogSpace(1) })},
		{name: "shared memory", opts: with(small, func(o *lsvd.Options) { o.Memory = memory })},
		{name: "directory, shared memory", opts: with(small, func(o *lsvd.Options) { o.Memory = memory })},
		{name: "directory", opts: with(small, func(o *lsvd.Options) { o.CacheBytes = 300 << 10 })},
		{name: "directory, compressed", opts: with(small, func(o *lsvd.Options) { o.CacheBytes, o.Compression = 300<<10, lsvd.CompressAll })},
		{name: "directory, encrypted, disk cache", opts: with(small, func(o *lsvd.Options) { o.DiskCache, o.Key, o.CacheBytes = disk, key, 200<<10 }), clean: true},
	}
	for _, m := range all {
		m.fs, m.st = vfssim.New(), &storesim.Mem{}
		random := rand.NewChaCha8([32]byte{byte(rng.Uint32()), byte(rng.Uint32())})
		random.Read(m.id[:])
		if bytes.HasPrefix([]byte(m.name), []byte("directory")) {
			if m.st, err = dir.Open(t.TempDir()); err != nil {
				t.Fatal(err)
			}
		}
		if err := lsvd.Create(t.Context(), m.st, m.id, metaSize, m.opts.Key); err != nil {
			t.Fatal(err)
		}
		m.open(t)
		t.Cleanup(func() {
			m.d.Close(context.Background())
			m.d, m.st = nil, nil // what testing remembers of many seeds would keep the files of directories open
		})
	}
	return all
}

// metaRun does the same to all disks, and compares them with a model after
// every step.
func metaRun(t *testing.T, seed uint64, steps int) {
	rng := rand.New(rand.NewPCG(seed, 21))
	disks := metaDisks(t, rng)
	model := make([]byte, metaSize)
	got, stale := make([]byte, metaSize), bytes.Repeat([]byte{0xee}, metaSize) // which must not shine through
	ctx := t.Context()
	place := func(most int) (off, n int) {
		off = rng.IntN(metaSize)
		if rng.IntN(3) > 0 { // where it is hot
			off %= metaSize / 8
		}
		n = 1 + rng.IntN(min(most, metaSize-off))
		if rng.IntN(4) > 0 {
			off = off / lsvd.BlockSize * lsvd.BlockSize
			n = min((n+lsvd.BlockSize-1)/lsvd.BlockSize*lsvd.BlockSize, metaSize-off)
		}
		return off, n
	}
	random := rand.NewChaCha8([32]byte{byte(seed), 3})
	for step := range steps {
		var what string
		var do func(m *metaDisk) error
		off, n := place(400 << 10)
		compare := func(m *metaDisk, d *lsvd.Device, off, n int, want []byte) error {
			p := got[:n]
			copy(p, stale)
			if err := d.ReadAt(ctx, p, int64(off)); err != nil {
				return err
			}
			for i := 0; i < n; i += lsvd.BlockSize {
				e := min(i+lsvd.BlockSize, n)
				if !bytes.Equal(p[i:e], want[off+i:off+e]) {
					return fmt.Errorf("content differs at %d", off+i)
				}
			}
			copy(p, stale)
			if d.ReadCached(p, int64(off)) && !bytes.Equal(p, want[off:off+n]) {
				return fmt.Errorf("content in memory differs at %d+%d", off, n)
			}
			n = min(n, 16<<10)
			copy(p, stale)
			if err := readBatch(d, p[:n], int64(off)); err != nil || !bytes.Equal(p[:n], want[off:off+n]) {
				return fmt.Errorf("content of a read of a batch differs at %d+%d: %w", off, n, err)
			}
			return nil
		}
		switch r := rng.IntN(100); {
		case r < 40:
			what = "write"
			p := model[off : off+n]
			random.Read(p)
			if rng.IntN(2) == 0 {
				for i := 0; i < n; i += 512 { // compresses
					copy(p[min(i+16, n):min(i+512, n)], stale)
				}
			}
			flags := lsvd.Flags(rng.IntN(12) / 11)
			do = func(m *metaDisk) error { return m.d.WriteAt(ctx, p, int64(off), flags) }
		case r < 46:
			what = "zero"
			clear(model[off : off+n])
			do = func(m *metaDisk) error { return m.d.Zero(ctx, int64(off), int64(n), 0) }
		case r < 52:
			what = "trim"
			if lo, hi := (off+lsvd.BlockSize-1)/lsvd.BlockSize*lsvd.BlockSize, (off+n)/lsvd.BlockSize*lsvd.BlockSize; lo < hi {
				clear(model[lo:hi])
			}
			do = func(m *metaDisk) error { return m.d.Trim(ctx, int64(off), int64(n), 0) }
		case r < 72:
			what = "nothing"
			do = func(m *metaDisk) error { return nil }
		case r < 76:
			what = "flush"
			do = func(m *metaDisk) error { return m.d.Flush(ctx) }
		case r < 80:
			what = "drain"
			do = func(m *metaDisk) error { return m.d.Drain(ctx) }
		case r < 84:
			what = "gc"
			do = func(m *metaDisk) error { _, err := m.d.GC(ctx, 1.05); return err }
		case r < 90:
			what = "restart"
			do = func(m *metaDisk) error {
				if m.clean {
					if err := m.d.Close(ctx); err != nil {
						return err
					}
				} else { // as by kill -9: what was acknowledged is in the log
					m.fs.Kill()
					gone, cancel := context.WithCancel(ctx)
					cancel()
					m.d.Close(gone)
				}
				m.open(t)
				return nil
			}
		case r < 94:
			what = "clone"
			name := "s" + strconv.Itoa(step)
			do = func(m *metaDisk) error {
				if err := m.d.Snapshot(ctx, name); err != nil {
					return err
				}
				id := lsvd.NewID()
				if err := lsvd.Clone(ctx, m.st, m.id, name, id, m.opts.Key); err != nil {
					return err
				}
				c, _, err := lsvd.Open(ctx, m.st, vfssim.New(), id, m.opts)
				if err != nil {
					return err
				}
				err = compare(m, c, 0, metaSize, model)
				if cerr := c.Close(ctx); err == nil {
					err = cerr
				}
				if err == nil {
					err = lsvd.Delete(ctx, m.st, id)
				}
				if err == nil {
					err = lsvd.DeleteSnapshot(ctx, m.st, m.id, name)
				}
				if err == nil {
					_, _, err = lsvd.Sweep(ctx, m.st)
				}
				return err
			}
		default:
			what = "status"
			do = func(m *metaDisk) error {
				next := int64(off)
				err := m.d.Status(int64(off), int64(n), func(off, n int64, hole bool) bool {
					if off != next || hole && !bytes.Equal(model[off:off+n], make([]byte, n)) {
						t.Errorf("seed %d, step %d, %s: piece %d+%d, hole %v, after %d", seed, step, m.name, off, n, hole, next)
					}
					next = off + n
					return true
				})
				if err == nil && next != int64(off+n) {
					err = fmt.Errorf("status ends at %d", next)
				}
				return err
			}
		}
		at, k := place(1 << 20)
		for _, m := range disks {
			if err := do(m); err != nil {
				t.Fatalf("seed %d, step %d, %s: %s %d+%d: %v", seed, step, m.name, what, off, n, err)
			}
			if err := compare(m, m.d, at, k, model); err != nil {
				t.Fatalf("seed %d, step %d, %s: read %d+%d after %s %d+%d: %v", seed, step, m.name, at, k, what, off, n, err)
			}
			if s := m.d.Stats(); m.opts.CacheBytes > 0 && s.CacheBytes > m.opts.CacheBytes {
				t.Fatalf("seed %d, step %d, %s: %d bytes in a cache of %d", seed, step, m.name, s.CacheBytes, m.opts.CacheBytes)
			}
		}
	}
	for _, m := range disks {
		p := make([]byte, metaSize)
		if err := m.d.ReadAt(ctx, p, 0); err != nil || !bytes.Equal(p, model) {
			t.Errorf("seed %d, %s: differs at the end: %v", seed, m.name, err)
		}
	}
}

// TestMetamorphic does the same random operations in all configurations. A
// failure prints its seed; see Seeds.
func TestMetamorphic(t *testing.T) {
	first, seeds := lsvd.Seeds(t, 2)
	for seed := first; seed < first+seeds; seed++ {
		t.Run(strconv.Itoa(seed), func(t *testing.T) {
			t.Parallel()
			metaRun(t, uint64(seed), 70)
		})
	}
}
