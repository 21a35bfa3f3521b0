// Package retryafter reads the header Retry-After of HTTP.
package retryafter

import (
	"net/http"
	"strconv"
	"time"
)

// Parse returns the wait that a value asks for: seconds, or a date. It is at least 0 and at most limit. A value that is
// neither asks for none.
func Parse(text string, now time.Time, limit time.Duration) time.Duration {
	var d time.Duration
	if n, err := strconv.ParseInt(text, 10, 32); err == nil {
		d = time.Duration(n) * time.Second
	} else if t, err := http.ParseTime(text); err == nil {
		d = t.Sub(now)
	}
	return min(max(d, 0), limit)
}
