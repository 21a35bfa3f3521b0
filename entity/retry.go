package entity

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"miren.dev/runtime/pkg/errs"
)

// Bounds of the wait between two attempts of Retry.
const (
	minRetryWait = time.Millisecond
	maxRetryWait = 100 * time.Millisecond
)

// final is an error after which Retry does not try again.
type final struct{ error }

func (f final) Unwrap() error { return f.error }

// Final marks an error of a function under Retry as its result, whatever its
// class: a Conflict that is not about a revision, such as a lease that another
// holds, is not cured by reading again. Final(nil) is nil.
func Final(err error) error {
	if err == nil {
		return nil
	}
	return final{err}
}

// AsConflict returns a Conflict for a NotFound from a write: the entity was
// deleted since it was read, so the caller must read everything again. It
// returns other errors and nil unchanged.
func AsConflict(err error) error {
	if errs.Is(err, errs.NotFound) {
		return errs.New(errs.Conflict, "%w", err)
	}
	return err
}

// Retry calls f until it returns nil or an error of another class than
// Conflict, and returns that. A Conflict says that another writer came first,
// so f must read the entities that it writes at each call. The wait between two
// attempts grows from 1 ms to 100 ms, with jitter. When ctx ends, Retry returns
// the last Conflict.
func Retry(ctx context.Context, f func() error) error {
	for wait := minRetryWait; ; wait = min(2*wait, maxRetryWait) {
		err := f()
		if last, ok := err.(final); ok {
			return last.error
		}
		if last := (final{}); errors.As(err, &last) {
			return err
		}
		if !errs.Is(err, errs.Conflict) {
			return err
		}
		t := time.NewTimer(wait/2 + rand.N(wait/2+1))
		select {
		case <-ctx.Done():
			t.Stop()
			return errs.Wrap(err, "other writers came first until the deadline")
		case <-t.C:
		}
	}
}
