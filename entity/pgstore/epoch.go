package pgstore

import (
	"context"

	"github.com/jackc/pgx/v5"

	"miren.dev/runtime/pkg/schema"
)

// sqlWhere reads the position, and which copy of the database answers: a
// restored backup or a promoted standby differs in system identifier or
// timeline.
const (
	sqlServer = `(select system_identifier::text from pg_control_system()) || '/' || (select timeline_id::text from pg_control_checkpoint())`
	sqlWhere  = `select revision, epoch, origin, ` + sqlServer + ` from store`
)

// NewEpoch makes every token that was given out so far invalid: watchers list
// again. Call it after the database was put back to an earlier state in a way
// that the store cannot detect, such as by copying files.
func (s *Store) NewEpoch(ctx context.Context) error {
	old, _ := s.hub.Where()
	if _, err := s.newEpoch(ctx, old); err != nil {
		return err
	}
	return callError(ctx, s.poll(ctx), "read the store's position")
}

// newEpoch replaces the epoch old, unless another server did so already, and
// returns the current one.
func (s *Store) newEpoch(ctx context.Context, old string) (string, error) {
	next := old
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Attempt)
	defer cancel()
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		var have, origin, server string
		if err := tx.QueryRow(ctx, `select epoch, origin, `+sqlServer+` from store for update`).Scan(&have, &origin, &server); err != nil {
			return err
		}
		if next = have; have != old && origin == server {
			return nil
		}
		next = string(schema.NewID("epoch"))
		_, err := tx.Exec(ctx, `update store set epoch = $1, origin = $2`, next, server)
		return err
	})
	if err != nil {
		return "", mapError(err, "begin a new epoch")
	}
	if old != "" {
		s.logger.Warn("this is another copy of the store: beginning a new epoch", "epoch", next)
	}
	return next, nil
}
