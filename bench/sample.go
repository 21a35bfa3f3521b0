package main

import (
	"cmp"
	"context"
	"slices"
	"time"
)

// median returns the middle of v, or the mean of the two in the middle.
func median[T ~int64 | ~float64](v []T) T {
	if len(v) == 0 {
		return 0
	}
	s := slices.Clone(v)
	slices.Sort(s)
	m := len(s) / 2
	if len(s)%2 == 0 {
		return (s[m-1] + s[m]) / 2
	}
	return s[m]
}

// percentile returns the value that p of 100 samples do not exceed. It sorts v.
func percentile[T cmp.Ordered](v []T, p float64) T {
	var none T
	if len(v) == 0 {
		return none
	}
	slices.Sort(v)
	return v[min(len(v)-1, int(float64(len(v))*p/100))]
}

// latencies are the durations of the operations of one turn.
type latencies []time.Duration

func (l latencies) ms(p float64) float64 { return percentile(l, p).Seconds() * 1000 }

// pair holds the results of both sides in each round.
type pair struct{ ours, peer []float64 }

func (p *pair) add(ours, peer float64) { p.ours, p.peer = append(p.ours, ours), append(p.peer, peer) }

// ratio returns the median of ours divided by the peer's, round by round.
func (p *pair) ratio() float64 {
	var r []float64
	for i := range p.ours {
		if p.peer[i] > 0 {
			r = append(r, p.ours[i]/p.peer[i])
		}
	}
	return median(r)
}

// figures are the results of one turn.
type figures []float64

// turns lets both sides (0 is ours) take n turns after a short one to warm up,
// and adds their results to pairs.
func (b *bench) turns(ctx context.Context, n int, turn func(side int) (figures, error), pairs ...*pair) error {
	for side := range 2 {
		if _, err := turn(side); err != nil {
			return err
		}
	}
	for i := range b.rounds(n) {
		var got [2]figures
		for k := range 2 {
			side := (i + k) % 2
			if err := ctx.Err(); err != nil {
				return err
			}
			f, err := turn(side)
			if err != nil {
				return err
			}
			got[side] = f
		}
		for j, p := range pairs {
			p.add(got[0][j], got[1][j])
		}
	}
	return nil
}
