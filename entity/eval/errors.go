package eval

import (
	"context"
	"strconv"
	"time"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// about adds to an error the kind and id of its entity.
func about(e *errs.Error, k Key) *errs.Error {
	return e.With("kind", k.Kind).With("id", k.ID)
}

// NotFound says that an entity does not exist.
func NotFound(k Key) *errs.Error {
	return about(errs.New(errs.NotFound, "%s %s does not exist", k.Kind, k.ID), k)
}

// revisionChanged is the error of a conditional operation that found another
// revision.
func revisionChanged(k Key, what string, want, have schema.Revision) *errs.Error {
	e := errs.New(errs.Conflict, "%s %s changed: %s is %d, the change was made to %d", k.Kind, k.ID, what, have, want).
		WithHint("read it again and repeat the change")
	return about(e, k).With("revision", strconv.FormatInt(int64(have), 10))
}

// UnknownOutcome says that a write may or may not have happened.
func UnknownOutcome(cause error) *errs.Error {
	return errs.New(errs.Unavailable, "the outcome of the write is not known: %w", cause).With("outcome", "unknown").
		WithHint("repeat it with the same request id, or read what is there")
}

// Compacted says that a store cannot continue from a position.
func Compacted(t schema.Token, why string) *errs.Error {
	return errs.New(errs.Compacted, "position %d of epoch %q is gone: %s", t.Revision, t.Epoch, why).
		WithHint("list again and watch from the token of the list")
}

// ContextError is the error of an operation whose context has ended.
func ContextError(ctx context.Context, doing string) *errs.Error {
	return errs.New(errs.ClassOf(ctx.Err()), "%s: %w", doing, ctx.Err())
}

// ErrClosed is the error of a call after the store was closed.
func ErrClosed() *errs.Error { return errs.New(errs.Unavailable, "the store is closed") }

// ErrQueue is the error of a write that the writer did not take within a time.
func ErrQueue(waited time.Duration) *errs.Error {
	return errs.New(errs.Unavailable, "the write was not begun within %s: the database is busy or does not answer", waited)
}
