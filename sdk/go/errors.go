package miren

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"miren.dev/runtime/sdk/go/rest"
)

// Class is the class of a server's error; errors.Is(err, miren.NotFound) tells it.
type Class string

// Classes.
const (
	InvalidArgument    Class = "invalid_argument"
	Unauthenticated    Class = "unauthenticated"
	PermissionDenied   Class = "permission_denied"
	NotFound           Class = "not_found"
	AlreadyExists      Class = "already_exists"
	Conflict           Class = "conflict"
	FailedPrecondition Class = "failed_precondition"
	ResourceExhausted  Class = "resource_exhausted"
	Unavailable        Class = "unavailable"
	DeadlineExceeded   Class = "deadline_exceeded"
	Unimplemented      Class = "unimplemented"
	Internal           Class = "internal"
)

// Error implements error.
func (c Class) Error() string { return string(c) }

// Error is a problem of RFC 9457, with which the server refused a request.
type Error struct {
	Status int    // HTTP status
	Class  Class  // empty if the answer was no problem
	Detail string // what happened
	Hint   string // what to do next; may be empty
	Errors []rest.ErrorDetail
}

// Error implements error.
func (e *Error) Error() string {
	if e.Hint != "" {
		return fmt.Sprintf("%s (%s)", e.Detail, e.Hint)
	}
	return e.Detail
}

// Is reports whether target is the class of the error.
func (e *Error) Is(target error) bool { return target == error(e.Class) }

// maxProblem bounds the body of an answer that is read for an error.
const maxProblem = 1 << 20

// problemOf returns the error for an answer, whose body it closes.
func problemOf(resp *http.Response) error {
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxProblem))
	if err != nil {
		return err
	}
	var p rest.Problem
	if json.Unmarshal(body, &p) != nil || p.Class == "" {
		return &Error{Status: resp.StatusCode, Detail: fmt.Sprintf("%s: %s", resp.Status, body)}
	}
	return errorOf(&p)
}

// errorOf returns the error for a problem.
func errorOf(p *rest.Problem) *Error {
	e := &Error{Status: int(p.Status), Class: Class(p.Class), Detail: p.Detail, Errors: p.Errors}
	if p.Hint != nil {
		e.Hint = *p.Hint
	}
	return e
}
