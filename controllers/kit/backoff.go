package kit

import (
	"errors"
	"math/rand/v2"
	"time"

	"miren.dev/runtime/pkg/errs"
)

// Backoff says how long to wait after failures.
type Backoff struct {
	Base time.Duration // after the first failure; default 100 ms
	Max  time.Duration // default 30 s
	// MaxUnavailable caps the wait after errors of class Unavailable. Such
	// errors are not specific to the key, and end for all keys at once; default
	// 3 s.
	MaxUnavailable time.Duration
}

func (b Backoff) withDefaults() Backoff {
	if b.Base <= 0 {
		b.Base = 100 * time.Millisecond
	}
	if b.Max <= 0 {
		b.Max = 30 * time.Second
	}
	if b.MaxUnavailable <= 0 {
		b.MaxUnavailable = 3 * time.Second
	}
	return b
}

// Delay returns the wait after err when failures preceded it: Base doubled with
// every failure, capped, of which the last fifth is random.
func (b Backoff) Delay(failures int, err error) time.Duration {
	b = b.withDefaults()
	limit := b.Max
	if errs.Is(err, errs.Unavailable) {
		limit = min(limit, b.MaxUnavailable)
	}
	d := limit
	if failures < 62 {
		if x := b.Base << failures; x > 0 && x>>failures == b.Base && x < limit {
			d = x
		}
	}
	return d - rand.N(d/5+1)
}

// terminal marks an error that a retry cannot cure.
type terminal struct{ err error }

func (t *terminal) Error() string { return t.err.Error() }
func (t *terminal) Unwrap() error { return t.err }

// Terminal marks err as one that a retry cannot cure: the key is not retried
// until it or something that it watches changes. It returns nil for nil.
func Terminal(err error) error {
	if err == nil {
		return nil
	}
	return &terminal{err}
}

// IsTerminal reports whether err is or wraps a Terminal error.
func IsTerminal(err error) bool {
	var t *terminal
	return errors.As(err, &t)
}
