package schema

import (
	"bytes"
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

func sign(a, b int64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

func TestIndexOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	ints := []int64{math.MinInt64, math.MinInt64 + 1, -256, -1, 0, 1, 255, 256, math.MaxInt64 - 1, math.MaxInt64}
	for range 200 {
		ints = append(ints, int64(rng.Uint64())>>rng.IntN(64))
	}
	for _, a := range ints {
		for _, b := range ints {
			if got := bytes.Compare(EncodeIndexInt(a), EncodeIndexInt(b)); got != sign(a, b) {
				t.Fatalf("int %d, %d: order %d", a, b, got)
			}
			if got := bytes.Compare(EncodeIndexDuration(time.Duration(a)), EncodeIndexDuration(time.Duration(b))); got != sign(a, b) {
				t.Fatalf("duration %d, %d: order %d", a, b, got)
			}
			ta, tb := time.Unix(a/4, b&0x3fffffff%1e9), time.Unix(b/4, a&0x3fffffff%1e9)
			if got := bytes.Compare(EncodeIndexTime(ta), EncodeIndexTime(tb)); got != ta.Compare(tb) {
				t.Fatalf("time %v, %v: order %d", ta, tb, got)
			}
		}
	}
	if bytes.Compare(EncodeIndexBool(false), EncodeIndexBool(true)) != -1 {
		t.Error("false is not before true")
	}
	words := []string{"", "a", "a\x00", "aa", "b", "\xff"}
	for i, a := range words {
		for j, b := range words {
			if got := bytes.Compare(EncodeIndexString(a), EncodeIndexString(b)); got != sign(int64(i), int64(j)) {
				t.Errorf("string %q, %q: order %d", a, b, got)
			}
		}
	}
	zone := time.Date(2024, 1, 1, 12, 0, 0, 5, time.FixedZone("x", 7200))
	if !bytes.Equal(EncodeIndexTime(zone), EncodeIndexTime(zone.UTC())) {
		t.Error("the same instant in two zones has two encodings")
	}
}
