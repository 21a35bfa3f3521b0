package lsvd_test

import (
	"bytes"
	"math/rand/v2"
	"sync"
	"testing"
)

// TestStreamOverScatteredBlocks: of a disk that was written at random in many
// cuts, a sequential reader with several large reads under way at once wants
// pieces of many frames, each for several reads. It gets the right content, and
// no frame is read from the store much more than once, nor in single blocks,
// whatever random reads came before.
func TestStreamOverScatteredBlocks(t *testing.T) {
	const size, step, depth = 32 << 20, 1 << 20, 8
	r := newFixture(t, size)
	r.opts.CacheBytes, r.opts.CutBytes, r.opts.GCRatio = 24<<20, 1<<20, 100
	d := r.open()
	content := make([]byte, size)
	rand.NewChaCha8([32]byte{3}).Read(content)
	rng := rand.New(rand.NewPCG(3, 4))
	for _, block := range rng.Perm(size / 4096) {
		off := int64(block) * 4096
		if err := d.WriteAt(t.Context(), content[off:off+4096], off, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	p := make([]byte, 4096)
	for range 1000 {
		if off := rng.Int64N(size/4096) * 4096; d.ReadAt(t.Context(), p, off) != nil || !bytes.Equal(p, content[off:off+4096]) {
			t.Fatalf("read at %d", off)
		}
	}
	before := d.Stats()
	next := make(chan int64)
	var wg sync.WaitGroup
	for range depth {
		wg.Go(func() {
			p := make([]byte, step)
			for off := range next {
				if err := d.ReadAt(t.Context(), p, off); err != nil || !bytes.Equal(p, content[off:off+step]) {
					t.Errorf("read at %d: %v", off, err)
				}
			}
		})
	}
	for off := int64(0); off < size; off += step {
		next <- off
	}
	close(next)
	wg.Wait()
	after := d.Stats()
	if n := after.StoreReadBytes - before.StoreReadBytes; n > size*3/2 {
		t.Errorf("%d bytes read for %d", n, size)
	}
	if n := after.StoreReads - before.StoreReads; n > size>>16*2+256 {
		t.Errorf("%d operations of the store for %d frames", n, size>>16)
	}
}
