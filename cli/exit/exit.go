// Package exit has the exit codes of the command line, in one place.
//
//	0 ok · 1 failed · 2 usage · 3 build failed · 4 unhealthy, old version kept ·
//	5 lease held by another deployment · 6 the program runtime is missing · 130 interrupted
//
// `exec`, `run`, `task run`, `execution submit --wait` and `execution wait` return the remote
// process's code instead.
package exit

import (
	"context"
	"errors"
	"fmt"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/pkg/errs"
)

// Codes.
const (
	OK          = 0
	Failed      = 1
	Usage       = 2
	BuildFailed = 3
	Unhealthy   = 4
	LeaseHeld   = 5
	NoRuntime   = 6
	Interrupted = 130
)

// Error is an error with an exit code of its own. A nil Err prints nothing: the
// command has printed its result already.
type Error struct {
	Code int
	Err  error
}

func (e *Error) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit status %d", e.Code)
	}
	return e.Err.Error()
}

// Unwrap returns the wrapped error.
func (e *Error) Unwrap() error { return e.Err }

// With gives err the exit code.
func With(code int, err error) error { return &Error{Code: code, Err: err} }

// Usagef makes a usage error.
func Usagef(format string, args ...any) error {
	return &Error{Code: Usage, Err: errs.New(errs.InvalidArgument, format, args...)}
}

// Code returns the exit code for err.
func Code(err error) int {
	var e *Error
	switch {
	case err == nil:
		return OK
	case errors.As(err, &e):
		return e.Code
	case errors.Is(err, context.Canceled), errs.Is(err, errs.Canceled):
		return Interrupted
	case errs.Is(err, errs.Conflict) && errs.Detail(err, app.DetailLease) != "":
		return LeaseHeld
	}
	return Failed
}

// Silent reports whether err has nothing to print.
func Silent(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Err == nil
}
