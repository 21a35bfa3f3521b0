package baseimage

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"time"

	"miren.dev/runtime/pkg/errs"
)

const (
	// firstRetry is the time from a failed refresh to the next try. It doubles with each further failure, up to lastRetry.
	firstRetry = 15 * time.Minute
	lastRetry  = 24 * time.Hour
	// jitterPart is the part of the interval by which a run is late at most: machines that began together do not ask
	// the distribution together.
	jitterPart = 10
)

// Window is a time of each day, of the machine's time zone. The zero window is the whole day.
type Window struct {
	from, length time.Duration // from midnight; length 0: the whole day
}

// ParseWindow reads HH:MM-HH:MM, which may pass midnight; "" is the whole day.
func ParseWindow(s string) (Window, error) {
	if s == "" {
		return Window{}, nil
	}
	var h, m, toH, toM int
	n, err := fmt.Sscanf(s, "%02d:%02d-%02d:%02d", &h, &m, &toH, &toM)
	if err != nil || n != 4 || len(s) != len("00:00-00:00") || min(h, m, toH, toM) < 0 || max(h, toH) > 23 || max(m, toM) > 59 {
		return Window{}, errs.New(errs.InvalidArgument, "%q is not a time of the day such as 02:00-05:00", s)
	}
	const day = 24 * time.Hour
	at := func(h, m int) time.Duration { return time.Duration(h)*time.Hour + time.Duration(m)*time.Minute }
	w := Window{from: at(h, m)}
	if w.length = (at(toH, toM) - w.from + day) % day; w.length == 0 {
		return Window{}, errs.New(errs.InvalidArgument, "%q begins when it ends", s).WithHint("leave it empty for the whole day")
	}
	return w, nil
}

// first returns the first time from t on that is in the window: t itself, or share (from 0 to 1) of the next window.
func (w Window) first(t time.Time, share float64) time.Time {
	if w.length == 0 {
		return t
	}
	// time.Date keeps the clock's time on days on which the clocks change.
	for day := -1; ; day++ {
		y, mo, d := t.Date()
		begin := time.Date(y, mo, d+day, 0, int(w.from/time.Minute), 0, 0, t.Location())
		end := begin.Add(w.length)
		switch {
		case t.Before(begin):
			return begin.Add(time.Duration(share * float64(w.length)))
		case t.Before(end):
			return t
		}
	}
}

// Schedule says when a server refreshes base images by itself.
type Schedule struct {
	Every  time.Duration // from one refresh to the next; 0: never
	Window Window        // in which it begins
}

// Next returns when the next refresh is due after a last one; nil: there was none. The zero time: never. A run is up to
// a tenth of the interval later than the interval says, by a number that is the same for all servers of the machine.
func (s Schedule) Next(last *Run, now time.Time) time.Time {
	if s.Every <= 0 {
		return time.Time{}
	}
	if last == nil {
		return s.Window.first(now, 0)
	}
	share := last.share()
	due := last.StartedAt.Add(s.Every + time.Duration(share*float64(s.Every/jitterPart)))
	if last.Failures > 0 {
		wait := min(firstRetry<<min(last.Failures-1, 10), lastRetry, s.Every)
		due = last.StartedAt.Add(wait)
		if last.EndedAt != nil {
			due = last.EndedAt.Add(wait)
		}
	}
	return s.Window.first(due.In(now.Location()), share)
}

// share is a number from 0 to 1 that differs from machine to machine and from run to run.
func (r *Run) share() float64 {
	h := fnv.New64a()
	_ = binary.Write(h, binary.LittleEndian, r.StartedAt.UnixNano())
	return float64(h.Sum64()>>11) / (1 << 53)
}
