package wait_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"miren.dev/runtime/testsupport/wait"
)

// recorder is a test that notes its failure.
type recorder struct {
	testing.TB
	message string
}

func (r *recorder) Helper() {}

func (r *recorder) Fatal(args ...any) {
	r.message = fmt.Sprint(args...)
	panic(r)
}

// failure returns how f fails a test, or "".
func failure(f func(t testing.TB)) string {
	r := &recorder{}
	func() {
		defer func() {
			if p := recover(); p != nil && p != r {
				panic(p)
			}
		}()
		f(r)
	}()
	return r.message
}

// TestWaitEndsSoonAfterTheCondition bounds what polling adds to a wait.
func TestWaitEndsSoonAfterTheCondition(t *testing.T) {
	for _, after := range []time.Duration{0, time.Millisecond, 3 * time.Second, time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			holds := func() bool { return time.Since(began) >= after }
			failed := failure(func(t testing.TB) { wait.For(t, "the time", holds) })
			if late := time.Since(began) - after; failed != "" || late > 50*time.Millisecond {
				t.Errorf("after %v: %q, %v late", after, failed, late)
			}
		})
	}
}

func TestFailureSaysWhatWasAwaitedAndSeen(t *testing.T) {
	calls := 0
	count := func() error { calls++; return fmt.Errorf("call %d", min(calls, 3)) }
	state := wait.State(func() any { return "half done" })
	for name, x := range map[string]struct {
		wait func(testing.TB)
		want string
		took time.Duration
	}{
		"condition": {func(t testing.TB) { wait.For(t, "work", func() bool { return false }) },
			"waited 1m0s for: work", wait.Limit},
		"state": {func(t testing.TB) { wait.For(t, "work", func() bool { return false }, state, wait.Within(time.Second)) },
			"waited 1s for: work; last state: half done", time.Second},
		"error": {func(t testing.TB) { wait.NoError(t, "work", count) },
			"waited 1m0s for: work; last error: call 3", wait.Limit},
		"channel": {func(t testing.TB) { wait.Receive(t, "work", make(chan int), state) },
			"waited 1m0s for: work; last state: half done", wait.Limit},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				if got := failure(x.wait); got != x.want {
					t.Errorf("got %q, want %q", got, x.want)
				}
				if took := time.Since(began); took < x.took || took > x.took+100*time.Millisecond {
					t.Errorf("took %v, want %v", took, x.took)
				}
			})
		})
	}
}

func TestPollsComeAtTheSetInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		polls := 0
		wait.For(t, "100 polls", func() bool { polls++; return polls > 100 }, wait.Every(time.Millisecond), wait.Within(100*time.Millisecond))
	})
}

func TestErrorEnds(t *testing.T) {
	left := 3
	wait.NoError(t, "the third call", func() error {
		if left--; left > 0 {
			return errors.New("not yet")
		}
		return nil
	})
}

func TestReceive(t *testing.T) {
	c := make(chan int, 1)
	c <- 7
	if got := wait.Receive(t, "a value", c); got != 7 {
		t.Errorf("got %d", got)
	}
	close(c)
	if got := wait.Receive(t, "the end", c); got != 0 {
		t.Errorf("got %d from a closed channel", got)
	}
}
