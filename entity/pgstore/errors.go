package pgstore

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5/pgconn"

	"miren.dev/runtime/entity/eval"
	"miren.dev/runtime/pkg/errs"
)

// callError is mapError for an operation whose context may have ended.
func callError(ctx context.Context, err error, doing string) error {
	if err != nil && ctx.Err() != nil {
		return eval.ContextError(ctx, doing)
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
