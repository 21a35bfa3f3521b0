package breaker_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"miren.dev/runtime/pkg/breaker"
	"miren.dev/runtime/pkg/errs"
)

var (
	errAway  = errs.New(errs.Unavailable, "away")
	errOther = errs.New(errs.NotFound, "not there")
)

func newBreaker(inFlight int) *breaker.Breaker {
	return breaker.New(breaker.Config{Name: "thing", Failures: 3, Slow: 5 * time.Second, Pause: time.Second, InFlight: inFlight, Logger: slog.New(slog.DiscardHandler)})
}

func do(b *breaker.Breaker, err error) (called bool, got error) {
	got = b.Do(context.Background(), func() error { called = true; return err })
	return called, got
}

func wantState(t *testing.T, b *breaker.Breaker, want string) {
	t.Helper()
	text := "# HELP runtime_breaker_state State of a circuit breaker: 0 closed, 1 half-open, 2 open.\n# TYPE runtime_breaker_state gauge\n" +
		"runtime_breaker_state{target=\"thing\"} " + want + "\n"
	if err := testutil.CollectAndCompare(b, strings.NewReader(text), "runtime_breaker_state"); err != nil {
		t.Error(err)
	}
}

func TestFailuresInARowOpenItAndASuccessCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(0)
		for _, err := range []error{errAway, errAway, errOther, errAway, errAway, nil, errAway, errAway} {
			if called, _ := do(b, err); !called {
				t.Fatal("refused although answers came in between")
			}
		}
		wantState(t, b, "0")
		do(b, errAway)
		wantState(t, b, "2")
		if called, err := do(b, nil); called || !errs.Is(err, errs.Unavailable) {
			t.Errorf("while open: called %v, %v", called, err)
		}
		time.Sleep(time.Second + 1)
		do(b, errAway) // tries
		if called, _ := do(b, nil); called {
			t.Error("called after the try failed")
		}
		time.Sleep(time.Second + 1)
		for range 2 {
			if called, err := do(b, nil); !called || err != nil {
				t.Errorf("after the pause: called %v, %v", called, err)
			}
		}
		wantState(t, b, "0")
	})
}

// TestCallsThatHangOpenIt holds that those which came first wait as long as they
// like, and later ones are refused at once.
func TestCallsThatHangOpenIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(0)
		hang := make(chan struct{})
		done := make(chan error, 3)
		for range 3 {
			go func() { done <- b.Do(t.Context(), func() error { <-hang; return nil }) }()
		}
		time.Sleep(5*time.Second + 1)
		began := time.Now()
		if called, err := do(b, nil); called || !errs.Is(err, errs.Unavailable) || time.Since(began) > 0 {
			t.Errorf("called %v, %v after %s", called, err, time.Since(began))
		}
		close(hang)
		for range 3 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})
}

func TestWhatCallersEndIsNoFailure(t *testing.T) {
	b := newBreaker(0)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 10 {
		_ = b.Do(ctx, func() error { return errAway })
	}
	wantState(t, b, "0")
}

func TestCallsUnderWayAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(2)
		hang := make(chan struct{})
		for range 2 {
			go func() { _ = b.Do(t.Context(), func() error { <-hang; return nil }) }()
		}
		synctest.Wait()
		if called, err := do(b, nil); called || !errs.Is(err, errs.Unavailable) {
			t.Errorf("called %v, %v", called, err)
		}
		close(hang)
		synctest.Wait()
		if called, err := do(b, nil); !called || err != nil {
			t.Errorf("called %v, %v", called, err)
		}
	})
}

func TestPanicIsNoAnswer(t *testing.T) {
	b := newBreaker(1)
	func() {
		defer func() { _ = recover() }()
		_ = b.Do(t.Context(), func() error { panic("x") })
	}()
	if called, err := do(b, nil); !called || err != nil {
		t.Errorf("called %v, %v", called, err)
	}
}
