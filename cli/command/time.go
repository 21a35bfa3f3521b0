package command

import (
	"strconv"
	"strings"
	"time"

	"miren.dev/runtime/cli/exit"
)

// ParseTime reads the value of a flag: an age before now, a date or a time.
func ParseTime(flag, s string, now time.Time) (time.Time, error) {
	t, ok := parseTime(s, now)
	if !ok {
		return t, exit.Usagef("--%s %s: want an age such as 90m, 24h or 7d, a date such as 2026-01-02, or a time such as 2026-01-02T15:04:05Z", flag, s)
	}
	return t, nil
}

func parseTime(s string, now time.Time) (time.Time, bool) {
	if n, err := strconv.ParseUint(strings.TrimSuffix(s, "d"), 10, 16); err == nil && strings.HasSuffix(s, "d") {
		return now.AddDate(0, 0, -int(n)), true
	}
	if d, err := time.ParseDuration(s); err == nil {
		return now.Add(-d), d >= 0
	}
	for _, layout := range []string{time.RFC3339, time.DateOnly} {
		if t, err := time.Parse(layout, s); err == nil {
			return t, true
		}
	}
	return time.Time{}, false
}
