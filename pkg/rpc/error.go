package rpc

import (
	"context"
	"errors"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/text"
)

// Outcome says whether a call took place.
type Outcome uint8

// Outcomes.
const (
	Succeeded  Outcome = iota // no error
	NotStarted                // the call had no effect and can be repeated
	Unknown                   // the call may have had an effect
	Failed                    // the call was carried out and ended in the error
)

func (o Outcome) String() string {
	return [...]string{"succeeded", "not started", "unknown", "failed"}[o&3]
}

// detailOutcome is the detail that marks an unknown outcome, as in package entity.
const detailOutcome = "outcome"

// callError adds the outcome to an error.
type callError struct {
	err     *errs.Error
	outcome Outcome
}

func (e *callError) Error() string { return e.err.Error() }
func (e *callError) Unwrap() error { return e.err }

// Is matches the errors that an error was before it crossed the wire: a call's
// deadline passes on both sides, and the server may report it first.
func (e *callError) Is(target error) bool {
	switch target {
	case context.DeadlineExceeded:
		return e.err.Class == errs.DeadlineExceeded
	case context.Canceled:
		return e.err.Class == errs.Canceled
	}
	return false
}

// OutcomeOf returns the outcome of the call that ended in err.
func OutcomeOf(err error) Outcome {
	if err == nil {
		return Succeeded
	}
	var e *callError
	if errors.As(err, &e) {
		return e.outcome
	}
	if errs.Detail(err, detailOutcome) == "unknown" {
		return Unknown
	}
	return Failed
}

func withOutcome(err error, o Outcome) error {
	if err == nil {
		return nil
	}
	var c *callError
	if errors.As(err, &c) {
		return err
	}
	var e *errs.Error
	if top, ok := err.(*errs.Error); ok {
		e = top
	} else {
		e = errs.New(errs.ClassOf(err), "%w", err)
	}
	if o == Unknown && e.Details[detailOutcome] == "" {
		e = e.With(detailOutcome, "unknown")
	}
	return &callError{err: e, outcome: o}
}

// ctxError is the error of a context that ended.
func ctxError(ctx context.Context) *errs.Error {
	err := ctx.Err()
	if errs.Is(err, errs.DeadlineExceeded) {
		return errs.New(errs.DeadlineExceeded, "the deadline passed: %w", err)
	}
	if cause := context.Cause(ctx); cause != nil && cause != err {
		return errs.New(errs.Canceled, "canceled: %v: %w", cause, err)
	}
	return errs.New(errs.Canceled, "canceled: %w", err)
}

// wireError is an error in a REPLY.
type wireError struct {
	Class   string            `cbor:"1,keyasint"`
	Message string            `cbor:"2,keyasint,omitempty"`
	Hint    string            `cbor:"3,keyasint,omitempty"`
	Details map[string]string `cbor:"4,keyasint,omitempty"`
	Outcome Outcome           `cbor:"5,keyasint"`
}

// Bounds of an error, so that it fits into a frame.
const (
	maxErrorText    = 8 << 10
	maxErrorDetails = 32
	maxErrorDetail  = 1 << 10
)

// cut shortens s to n bytes and marks that.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return text.Cut(s, n) + "..."
}

func appendError(b *buffer, err error, o Outcome) {
	if o == Failed && OutcomeOf(err) == Unknown {
		o = Unknown
	}
	w := wireError{
		Class: string(errs.ClassOf(err)), Message: cut(err.Error(), maxErrorText),
		Hint: cut(errs.HintOf(err), maxErrorText), Outcome: o,
	}
	var e *errs.Error
	if errors.As(err, &e) && len(e.Details) > 0 {
		w.Details = make(map[string]string, len(e.Details))
		for k, v := range e.Details {
			if len(w.Details) == maxErrorDetails {
				break
			}
			w.Details[cut(k, maxErrorDetail/8)] = cut(v, maxErrorDetail)
		}
	}
	start := len(b.b)
	if err := b.encode(&w); err != nil {
		b.b = b.b[:start]
		_ = b.encode(&wireError{Class: string(errs.Internal), Message: "the error could not be encoded", Outcome: o})
	}
}

var knownClasses = map[errs.Class]bool{
	errs.Internal: true, errs.InvalidArgument: true, errs.NotFound: true, errs.AlreadyExists: true, errs.Conflict: true,
	errs.FailedPrecondition: true, errs.PermissionDenied: true, errs.Unauthenticated: true, errs.ResourceExhausted: true,
	errs.Unavailable: true, errs.DeadlineExceeded: true, errs.Canceled: true, errs.Compacted: true, errs.Corrupt: true,
	errs.Unimplemented: true,
}

func parseError(p []byte) error {
	var w wireError
	if err := decode(p, &w); err != nil {
		return withOutcome(errs.New(errs.Internal, "the peer's error cannot be read: %w", err), Unknown)
	}
	e := &errs.Error{Class: errs.Class(w.Class), Message: w.Message, Hint: w.Hint, Details: w.Details}
	if !knownClasses[e.Class] {
		e.Class = errs.Internal
	}
	if w.Outcome == Succeeded || w.Outcome > Failed {
		w.Outcome = Unknown
	}
	return withOutcome(e, w.Outcome)
}
