// Package crontime reads the times of tasks: five fields as in crontab(5)
// (minute, hour, day of the month, month, day of the week), or @hourly, @daily,
// @weekly, @monthly, @yearly and "@every 90m", in a time zone.
//
// A time that does not exist when clocks go forward is skipped, and one that comes
// twice when they go back runs once.
package crontime

import (
	"strings"
	"time"
	_ "time/tzdata" // machines without the package of time zones

	"github.com/robfig/cron/v3"

	"miren.dev/runtime/pkg/errs"
)

// minEvery is the shortest period of "@every".
const minEvery = time.Minute

// Schedule is the times of a task.
type Schedule struct {
	times cron.Schedule
	zone  *time.Location
}

var parser = cron.NewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.Descriptor)

// Parse reads a schedule. zone is the name of a time zone; "" is UTC.
// InvalidArgument, with an example, if one of them cannot be read.
func Parse(text, zone string) (*Schedule, error) {
	if zone == "Local" { // of the server's machine, which an app cannot know
		zone = "?"
	}
	loc, err := time.LoadLocation(zone)
	if err != nil {
		return nil, errs.New(errs.InvalidArgument, "time zone %q is not known", zone).WithHint("a name such as Europe/Berlin, or UTC")
	}
	bad := errs.New(errs.InvalidArgument, "%q is not a schedule", text).
		WithHint("five fields: minute, hour, day of month, month, day of week, such as \"30 3 * * *\" for 3:30 every night; or @hourly, @daily, \"@every 10m\"")
	if strings.Contains(text, "=") { // a time zone has its own key
		return nil, bad
	}
	times, err := parser.Parse(text)
	if err != nil {
		return nil, bad.With("reason", err.Error())
	}
	if every, ok := times.(cron.ConstantDelaySchedule); ok && every.Delay < minEvery {
		return nil, errs.New(errs.InvalidArgument, "schedule %q comes more often than every minute", text).WithHint("what runs so often belongs in a service")
	}
	s := &Schedule{times: times, zone: loc}
	if s.Next(time.Now()).IsZero() {
		return nil, errs.New(errs.InvalidArgument, "schedule %q never comes", text).WithHint("February has no 30th day, for example")
	}
	return s, nil
}

// Next returns the first time after t, in UTC; the zero time if there is none
// within five years.
func (s *Schedule) Next(t time.Time) time.Time {
	spec, _ := s.times.(*cron.SpecSchedule)
	fixed := spec != nil && spec.Hour&everyHour == 0
	n := s.times.Next(t.In(s.zone))
	for fixed && !n.IsZero() && repeated(n) {
		n = s.times.Next(n)
	}
	if n.IsZero() {
		return n
	}
	return n.UTC()
}

// everyHour is the bit that the library sets in a field that is "*".
const everyHour = 1 << 63

// repeated reports whether clocks showed the same time shortly before, since they
// went back.
func repeated(t time.Time) bool {
	for _, back := range []time.Duration{30 * time.Minute, time.Hour} {
		if e := t.Add(-back); e.Day() == t.Day() && e.Hour() == t.Hour() && e.Minute() == t.Minute() {
			return true
		}
	}
	return false
}

// maxDue bounds the times that Due looks at.
const maxDue = 10_000

// Due returns the last time after from and not after now, and how many there are
// in that span, at most maxDue; zero times if there is none.
func (s *Schedule) Due(from, now time.Time) (last time.Time, n int) {
	for t := s.Next(from); !t.IsZero() && !t.After(now); t = s.Next(t) {
		if last, n = t, n+1; n == maxDue {
			// Too many to count: the last one is found from just before now.
			return s.recent(last, now), n
		}
	}
	return last, n
}

// recent returns the last time not after now, which is at or after known.
func (s *Schedule) recent(known, now time.Time) time.Time {
	for back := time.Minute; now.Add(-back).After(known); back *= 2 {
		last := time.Time{}
		for t := s.Next(now.Add(-back)); !t.IsZero() && !t.After(now); t = s.Next(t) {
			last = t
		}
		if !last.IsZero() {
			return last
		}
	}
	return known
}
