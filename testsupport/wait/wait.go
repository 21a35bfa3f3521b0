// Package wait lets tests wait for an event that takes its own time: a
// condition, a function without error, a channel. A wait has a deadline, and
// fails the test with the awaited event and the last state.
//
// Waits are for events that must happen. A test measures a bound that is itself
// under test (an answer within a second) on its own.
package wait

import (
	"fmt"
	"testing"
	"time"
)

// Limit is how long a wait takes at most, unless [Within] says otherwise. It is
// generous, since only a failing test waits so long, and machines may be slow
// and busy.
const Limit = time.Minute

// The time between two polls is a tenth of the time waited so far, within these
// bounds: a wait is hardly longer than necessary, and a long one costs little.
const (
	minInterval = time.Millisecond
	maxInterval = 50 * time.Millisecond
)

type options struct {
	limit, interval time.Duration // interval 0: grows with the time waited
	state           func() any
}

// An Option changes one wait.
type Option func(*options)

// Within sets the limit of a wait.
func Within(limit time.Duration) Option { return func(o *options) { o.limit = limit } }

// Every sets the time between two polls, for a condition that has an effect or
// a cost each time.
func Every(interval time.Duration) Option { return func(o *options) { o.interval = interval } }

// State is called when a wait fails; the failure message ends with its result.
func State(state func() any) Option { return func(o *options) { o.state = state } }

// For waits until cond returns true. A phrase such as "node is down" or "a
// write" names the awaited event. cond runs in the goroutine of the test and
// may fail it.
func For(t testing.TB, what string, cond func() bool, opts ...Option) {
	t.Helper()
	o := with(opts)
	for p := newPoller(o); !cond(); {
		if !p.next() {
			o.fail(t, what, "")
		}
	}
}

// NoError waits until f returns nil, and fails with its last error.
func NoError(t testing.TB, what string, f func() error, opts ...Option) {
	t.Helper()
	o := with(opts)
	for p := newPoller(o); ; {
		err := f()
		if err == nil {
			return
		}
		if !p.next() {
			o.fail(t, what, "last error: "+err.Error())
		}
	}
}

// Receive waits for a value from c, or until c is closed; then it returns the
// zero value.
func Receive[T any](t testing.TB, what string, c <-chan T, opts ...Option) T {
	t.Helper()
	o := with(opts)
	limit := time.NewTimer(o.limit)
	defer limit.Stop()
	select {
	case v := <-c:
		return v
	case <-limit.C:
	}
	select {
	case v := <-c: // both were ready
		return v
	default:
	}
	o.fail(t, what, "")
	panic("unreachable")
}

func with(opts []Option) *options {
	o := &options{limit: Limit}
	for _, f := range opts {
		f(o)
	}
	return o
}

func (o *options) fail(t testing.TB, what, last string) {
	t.Helper()
	message := fmt.Sprintf("waited %v for: %s", o.limit, what)
	if last != "" {
		message += "; " + last
	}
	if o.state != nil {
		message += fmt.Sprintf("; last state: %v", o.state())
	}
	t.Fatal(message)
}

type poller struct {
	began           time.Time
	limit, interval time.Duration
}

func newPoller(o *options) poller { return poller{time.Now(), o.limit, o.interval} }

// next sleeps until the next poll. It returns false once the limit has passed;
// there is always a poll after the limit.
func (p poller) next() bool {
	waited := time.Since(p.began)
	if waited > p.limit {
		return false
	}
	interval := p.interval
	if interval == 0 {
		interval = min(max(waited/10, minInterval), maxInterval)
	}
	time.Sleep(interval)
	return true
}
