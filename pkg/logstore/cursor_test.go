package logstore

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func numbered(from, to int) (out []Line) {
	for i := from; i < to; i++ {
		out = append(out, Line{Offset: int64(i + 1), At: time.Unix(int64(i), 0), Text: fmt.Sprintf("line %d %s", i, strings.Repeat("x", 100))})
	}
	return out
}

// follow reads everything from a position on, in parts, and returns the numbers.
func follow(t *testing.T, s *Store, name string, from Cursor, part int) (got []int, end Cursor) {
	t.Helper()
	tail := s.Tail(name, from)
	end = from
	for {
		lines, next, err := tail.Next(part, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		if len(lines) == 0 {
			return got, end
		}
		for _, l := range lines {
			var n int
			if _, err := fmt.Sscanf(l.Text, "line %d", &n); err != nil {
				t.Fatal(err)
			}
			got = append(got, n)
		}
		end = next
		tail.Advance(next)
	}
}

func wantFrom(t *testing.T, got []int, from, to int) {
	t.Helper()
	if len(got) != to-from {
		t.Fatalf("%d lines, want %d to %d", len(got), from, to)
	}
	for i, n := range got {
		if n != from+i {
			t.Fatalf("line %d where %d is expected", n, from+i)
		}
	}
}

// TestTail: every line once and in order, in parts of any size, while segments are
// sealed, and by a cursor of an earlier process.
func TestTail(t *testing.T) {
	c := Config{Dir: t.TempDir(), SegmentBytes: 20 << 10}
	s, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	o := Origin{Source: "sb", Service: "web"}
	add := func(from, to int) {
		for ; from < to; from += 50 {
			if err := s.Append("shop", o, numbered(from, from+50)); err != nil {
				t.Fatal(err)
			}
		}
	}
	add(0, 500)
	for _, part := range []int{1, 7, 500, 1000} {
		got, _ := follow(t, s, "shop", Cursor{}, part)
		wantFrom(t, got, 0, 500)
	}
	// The cursor is in the middle of the open segment, which is sealed later.
	tail := s.Tail("shop", Cursor{})
	var at Cursor
	for n := 0; n < 480; { // ends between the lines of a frame
		lines, next, err := tail.Next(10, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		n += len(lines)
		at = next
		tail.Advance(next)
	}
	if at.Skip != 30 {
		t.Fatalf("%+v is not in the middle of a frame", at)
	}
	add(500, 1200)
	got, _ := follow(t, s, "shop", at, 9)
	wantFrom(t, got, 480, 1200)
	s.Close()
	if s, err = Open(c); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	got, end := follow(t, s, "shop", at, 64)
	wantFrom(t, got, 480, 1200)
	for _, at := range []Cursor{end, s.End("shop")} {
		if got, _ := follow(t, s, "shop", at, 10); len(got) != 0 {
			t.Errorf("%d lines after the end", len(got))
		}
	}
	if got, _ := follow(t, s, "none", Cursor{}, 10); len(got) != 0 {
		t.Errorf("%d lines of no log", len(got))
	}
}

// TestTailAfterRetention: a tail whose segment was deleted continues with the oldest
// segment, and the store reports the number of deleted lines.
func TestTailAfterRetention(t *testing.T) {
	var expired int64
	s, err := Open(Config{Dir: t.TempDir(), SegmentBytes: 20 << 10, MaxBytes: 45 << 10, Expired: func(log string, _, lines int64) {
		if log != "shop" || lines == 0 {
			t.Errorf("%d lines of %s", lines, log)
		}
		expired += lines
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for i := range 40 {
		if err := s.Append("shop", Origin{Source: "sb"}, numbered(i*100, (i+1)*100)); err != nil {
			t.Fatal(err)
		}
	}
	got, _ := follow(t, s, "shop", Cursor{}, 100)
	if expired == 0 || len(got) == 0 {
		t.Fatalf("%d lines expired, %d are left", expired, len(got))
	}
	wantFrom(t, got, int(expired), 4000)
}
