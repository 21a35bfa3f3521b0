package metrics

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// A Histogram counts durations in buckets, four for each power of two from
// 1 µs to a minute, so that a quantile is wrong by at most a quarter. Its
// zero value is ready; it may be used concurrently.
type Histogram struct {
	buckets [buckets]atomic.Uint64
	sum     atomic.Int64 // nanoseconds
	max     atomic.Int64
}

const (
	lowest  = 10 // the first bucket is below 2^10 ns
	highest = 36
	buckets = (highest-lowest)*4 + 2
)

func bucket(ns int64) int {
	if ns < 1<<lowest {
		return 0
	}
	exp := bits.Len64(uint64(ns)) - 1
	if exp >= highest {
		return buckets - 1
	}
	return (exp-lowest)*4 + int(ns>>(exp-2)&3) + 1
}

// upper is where a bucket ends, in nanoseconds.
func upper(i int) int64 {
	if i == 0 {
		return 1 << lowest
	}
	exp, sub := (i-1)/4+lowest, int64((i-1)%4)
	return (4 + sub + 1) << (exp - 2)
}

// Observe counts one duration.
func (h *Histogram) Observe(d time.Duration) {
	ns := max(int64(d), 0)
	h.buckets[bucket(ns)].Add(1)
	h.sum.Add(ns)
	for {
		was := h.max.Load()
		if ns <= was || h.max.CompareAndSwap(was, ns) {
			return
		}
	}
}

// Counts are the figures of a Histogram at one time.
type Counts struct {
	Buckets [buckets]uint64
	Count   uint64
	Sum     time.Duration
	Max     time.Duration
}

// Counts returns the figures.
func (h *Histogram) Counts() Counts {
	c := Counts{Sum: time.Duration(h.sum.Load()), Max: time.Duration(h.max.Load())}
	for i := range h.buckets {
		c.Buckets[i] = h.buckets[i].Load()
		c.Count += c.Buckets[i]
	}
	return c
}

// Quantile returns the duration that a share q of all is not above.
func (c *Counts) Quantile(q float64) time.Duration {
	if c.Count == 0 {
		return 0
	}
	want, have := uint64(q*float64(c.Count)), uint64(0)
	for i, n := range c.Buckets {
		have += n
		if have > want || have == c.Count {
			if i == buckets-1 {
				return c.Max
			}
			return min(time.Duration(upper(i)), c.Max)
		}
	}
	return c.Max
}

// exportEvery makes the bounds that Prometheus gets powers of four, from 2 µs
// to 34 s: every second power of two.
const exportEvery = 2

// cumulative returns the buckets as Prometheus has them.
func (c *Counts) cumulative() map[float64]uint64 {
	out := map[float64]uint64{}
	have := uint64(0)
	for i, n := range c.Buckets[:buckets-1] {
		have += n
		if i%4 == 0 && i/4%exportEvery == 1 {
			out[float64(upper(i))/1e9] = have
		}
	}
	return out
}
