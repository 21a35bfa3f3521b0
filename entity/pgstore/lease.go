package pgstore

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/eval"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// Bounds of a lease's time to live.
const (
	minTTL = 100 * time.Millisecond
	maxTTL = 24 * time.Hour
)

// leaseGap: if no server has checked for lapsed leases for this long, the
// database or every server was away, and holders may have been unable to renew.
// Every lease then gets its full time again.
const leaseGap = 5 * time.Second

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
	if ttl < minTTL || ttl > maxTTL {
		return entity.Lease{}, errs.New(errs.InvalidArgument, "a lease of %s; %s to %s are allowed", ttl, minTTL, maxTTL)
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
			return l, errLapsed(id)
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
			return l, errLapsed(id)
		}
		return l, nil
	})
}

// Revoke implements entity.Store. NotFound if there is no such lease.
func (s *Store) Revoke(ctx context.Context, id schema.LeaseID) error {
	if !eval.ValidID.MatchString(string(id)) {
		return errLapsed(id)
	}
	_, err := s.queue.Submit(ctx, &eval.Txn{EndLease: id})
	return err
}

func errLapsed(id schema.LeaseID) *errs.Error {
	return errs.New(errs.NotFound, "lease %s does not exist or has lapsed", id).With("lease", string(id))
}

// expirer ends lapsed leases. Servers may race: the batch that ends a lease
// checks again, under the lock of its row, that it has lapsed.
type expirer struct {
	s     *Store
	after string // ids up to here were checked in this round

	mu     sync.Mutex
	ending map[string]bool // leases whose end is under way
	held   map[string]bool // leases that cannot end, since other entities need theirs: logged once
	wg     sync.WaitGroup
}

const (
	// lapsedPage is how many lapsed leases one turn checks, so that those that
	// cannot end leave turns for the others.
	lapsedPage = 100
	maxEnding  = 64 // under way at a time
)

// expire ends lapsed leases until ctx ends.
func (s *Store) expire(ctx context.Context) {
	e := &expirer{s: s, ending: map[string]bool{}, held: map[string]bool{}}
	defer e.wg.Wait()
	tick := time.NewTicker(s.cfg.ExpireInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		// If the database is away, the next tick is soon enough.
		if err := e.turn(ctx); err != nil && ctx.Err() == nil && !errs.Is(mapError(err, ""), errs.Unavailable) {
			s.logger.Error("cannot end lapsed leases", "error", err)
		}
	}
}

// turn begins to end the next lapsed leases.
func (e *expirer) turn(ctx context.Context) error {
	lapsed, err := e.lapsed(ctx)
	if err != nil {
		return err
	}
	for _, id := range lapsed {
		e.mu.Lock()
		if e.ending[id] {
			e.mu.Unlock()
			continue
		}
		if len(e.ending) >= maxEnding {
			e.mu.Unlock()
			return nil // the remaining leases get their turn again
		}
		e.ending[id] = true
		e.mu.Unlock()
		e.after = id
		e.wg.Go(func() { e.end(ctx, id) })
	}
	if len(lapsed) < lapsedPage {
		e.after = ""
	}
	return nil
}

// end ends one lease.
func (e *expirer) end(ctx context.Context, id string) {
	_, err := e.s.queue.Submit(ctx, &eval.Txn{EndLease: schema.LeaseID(id), OnlyLapsed: true})
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.ending, id)
	switch {
	case err == nil:
		delete(e.held, id)
		e.s.metrics.expired.Inc()
		e.s.logger.Info("lease lapsed", "lease", id)
	case errs.Is(err, errs.NotFound): // renewed, or ended by another server
		delete(e.held, id)
	case !e.held[id] && ctx.Err() == nil:
		if len(e.held) >= maxHeld {
			clear(e.held)
		}
		e.held[id] = errs.Is(err, errs.FailedPrecondition)
		e.s.logger.Warn("cannot end a lapsed lease", "lease", id, "error", err)
	}
}

// maxHeld bounds the memory of leases that cannot end.
const maxHeld = 10_000

// lapsed returns the lapsed leases whose turn it is.
func (e *expirer) lapsed(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, e.s.cfg.Attempt)
	defer cancel()
	var lapsed []string
	err := pgx.BeginFunc(ctx, e.s.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `set local synchronous_commit = off`); err != nil {
			return err
		}
		var away bool
		if err := tx.QueryRow(ctx, sqlLooked, leaseGap).Scan(&away); err != nil {
			return err
		}
		if away {
			tag, err := tx.Exec(ctx, sqlGrace)
			if err == nil && tag.RowsAffected() > 0 {
				e.s.logger.Warn("no server renewed leases for a while: each gets its full time again", "leases", tag.RowsAffected())
			}
			return err
		}
		rows, err := tx.Query(ctx, sqlLapsed, e.after, lapsedPage)
		if err != nil {
			return err
		}
		lapsed, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	return lapsed, err
}
