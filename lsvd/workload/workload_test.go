package workload

import (
	"math/rand/v2"
	"testing"
)

func TestWorkloadsAreSkewedAsNamed(t *testing.T) {
	const n, writes = 1000, 100000
	rng := rand.New(rand.NewPCG(1, 2))
	for _, c := range []struct {
		name        string
		next        Next
		least, most float64 // share of the tenth of the blocks that is written most
	}{
		{"uniform", Uniform(rng, n), 0.10, 0.13},
		{"80/20", Hot(rng, n), 0.40, 0.45},
		{"zipf", Zipf(rng, 1.1, n), 0.75, 0.85},
		{"journal", Journal(rng, 0.3, 100, Uniform(rng, n-100)), 0.29, 0.31},
	} {
		counts := make([]int, n)
		for range writes {
			counts[c.next()]++ // panics if it is none of the disk
		}
		// The hundred that are written most, by counting.
		top := 0
		for range n / 10 {
			best := 0
			for i := range counts {
				if counts[i] > counts[best] {
					best = i
				}
			}
			top += counts[best]
			counts[best] = -1
		}
		if share := float64(top) / writes; share < c.least || share > c.most {
			t.Errorf("%s: a tenth of the blocks has %.2f of the writes, want %.2f to %.2f", c.name, share, c.least, c.most)
		}
	}
}
