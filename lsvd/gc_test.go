package lsvd

import (
	"math"
	"math/rand/v2"
	"testing"

	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/lsvd/vfs"
)

// TestWriteAmplification overwrites a full disk at random and holds what GC
// costs, at 1.43 times the space of what is live, against the targets.
func TestWriteAmplification(t *testing.T) {
	if testing.Short() {
		t.Skip("long")
	}
	const blocks = 8192
	zipf := func(rng *rand.Rand) func() uint64 {
		// Of exponent 1.1, over shuffled addresses.
		sum := make([]float64, blocks)
		total := 0.0
		for i := range sum {
			total += math.Pow(float64(i+1), -1.1)
			sum[i] = total
		}
		perm := rng.Perm(blocks)
		return func() uint64 {
			x, lo, hi := rng.Float64()*total, 0, blocks-1
			for lo < hi {
				if mid := (lo + hi) / 2; sum[mid] < x {
					lo = mid + 1
				} else {
					hi = mid
				}
			}
			return uint64(perm[lo])
		}
	}
	for _, c := range []struct {
		name string
		most float64
		next func(rng *rand.Rand) func() uint64
	}{
		{"uniform", 2.0, func(rng *rand.Rand) func() uint64 { return func() uint64 { return rng.Uint64N(blocks) } }},
		{"80/20", 1.9, func(rng *rand.Rand) func() uint64 {
			perm := rng.Perm(blocks)
			return func() uint64 {
				if rng.IntN(5) > 0 {
					return uint64(perm[rng.IntN(blocks/5)])
				}
				return uint64(perm[blocks/5+rng.IntN(blocks*4/5)])
			}
		}},
		{"zipf 1.1", 1.7, zipf},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(4, 2))
			st, id := &store.Mem{}, ID{9}
			if err := Create(t.Context(), st, id, blocks*BlockSize, nil); err != nil {
				t.Fatal(err)
			}
			d, _, err := Open(t.Context(), st, vfs.NewSim(), id, Options{manual: true, Random: random{rng}, LogFile: 1 << 20, CutBytes: 128 << 10, MaxUnsent: 1 << 20, CacheBytes: 32 << 20, Checkpoint: 4})
			if err != nil {
				t.Fatal(err)
			}
			next := c.next(rng)
			data := make([]byte, BlockSize)
			var before Stats
			space, samples := 0.0, 0
			for i := range uint64(8 * blocks) {
				lba := next()
				if i < blocks {
					lba = i
				}
				if err := d.WriteAt(t.Context(), data, int64(lba)*BlockSize, 0); err != nil {
					t.Fatal(err)
				}
				if len(d.frozen) > 0 {
					if err := d.tend(t.Context()); err != nil {
						t.Fatal(err)
					}
					if s := d.Stats(); i > 3*blocks {
						space += float64(s.StoredBlocks) / float64(s.LiveBlocks)
						samples++
					}
				}
				if i == 3*blocks {
					before = d.Stats()
				}
			}
			s := d.Stats()
			wa := float64(s.Published+s.Moved-before.Published-before.Moved) / float64(s.Written-before.Written)
			t.Logf("%s: write amplification %.2f at %.2f times the space", c.name, wa, space/float64(samples))
			if wa > c.most || space/float64(samples) > 1.45 {
				t.Errorf("write amplification is %.2f at %.2f times the space, want at most %.2f", wa, space/float64(samples), c.most)
			}
		})
	}
}
