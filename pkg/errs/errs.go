// Package errs has the closed set of error classes that is the same in the
// store, RPC, REST and CLI. An error crosses every boundary with its class,
// message, hint and details; callers branch on the class, never on the text.
//
// NotFound and Unavailable are different on purpose: "I looked and it is not
// there" is never the same as "I could not look" (unknown is never gone).
package errs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
)

// Class is one of the classes below. Its string form is stable and travels
// over the wire and in JSON.
type Class string

// The closed set of classes.
const (
	Internal           Class = "internal"            // a bug or an unexpected condition
	InvalidArgument    Class = "invalid_argument"    // the input is wrong whatever the state
	NotFound           Class = "not_found"           // the server looked, and it does not exist
	AlreadyExists      Class = "already_exists"      // the id, name or unique value is taken
	Conflict           Class = "conflict"            // revision moved, lease held by another
	FailedPrecondition Class = "failed_precondition" // valid input, wrong state; retry will not help until it changes
	PermissionDenied   Class = "permission_denied"   // known caller, not allowed
	Unauthenticated    Class = "unauthenticated"     // unknown caller
	ResourceExhausted  Class = "resource_exhausted"  // quota, capacity, size limit
	Unavailable        Class = "unavailable"         // the server could not reach or ask; retry may help
	DeadlineExceeded   Class = "deadline_exceeded"   // ran out of time; outcome may be unknown
	Canceled           Class = "canceled"            // the caller gave up
	Compacted          Class = "compacted"           // revision below the floor or another epoch: list again
	Corrupt            Class = "corrupt"             // stored data fails its checks
	Unimplemented      Class = "unimplemented"       // this server does not have the method
)

// Error is an error with a class. Hint says what to do next, in words for a
// person; Details are machine-readable facts with stable keys.
type Error struct {
	Class   Class
	Message string
	Hint    string
	Details map[string]string
	cause   error
}

// New makes an error of class c. The format may use %w; the wrapped error is
// kept for errors.Is and errors.As.
func New(c Class, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Class: c, Message: err.Error(), cause: errors.Unwrap(err)}
}

// Wrap says what was being done when err happened and keeps err's class,
// hint and details. It returns nil for a nil err.
func Wrap(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	e := &Error{Class: ClassOf(err), Message: fmt.Sprintf(format, args...) + ": " + err.Error(), cause: err}
	var in *Error
	if errors.As(err, &in) {
		e.Hint, e.Details = in.Hint, maps.Clone(in.Details)
	}
	return e
}

// WithHint returns a copy of e that says what to do next.
func (e *Error) WithHint(format string, args ...any) *Error {
	c := *e
	c.Hint = fmt.Sprintf(format, args...)
	return &c
}

// With returns a copy of e with the detail key set.
func (e *Error) With(key, value string) *Error {
	c := *e
	c.Details = maps.Clone(e.Details)
	if c.Details == nil {
		c.Details = map[string]string{}
	}
	c.Details[key] = value
	return &c
}

func (e *Error) Error() string { return e.Message }

// Unwrap returns the wrapped error, if any.
func (e *Error) Unwrap() error { return e.cause }

// ClassOf returns the class of err: that of the outermost *Error in its
// chain, Canceled and DeadlineExceeded for the context's errors, Unavailable
// for those of the network, and Internal for everything else. A nil error has
// class "".
//
// A missing file is not NotFound by itself: it may be the socket of a server
// that is away, or a program that is not installed. Code that looks for a file
// sets the class itself.
func ClassOf(err error) Class {
	if err == nil {
		return ""
	}
	var e *Error
	var network *net.OpError
	switch {
	case errors.As(err, &e):
		return e.Class
	case errors.Is(err, context.Canceled):
		return Canceled
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return DeadlineExceeded
	case errors.As(err, &network):
		return Unavailable
	}
	return Internal
}

// Is reports whether err has class c.
func Is(err error, c Class) bool { return err != nil && ClassOf(err) == c }

// HintOf returns the hint of the outermost *Error that has one, or "".
func HintOf(err error) string {
	for err != nil {
		var e *Error
		if !errors.As(err, &e) {
			return ""
		}
		if e.Hint != "" {
			return e.Hint
		}
		err = e.cause
	}
	return ""
}

// Detail returns the detail key of the outermost *Error in err's chain.
func Detail(err error, key string) string {
	var e *Error
	if errors.As(err, &e) {
		return e.Details[key]
	}
	return ""
}
