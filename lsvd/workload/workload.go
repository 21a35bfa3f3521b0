// Package workload makes the orders in which programs overwrite the blocks of
// a disk, for what measures write amplification.
package workload

import (
	"math"
	"math/rand/v2"
	"sort"
)

// Next gives the block that is written next.
type Next func() int

// Uniform writes any of n blocks as often as any other.
func Uniform(rng *rand.Rand, n int) Next { return func() int { return rng.IntN(n) } }

// Hot writes four times of five to a fifth of n blocks, scattered over them.
func Hot(rng *rand.Rand, n int) Next {
	place := rng.Perm(n)
	return func() int {
		if rng.IntN(5) > 0 {
			return place[rng.IntN(n/5)]
		}
		return place[n/5+rng.IntN(n-n/5)]
	}
}

// Zipf writes ranks of n blocks, scattered over them, whose probability falls
// with rank^s.
func Zipf(rng *rand.Rand, s float64, n int) Next {
	sums, total := make([]float64, n), 0.0
	for i := range sums {
		total += math.Pow(float64(i+1), -s)
		sums[i] = total
	}
	place := rng.Perm(n)
	return func() int { return place[min(sort.SearchFloat64s(sums, rng.Float64()*total), n-1)] }
}

// Journal writes, with a share of all writes, round and round a ring of the
// first blocks, as the journal of a file system is written; the others are of
// rest, behind the ring.
func Journal(rng *rand.Rand, share float64, ring int, rest Next) Next {
	head := 0
	return func() int {
		if rng.Float64() >= share {
			return ring + rest()
		}
		head = (head + 1) % ring
		return head
	}
}
