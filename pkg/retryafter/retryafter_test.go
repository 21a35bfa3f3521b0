package retryafter

import (
	"net/http"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	now := time.Now().Truncate(time.Second)
	for text, want := range map[string]time.Duration{
		"":      0,
		"120":   2 * time.Minute,
		"-1":    0,
		"soon":  0,
		"1e3":   0,
		"99999": time.Hour,
		now.Add(90 * time.Second).UTC().Format(http.TimeFormat): 90 * time.Second,
		now.Add(-time.Minute).UTC().Format(http.TimeFormat):     0,
	} {
		if got := Parse(text, now, time.Hour); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}
