package lsvd_test

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/vfs"
	"miren.dev/runtime/lsvd/vfs/vfssim"
)

// BenchmarkBoot reads what a machine reads first from a new clone, one after
// the other, 200 pieces of 4 to 64 KiB scattered over 256 MiB, from a store
// that takes 20 ms, with and without a boot list.
func BenchmarkBoot(b *testing.B) {
	const size = 256 << 20
	ctx := context.Background()
	remote := newRemote()
	rng, buf := rand.New(rand.NewPCG(1, 2)), make([]byte, 1<<20)
	type read struct{ off, n int64 }
	var reads []read
	for range 200 {
		n := int64(4<<10) << rng.IntN(5)
		reads = append(reads, read{rng.Int64N((size-n)/4096) * 4096, n})
	}
	id, fs := lsvd.NewID(), vfssim.New()
	if err := lsvd.Create(ctx, remote, id, size, nil); err != nil {
		b.Fatal(err)
	}
	open := func(id lsvd.ID, fs vfs.FS) *lsvd.Device {
		d, _, err := lsvd.Open(ctx, remote, fs, id, lsvd.Options{})
		if err != nil {
			b.Fatal(err)
		}
		return d
	}
	check := func(err error) {
		if err != nil {
			b.Fatal(err)
		}
	}
	boot := func(d *lsvd.Device) {
		for _, r := range reads {
			check(d.ReadAt(ctx, buf[:r.n], r.off))
		}
	}
	d := open(id, fs)
	content := rand.NewChaCha8([32]byte{1})
	for off := int64(0); off < size; off += 1 << 20 {
		content.Read(buf)
		check(d.WriteAt(ctx, buf, off, 0))
	}
	check(d.Snapshot(ctx, "without"))
	check(d.Close(ctx))
	d = open(id, fs)
	boot(d)
	check(d.Snapshot(ctx, "with"))
	check(d.Close(ctx))
	for _, snapshot := range []string{"without", "with"} {
		b.Run(snapshot+"-list", func(b *testing.B) {
			for range b.N {
				b.StopTimer()
				clone := lsvd.NewID()
				check(lsvd.Clone(ctx, remote, id, snapshot, clone, nil))
				remote.delay.Store(int64(20 * time.Millisecond))
				d := open(clone, vfssim.New())
				b.StartTimer()
				boot(d)
				b.StopTimer()
				remote.delay.Store(0)
				check(d.Close(ctx))
				b.StartTimer()
			}
		})
	}
}
