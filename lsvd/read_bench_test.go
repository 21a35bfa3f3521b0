package lsvd_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/store"
	dirstore "miren.dev/runtime/lsvd/store/dir"
	"miren.dev/runtime/lsvd/store/storesim"
	"miren.dev/runtime/lsvd/vfs"
	"miren.dev/runtime/lsvd/vfs/vfssim"
)

// benchDisk is a disk of size bytes of incompressible or compressible data, all
// in a directory store; remote hides that the store is local.
func benchDisk(b *testing.B, size int64, compressible, remote bool, opts lsvd.Options) *lsvd.Device {
	b.Helper()
	ctx, dir := context.Background(), b.TempDir()
	local, err := dirstore.Open(filepath.Join(dir, "store"))
	if err != nil {
		b.Fatal(err)
	}
	var st store.Store = local
	if remote {
		st = &storesim.Fault{Store: local}
	}
	fs, err := vfs.OpenDir(filepath.Join(dir, "log"))
	if err != nil {
		b.Fatal(err)
	}
	id := lsvd.NewID()
	if err := lsvd.Create(ctx, st, id, size, nil); err != nil {
		b.Fatal(err)
	}
	d, _, err := lsvd.Open(ctx, st, fs, id, opts)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { d.Close(ctx) })
	buf, rng := make([]byte, 1<<20), rand.NewChaCha8([32]byte{1})
	for off := int64(0); off < size; off += 1 << 20 {
		rng.Read(buf)
		if compressible {
			for i := 512; i < len(buf); i++ { // each 512 bytes are there eight times
				if i%4096 >= 512 {
					buf[i] = buf[i-512]
				}
			}
		}
		if err := d.WriteAt(ctx, buf, off, 0); err != nil {
			b.Fatal(err)
		}
	}
	if err := d.Drain(ctx); err != nil {
		b.Fatal(err)
	}
	return d
}

// benchReads reads pieces of n bytes, at random or one after the other, from
// depth goroutines.
func benchReads(b *testing.B, depth int, size int64, n int, random bool, read func(p []byte, off int64) error) {
	b.Helper()
	b.SetBytes(int64(n))
	b.ReportAllocs()
	b.ResetTimer()
	var wg sync.WaitGroup
	for g := range depth {
		wg.Go(func() {
			p, rng := make([]byte, n), rand.New(rand.NewPCG(uint64(g), 1))
			slots := size / int64(n)
			for i := int64(g); i < int64(b.N); i += int64(depth) {
				at := i % slots
				if random {
					at = rng.Int64N(slots)
				}
				if err := read(p, at*int64(n)); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func BenchmarkRead(b *testing.B) {
	const size = 128 << 20
	work := []struct {
		name   string
		depth  int
		n      int
		random bool
	}{{"4K-random-QD1", 1, 4 << 10, true}, {"4K-random-QD32", 32, 4 << 10, true}, {"1M-sequential-QD1", 1, 1 << 20, false}, {"1M-sequential-QD8", 8, 1 << 20, false}}
	all := func(b *testing.B, warm bool, read func(p []byte, off int64) error) {
		for _, w := range work {
			b.Run(w.name, func(b *testing.B) {
				if warm {
					p := make([]byte, 4<<10)
					for off := int64(0); off < size; off += 4 << 10 {
						if err := read(p, off); err != nil {
							b.Fatal(err)
						}
					}
				}
				benchReads(b, w.depth, size, w.n, w.random, read)
			})
		}
	}
	b.Run("raw-file", func(b *testing.B) {
		f, err := os.Create(filepath.Join(b.TempDir(), "raw"))
		if err != nil {
			b.Fatal(err)
		}
		defer f.Close()
		buf := make([]byte, size)
		rand.NewChaCha8([32]byte{1}).Read(buf)
		if _, err := f.Write(buf); err != nil {
			b.Fatal(err)
		}
		all(b, false, func(p []byte, off int64) error { _, err := f.ReadAt(p, off); return err })
	})
	for _, c := range []struct {
		name                 string
		compressible, remote bool
		warm, disk           bool
		cache                int64
	}{
		{"memory", false, false, true, false, 256 << 20},
		{"directory-plain", false, false, false, false, 16 << 20},
		{"directory-compressed", true, false, false, false, 16 << 20},
		{"disk-cache", true, true, false, true, 16 << 20},
		{"remote", true, true, false, false, 16 << 20},
	} {
		b.Run(c.name, func(b *testing.B) {
			opts := lsvd.Options{CacheBytes: c.cache, Compression: lsvd.CompressAll}
			if c.disk {
				fs, err := vfs.OpenDir(filepath.Join(b.TempDir(), "cache"))
				if err != nil {
					b.Fatal(err)
				}
				if opts.DiskCache, err = lsvd.OpenDiskCache(fs, 2*size, nil); err != nil {
					b.Fatal(err)
				}
				defer opts.DiskCache.Close()
			}
			d := benchDisk(b, size, c.compressible, c.remote, opts)
			all(b, c.warm, func(p []byte, off int64) error { return d.ReadAt(context.Background(), p, off) })
			d.Close(context.Background())
		})
	}
}

// BenchmarkSnapshot snapshots and clones a volume of 100 GiB with the metadata
// of 10 GiB of scattered data: 640 segments, 5,120 leaves of the map, all with
// several runs. Between snapshots a MiB is written at random.
func BenchmarkSnapshot(b *testing.B) {
	const (
		size  = 100 << 30
		leaf  = 2 << 20
		used  = 10 << 30 / leaf
		spots = 8
	)
	ctx, dir := context.Background(), b.TempDir()
	st, err := dirstore.Open(filepath.Join(dir, "store"))
	if err != nil {
		b.Fatal(err)
	}
	fs, err := vfs.OpenDir(filepath.Join(dir, "log"))
	if err != nil {
		b.Fatal(err)
	}
	id := lsvd.NewID()
	if err := lsvd.Create(ctx, st, id, size, nil); err != nil {
		b.Fatal(err)
	}
	d, _, err := lsvd.Open(ctx, st, fs, id, lsvd.Options{CutBytes: 256 << 10, GCRatio: 100})
	if err != nil {
		b.Fatal(err)
	}
	defer d.Close(ctx)
	rng, p := rand.New(rand.NewPCG(1, 1)), make([]byte, lsvd.BlockSize)
	write := func(leaf0 int64) {
		rng := rng.Int64N(leaf / lsvd.BlockSize)
		p[0]++
		if err := d.WriteAt(ctx, p, leaf0*leaf*10+rng*lsvd.BlockSize, 0); err != nil {
			b.Fatal(err)
		}
	}
	for i := range int64(used) {
		for range spots {
			write(i)
		}
	}
	if err := d.Snapshot(ctx, "first"); err != nil {
		b.Fatal(err)
	}
	b.Logf("%+v", d.Stats())
	b.Run("snapshot", func(b *testing.B) {
		for i := range b.N {
			b.StopTimer()
			for range 256 {
				write(rng.Int64N(used))
			}
			b.StartTimer()
			if err := d.Snapshot(ctx, fmt.Sprintf("s%d-%d", b.N, i)); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("clone", func(b *testing.B) {
		for range b.N {
			if err := lsvd.Clone(ctx, st, id, "first", lsvd.NewID(), nil); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("clone-open-read", func(b *testing.B) {
		for range b.N {
			clone := lsvd.NewID()
			if err := lsvd.Clone(ctx, st, id, "first", clone, nil); err != nil {
				b.Fatal(err)
			}
			c, _, err := lsvd.Open(ctx, st, vfssim.New(), clone, lsvd.Options{})
			if err != nil {
				b.Fatal(err)
			}
			if err := c.ReadAt(ctx, p, 0); err != nil {
				b.Fatal(err)
			}
			b.StopTimer()
			c.Close(ctx)
			b.StartTimer()
		}
	})
}
