package attach

import (
	"testing"
	"time"
)

func TestDetachKeys(t *testing.T) {
	for _, c := range []struct {
		reads []string
		apart time.Duration
		want  string
		leave bool
	}{
		{[]string{"plain"}, 0, "plain", false},
		{[]string{"a\x1d\x1d\x1db"}, 0, "a\x1d\x1d", true},
		{[]string{"a\x1d", "\x1d", "\x1d"}, 300 * time.Millisecond, "a\x1d\x1d", true},
		{[]string{"\x1d", "\x1d", "\x1d"}, 600 * time.Millisecond, "\x1d\x1d\x1d", false},
		{[]string{"\x1d\x1dx\x1d"}, 0, "\x1d\x1dx\x1d", false},
		{[]string{"\x10", "\x11"}, 0, "\x10\x11", false},
	} {
		k, got, leave, now := &detachKeys{}, "", false, time.Now()
		for _, r := range c.reads {
			var n int
			n, leave = k.find([]byte(r), now)
			got += r[:n]
			now = now.Add(c.apart)
		}
		if got != c.want || leave != c.leave {
			t.Errorf("%q: %q, %v", c.reads, got, leave)
		}
	}
}
