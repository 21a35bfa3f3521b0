package pgstore

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/eval"
	"miren.dev/runtime/pkg/schema"
)

const (
	sqlGrant = `insert into lease (id, ttl, expires) values ($1, $2, clock_timestamp() + $2) returning expires`
	// A lease that is over but not removed yet may be renewed too: no server
	// has seen it lapse.
	sqlKeepAlive = `update lease set expires = greatest(expires, clock_timestamp() + ttl) where id = $1 and expires > '-infinity' returning ttl, expires`
	// One row records when a server last checked the leases. A restart of the
	// database since then counts as an outage, however short it was.
	sqlLooked = `update expirer x set at = clock_timestamp() from expirer o
		where o.one = x.one returning clock_timestamp() - o.at > $1 or pg_postmaster_start_time() > o.at`
	sqlGrace  = `update lease set expires = greatest(expires, clock_timestamp() + ttl) where expires > '-infinity'`
	sqlLapsed = `select id from lease where expires <= clock_timestamp() and id > $1 order by id limit $2`
)

// Grant implements entity.Store.
func (s *Store) Grant(ctx context.Context, ttl time.Duration) (entity.Lease, error) {
	if err := eval.CheckTTL(ttl); err != nil {
		return entity.Lease{}, err
	}
	l := entity.Lease{ID: schema.LeaseID(schema.NewID("lease")), TTL: ttl}
	return retryRead(ctx, s, "grant lease", func(ctx context.Context) (entity.Lease, error) {
		// If the answer is lost, the caller repeats the call, and the first
		// lease lapses unused.
		l.ID = schema.LeaseID(schema.NewID("lease"))
		err := s.pool.QueryRow(ctx, sqlGrant, string(l.ID), ttl).Scan(&l.ExpiresAt)
		return l, err
	})
}

// KeepAlive implements entity.Store.
func (s *Store) KeepAlive(ctx context.Context, id schema.LeaseID) (entity.Lease, error) {
	return retryRead(ctx, s, "renew lease", func(ctx context.Context) (entity.Lease, error) {
		l := entity.Lease{ID: id}
		if !eval.ValidID.MatchString(string(id)) {
			return l, eval.ErrLapsed(id)
		}
		// A crash of the database may lose a renewal without harm, since every
		// lease gets its full time after one: no need to wait for the disk.
		b := &pgx.Batch{}
		b.Queue(sqlBegin)
		b.Queue(`set local synchronous_commit = off`)
		found := false
		b.Queue(sqlKeepAlive, string(id)).Query(func(rows pgx.Rows) error {
			for rows.Next() {
				found = true
				if err := rows.Scan(&l.TTL, &l.ExpiresAt); err != nil {
					return err
				}
			}
			return rows.Err()
		})
		b.Queue(sqlCommit)
		if err := s.pool.SendBatch(ctx, b).Close(); err != nil {
			return l, err
		}
		if !found {
			return l, eval.ErrLapsed(id)
		}
		return l, nil
	})
}

// Revoke implements entity.Store. NotFound if there is no such lease.
func (s *Store) Revoke(ctx context.Context, id schema.LeaseID) error {
	if !eval.ValidID.MatchString(string(id)) {
		return eval.ErrLapsed(id)
	}
	_, err := s.queue.Submit(ctx, &eval.Txn{EndLease: id})
	return err
}

// expire ends lapsed leases until ctx ends.
func (s *Store) expire(ctx context.Context) {
	e := eval.Expirer{Queue: s.queue, Logger: s.logger, Interval: s.cfg.ExpireInterval, Lapsed: s.lapsed, Ended: s.metrics.expired.Inc}
	e.Run(ctx)
}

// lapsed returns lapsed leases in the order of their ids.
func (s *Store) lapsed(ctx context.Context, after string, limit int) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Attempt)
	defer cancel()
	var lapsed []string
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `set local synchronous_commit = off`); err != nil {
			return err
		}
		var away bool
		if err := tx.QueryRow(ctx, sqlLooked, eval.LeaseGap).Scan(&away); err != nil {
			return err
		}
		if away {
			tag, err := tx.Exec(ctx, sqlGrace)
			if err == nil && tag.RowsAffected() > 0 {
				s.logger.Warn("no server renewed leases for a while: each gets its full time again", "leases", tag.RowsAffected())
			}
			return err
		}
		rows, err := tx.Query(ctx, sqlLapsed, after, limit)
		if err != nil {
			return err
		}
		lapsed, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	return lapsed, mapError(err, "read lapsed leases")
}
