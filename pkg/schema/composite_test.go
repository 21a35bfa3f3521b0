package schema

import (
	"bytes"
	"cmp"
	"fmt"
	"math/rand/v2"
	"testing"
)

// row is a value of each part, nil if absent.
type row struct {
	word  *string
	count *int64
	last  *string
}

func (r row) encoded() [][]byte {
	var out [3][]byte
	if r.word != nil {
		out[0] = EncodeIndexString(*r.word)
	}
	if r.count != nil {
		out[1] = EncodeIndexInt(*r.count)
	}
	if r.last != nil {
		out[2] = EncodeIndexString(*r.last)
	}
	return out[:]
}

func compare[T cmp.Ordered](a, b *T) int {
	switch {
	case a == nil && b == nil:
		return 0
	case a == nil:
		return -1
	case b == nil:
		return 1
	}
	return cmp.Compare(*a, *b)
}

// TestComposite: encodings order as the values do, with each part's direction,
// and a range holds exactly the values within its bounds.
func TestComposite(t *testing.T) {
	x := &Index{Name: "queue", Parts: []IndexPart{{Attr: "a"}, {Attr: "b", Desc: true}, {Attr: "c"}}}
	rng := rand.New(rand.NewPCG(1, 2))
	words := []string{"", "\x00", "\x00\x01", "\x00\xff", "a", "a\x00", "aa", "b", "\xff", "\xff\xff"}
	counts := []int64{-1 << 63, -256, -1, 0, 1, 255, 1<<63 - 1}
	word := func() *string {
		if rng.IntN(5) == 0 {
			return nil
		}
		return &words[rng.IntN(len(words))]
	}
	count := func() *int64 {
		if rng.IntN(5) == 0 {
			return nil
		}
		return &counts[rng.IntN(len(counts))]
	}
	var rows []row
	for range 300 {
		rows = append(rows, row{word(), count(), word()})
	}
	less := func(a, b row) int {
		return cmp.Or(compare(a.word, b.word), -compare(a.count, b.count), compare(a.last, b.last))
	}
	for _, a := range rows {
		for _, b := range rows {
			if got, want := bytes.Compare(x.Encode(a.encoded()...), x.Encode(b.encoded()...)), less(a, b); got != want {
				t.Fatalf("%q and %q: order %d, want %d", a.encoded(), b.encoded(), got, want)
			}
		}
	}
	within := func(e []byte, lo, hi []byte) bool {
		return bytes.Compare(e, lo) >= 0 && (hi == nil || bytes.Compare(e, hi) < 0)
	}
	for range 300 {
		w, low, high := word(), count(), count()
		first := row{word: w}.encoded()[:1]
		lo, hi := x.Range(first, row{count: low}.encoded()[1], row{count: high}.encoded()[1])
		llo, lhi := x.Range(row{w, low, nil}.encoded()[:2], row{last: w}.encoded()[2], nil)
		for _, r := range rows {
			e := x.Encode(r.encoded()...)
			want := compare(r.word, w) == 0 && (low == nil || compare(r.count, low) >= 0) && (high == nil || compare(r.count, high) < 0)
			if got := within(e, lo, hi); got != want {
				t.Fatalf("%q in range %q, %v to %v: %v", r.encoded(), first, show(low), show(high), got)
			}
			want = compare(r.word, w) == 0 && compare(r.count, low) == 0 && (w == nil || compare(r.last, w) >= 0)
			if got := within(e, llo, lhi); got != want {
				t.Fatalf("%q in range of the last part: %v", r.encoded(), got)
			}
		}
	}
	all, none := x.Range(nil, nil, nil)
	if len(all) != 0 || none != nil {
		t.Errorf("everything is %q to %q", all, none)
	}
}

func show(n *int64) string {
	if n == nil {
		return "unbounded"
	}
	return fmt.Sprint(*n)
}
