package crontime

import (
	"testing"
	"time"

	"miren.dev/runtime/pkg/errs"
)

func at(s string) time.Time {
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		panic(err)
	}
	return t.UTC()
}

func TestNext(t *testing.T) {
	for _, tt := range []struct{ text, zone, from, want string }{
		{"30 3 * * *", "", "2026-11-24T10:00:00Z", "2026-11-25T03:30:00Z"},
		{"30 3 * * *", "Europe/Berlin", "2026-11-24T10:00:00Z", "2026-11-25T02:30:00Z"},
		{"*/15 * * * *", "", "2026-11-24T10:00:00Z", "2026-11-24T10:15:00Z"},
		{"0 9 * * mon", "", "2026-11-24T10:00:00Z", "2026-11-30T09:00:00Z"},
		{"@daily", "America/New_York", "2026-11-24T10:00:00Z", "2026-11-25T05:00:00Z"},
		{"@every 90m", "", "2026-11-24T10:00:00Z", "2026-11-24T11:30:00Z"},
		// Clocks go forward at 2:00, so there is no 2:30 on that day.
		{"30 2 * * *", "Europe/Berlin", "2027-03-27T12:00:00Z", "2027-03-29T00:30:00Z"},
	} {
		s, err := Parse(tt.text, tt.zone)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.Next(at(tt.from)); !got.Equal(at(tt.want)) {
			t.Errorf("%s in %s after %s: %s, want %s", tt.text, tt.zone, tt.from, got, tt.want)
		}
	}
}

// TestHourThatComesTwice: a daily time runs once on the day on which clocks go back.
func TestHourThatComesTwice(t *testing.T) {
	s, err := Parse("30 2 * * *", "Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	if last, n := s.Due(at("2026-10-24T12:00:00Z"), at("2026-10-25T12:00:00Z")); n != 1 {
		t.Errorf("%d times, the last at %s", n, last)
	}
}

func TestDue(t *testing.T) {
	s, err := Parse("*/10 * * * *", "")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		from, now, last string
		n               int
	}{
		{"2026-11-24T10:00:00Z", "2026-11-24T10:09:59Z", "", 0},
		{"2026-11-24T10:00:00Z", "2026-11-24T10:10:00Z", "2026-11-24T10:10:00Z", 1},
		{"2026-11-24T10:00:00Z", "2026-11-24T11:05:00Z", "2026-11-24T11:00:00Z", 6},
		{"2016-11-24T10:00:00Z", "2026-11-24T11:05:00Z", "2026-11-24T11:00:00Z", maxDue},
		{"2026-11-25T10:00:00Z", "2026-11-24T11:05:00Z", "", 0}, // the clock was set back
	} {
		last, n := s.Due(at(tt.from), at(tt.now))
		if n != tt.n || (tt.last == "") != last.IsZero() || tt.last != "" && !last.Equal(at(tt.last)) {
			t.Errorf("from %s to %s: %d, the last %s", tt.from, tt.now, n, last)
		}
	}
}

func TestMistakes(t *testing.T) {
	for _, tt := range [][2]string{
		{"", ""}, {"* * * *", ""}, {"* * * * * *", ""}, {"60 * * * *", ""}, {"@reboot", ""}, {"@every 1s", ""}, {"0 0 30 2 *", ""},
		{"CRON_TZ=UTC 0 0 * * *", ""}, {"0 0 * * *", "Europe/Nowhere"}, {"0 0 * * *", "../etc/passwd"}, {"0 0 * * *", "Local"},
	} {
		if _, err := Parse(tt[0], tt[1]); !errs.Is(err, errs.InvalidArgument) || errs.HintOf(err) == "" {
			t.Errorf("%q in %q: %v", tt[0], tt[1], err)
		}
	}
}
