package baseimage

import (
	"testing"
	"time"
)

func TestWindow(t *testing.T) {
	for _, bad := range []string{"2:00-5:00", "02:00", "24:00-05:00", "02:60-05:00", "02:00-02:00", "02:00-05:00x", "night"} {
		if _, err := ParseWindow(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
	at := func(s string) time.Time { return must(time.Parse(time.DateTime, s))(t) }
	for _, c := range []struct {
		window, from, want string
		share              float64
	}{
		{"", "2026-03-10 12:00:00", "2026-03-10 12:00:00", 0.5},
		{"02:00-05:00", "2026-03-10 12:00:00", "2026-03-11 02:00:00", 0},
		{"02:00-05:00", "2026-03-10 12:00:00", "2026-03-11 03:30:00", 0.5},
		{"02:00-05:00", "2026-03-10 01:59:59", "2026-03-10 02:00:00", 0},
		{"02:00-05:00", "2026-03-10 04:59:59", "2026-03-10 04:59:59", 0.5},
		{"02:00-05:00", "2026-03-10 05:00:00", "2026-03-11 02:00:00", 0},
		{"23:00-01:00", "2026-03-10 00:30:00", "2026-03-10 00:30:00", 0.5},
		{"23:00-01:00", "2026-03-10 01:00:00", "2026-03-11 00:00:00", 0.5},
	} {
		if got := must(ParseWindow(c.window))(t).first(at(c.from), c.share); !got.Equal(at(c.want)) {
			t.Errorf("%s from %s: %s, want %s", c.window, c.from, got, c.want)
		}
	}
}

func TestSchedule(t *testing.T) {
	const week = 7 * 24 * time.Hour
	begin := time.Date(2026, 3, 10, 12, 0, 0, 0, time.UTC)
	end := begin.Add(20 * time.Minute)
	ended := func(failures int) *Run { return &Run{StartedAt: begin, EndedAt: &end, Failures: failures} }
	weekly := Schedule{Every: week}
	if next := (Schedule{}).Next(ended(0), end); !next.IsZero() {
		t.Errorf("without an interval: %s", next)
	}
	if next := weekly.Next(nil, begin); !next.Equal(begin) {
		t.Errorf("the first one is at %s", next)
	}
	next := weekly.Next(ended(0), end)
	if early, late := begin.Add(week), begin.Add(week+week/jitterPart); next.Before(early) || next.After(late) || !next.Equal(weekly.Next(ended(0), end.Add(time.Hour))) {
		t.Errorf("next is %s, want a time from %s to %s that stays", next, early, late)
	}
	other := *ended(0)
	other.StartedAt = begin.Add(time.Nanosecond)
	if weekly.Next(&other, end).Sub(next).Abs() < time.Second {
		t.Error("two machines that began together ask together again")
	}
	for failures, want := range map[int]time.Duration{1: firstRetry, 2: 2 * firstRetry, 5: 16 * firstRetry, 9: lastRetry, 1000: lastRetry} {
		if got := weekly.Next(ended(failures), end).Sub(end); got != want {
			t.Errorf("after %d failures it is tried again in %s, want %s", failures, got, want)
		}
	}
	// One that was ended in the middle counts from its begin.
	if got := weekly.Next(&Run{StartedAt: begin, Failures: 1}, end); !got.Equal(begin.Add(firstRetry)) {
		t.Errorf("after one without an end: %s", got)
	}
	night := Schedule{Every: week, Window: must(ParseWindow("02:00-05:00"))(t)}
	if h := night.Next(ended(0), end).Hour(); h < 2 || h >= 5 {
		t.Errorf("it begins at %d o'clock", h)
	}
	if h := night.Next(ended(1), end).Hour(); h < 2 || h >= 5 {
		t.Errorf("a retry begins at %d o'clock", h)
	}
}
