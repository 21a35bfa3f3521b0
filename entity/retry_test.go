package entity

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"miren.dev/runtime/pkg/errs"
)

func TestRetryEndsWithTheFirstErrorThatIsNoConflict(t *testing.T) {
	other := errors.New("other")
	for _, want := range []error{nil, other} {
		synctest.Test(t, func(t *testing.T) {
			calls, begun := 0, time.Now()
			err := Retry(t.Context(), func() error {
				if calls++; calls < 30 {
					return errs.New(errs.Conflict, "another came first")
				}
				return want
			})
			if !errors.Is(err, want) || calls != 30 {
				t.Errorf("%d calls, %v; want %v", calls, err, want)
			}
			// 29 waits, each between half and all of 1, 2, 4, ... 64, 100, 100, ... ms.
			if took := time.Since(begun); took < 1160*time.Millisecond || took > 2400*time.Millisecond {
				t.Errorf("took %s", took)
			}
		})
	}
}

func TestAsConflictChangesOnlyNotFound(t *testing.T) {
	gone := errs.New(errs.NotFound, "deleted")
	if err := AsConflict(gone); !errs.Is(err, errs.Conflict) || !errors.Is(err, gone) {
		t.Error(err)
	}
	for _, err := range []error{nil, errs.New(errs.Unavailable, "away")} {
		if got := AsConflict(err); got != err {
			t.Errorf("%v became %v", err, got)
		}
	}
}

func TestRetryIsBoundedByItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begun := time.Now()
		err := Retry(ctx, func() error { return errs.New(errs.Conflict, "another came first").With("id", "x") })
		if !errs.Is(err, errs.Conflict) || errs.Detail(err, "id") != "x" || time.Since(begun) != time.Second {
			t.Errorf("%v after %s", err, time.Since(begun))
		}
	})
}

func TestRetryReturnsWhatIsFinal(t *testing.T) {
	held := errs.New(errs.Conflict, "the lease is held")
	calls := 0
	err := Retry(t.Context(), func() error {
		calls++
		return Final(held)
	})
	if err != error(held) || calls != 1 {
		t.Errorf("%d calls, %v", calls, err)
	}
	err = Retry(t.Context(), func() error { return errs.Wrap(Final(held), "deploy") })
	if !errs.Is(err, errs.Conflict) || err.Error() != "deploy: the lease is held" {
		t.Errorf("wrapped: %v", err)
	}
	if Final(nil) != nil {
		t.Error("Final(nil) is an error")
	}
}
