package pgstore

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"miren.dev/runtime/pkg/errs"
)

//go:embed migrations/*.sql
var migrations embed.FS

// migrateLock is the advisory lock that keeps two servers from migrating at
// the same time.
const migrateLock = 0x72756e74696d65 // "runtime"

// namespace is the PostgreSQL schema that holds every table, so that an
// external database may be shared with others.
const namespace = "runtime"

// Migrate brings the database at url to the newest schema. It is part of Open.
func Migrate(ctx context.Context, url string) error {
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		return errs.New(errs.InvalidArgument, "store URL: %w", err)
	}
	setParams(cfg)
	c, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return mapError(err, "connect to the store")
	}
	defer c.Close(context.WithoutCancel(ctx))
	// The lock belongs to the session: closing the connection releases it.
	if _, err := c.Exec(ctx, "select pg_advisory_lock($1)", int64(migrateLock)); err != nil {
		return mapError(err, "lock the store for migration")
	}
	if _, err := c.Exec(ctx, "create schema if not exists "+namespace); err != nil {
		return mapError(err, "create schema")
	}
	const table = `create table if not exists migration (version int primary key, at timestamptz not null default now())`
	if _, err := c.Exec(ctx, table); err != nil {
		return mapError(err, "create migration table")
	}
	var have int
	if err := c.QueryRow(ctx, "select coalesce(max(version), 0) from migration").Scan(&have); err != nil {
		return mapError(err, "read migration table")
	}
	steps, err := migrationSteps()
	if err != nil {
		return err
	}
	if have > len(steps) {
		return errs.New(errs.FailedPrecondition, "the store has schema version %d, newer than the %d this program knows", have, len(steps)).
			WithHint("run the version of runtime that wrote it, or a newer one")
	}
	for i := have; i < len(steps); i++ {
		err := pgx.BeginFunc(ctx, c, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, steps[i]); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, "insert into migration (version) values ($1)", i+1)
			return err
		})
		if err != nil {
			return mapError(err, fmt.Sprintf("migrate the store to version %d", i+1))
		}
	}
	return nil
}

// migrationSteps returns the migrations; their numbers have no gaps.
func migrationSteps() ([]string, error) {
	names, err := fs.Glob(migrations, "migrations/*.sql") // sorted
	if err != nil {
		return nil, err
	}
	steps := make([]string, 0, len(names))
	for i, name := range names {
		number, _, _ := strings.Cut(strings.TrimPrefix(name, "migrations/"), "_")
		if n, err := strconv.Atoi(number); err != nil || n != i+1 {
			return nil, errs.New(errs.Internal, "migration %s is not number %d", name, i+1)
		}
		b, err := fs.ReadFile(migrations, name)
		if err != nil {
			return nil, err
		}
		steps = append(steps, string(b))
	}
	return steps, nil
}
