package pgstore

import (
	"context"
	"errors"
	"strconv"

	"github.com/jackc/pgx/v5/pgconn"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// callError is mapError for an operation whose context may have ended.
func callError(ctx context.Context, err error, doing string) error {
	if err != nil && ctx.Err() != nil {
		return errs.New(errs.ClassOf(ctx.Err()), "%s: %w", doing, ctx.Err())
	}
	return mapError(err, doing)
}

// mapError gives an error of the database its class. PostgreSQL's answer about
// the statement itself is Internal; any other error, also a deadline of the
// store, means that the database could not be asked.
func mapError(err error, doing string) error {
	if err == nil {
		return nil
	}
	var classed *errs.Error
	var pg *pgconn.PgError
	switch {
	case errors.As(err, &classed):
		return err
	case errors.As(err, &pg) && !transient(pg):
		return errs.New(errs.Internal, "%s: %w", doing, err)
	}
	return errs.New(errs.Unavailable, "%s: %w", doing, err)
}

// transient reports whether the same statement may succeed later: connection
// exceptions, lack of resources, operator intervention (shutdown), lock and
// serialisation failures, start-up and recovery, read-only standby.
func transient(pg *pgconn.PgError) bool {
	if pg.Severity == "FATAL" || pg.Severity == "PANIC" {
		return true
	}
	switch pg.Code[:min(2, len(pg.Code))] {
	case "08", "53", "57", "40":
		return true
	}
	return pg.Code == "55P03" || pg.Code == "25006"
}

// about adds to an error the kind and id of its entity.
func about(e *errs.Error, k key) *errs.Error {
	return e.With("kind", k.kind).With("id", k.id)
}

func notFound(k key) *errs.Error {
	return about(errs.New(errs.NotFound, "%s %s does not exist", k.kind, k.id), k)
}

// revisionChanged is the error of a conditional operation that found another
// revision.
func revisionChanged(k key, what string, want, have schema.Revision) *errs.Error {
	e := errs.New(errs.Conflict, "%s %s changed: %s is %d, the change was made to %d", k.kind, k.id, what, have, want).
		WithHint("read it again and repeat the change")
	return about(e, k).With("revision", strconv.FormatInt(int64(have), 10))
}

// unknownOutcome says that a write may or may not have happened.
func unknownOutcome(cause error) *errs.Error {
	return errs.New(errs.Unavailable, "the outcome of the write is not known: %w", cause).With("outcome", "unknown").
		WithHint("repeat it with the same request id, or read what is there")
}

func compacted(t schema.Token, why string) *errs.Error {
	return errs.New(errs.Compacted, "position %d of epoch %q is gone: %s", t.Revision, t.Epoch, why).
		WithHint("list again and watch from the token of the list")
}
