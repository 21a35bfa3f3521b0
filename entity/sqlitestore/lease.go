package sqlitestore

import (
	"context"
	"database/sql"
	"slices"
	"sync"
	"time"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/eval"
	"miren.dev/runtime/pkg/schema"
)

// leases are the leases of the store. The table has which there are.
type leases struct {
	mu     sync.Mutex
	all    map[schema.LeaseID]*lease
	looked time.Time // when they were last checked
}

type lease struct {
	ttl     time.Duration
	expires time.Time
	ended   bool // it has entities left, and is not renewed any more
}

// state returns the state of a lease; mu is held.
func (l *leases) state(id schema.LeaseID) eval.LeaseState {
	x := l.all[id]
	if x == nil {
		return eval.LeaseState{}
	}
	return eval.LeaseState{Exists: true, Lapsed: x.lapsed(time.Now()), Ended: x.ended}
}

func (x *lease) lapsed(now time.Time) bool { return x.ended || !now.Before(x.expires) }

// renew gives a lease its full time again, if that is later.
func (x *lease) renew(now time.Time) {
	if t := now.Add(x.ttl); t.After(x.expires) {
		x.expires = t
	}
}

// loadLeases gives every lease of the file its full time again.
func (s *Store) loadLeases(ctx context.Context) error {
	s.leases.all, s.leases.looked = map[schema.LeaseID]*lease{}, time.Now()
	return s.db.read(ctx, "read the leases", func(tx *sql.Tx) error {
		rows, err := tx.QueryContext(ctx, `select id, ttl, ended from lease`)
		return eachRow(rows, err, func(r *sql.Rows) error {
			var id string
			x := &lease{}
			if err := r.Scan(&id, &x.ttl, &x.ended); err != nil {
				return err
			}
			x.renew(s.leases.looked)
			s.leases.all[schema.LeaseID(id)] = x
			return nil
		})
	})
}

// Grant implements entity.Store.
func (s *Store) Grant(ctx context.Context, ttl time.Duration) (entity.Lease, error) {
	if err := eval.CheckTTL(ttl); err != nil {
		return entity.Lease{}, err
	}
	if ctx.Err() != nil {
		return entity.Lease{}, eval.ContextError(ctx, "grant lease")
	}
	id := schema.LeaseID(schema.NewID("lease"))
	err := s.db.write(func(w writer) error {
		_, err := w.exec(`insert into lease (id, ttl, ended) values (?1, ?2, 0)`, string(id), int64(ttl))
		return err
	})
	if err != nil {
		return entity.Lease{}, mapError(err, "grant lease")
	}
	x := &lease{ttl: ttl}
	s.leases.mu.Lock()
	defer s.leases.mu.Unlock()
	x.renew(time.Now())
	s.leases.all[id] = x
	return x.entity(id), nil
}

func (x *lease) entity(id schema.LeaseID) entity.Lease {
	return entity.Lease{ID: id, TTL: x.ttl, ExpiresAt: x.expires.UTC()}
}

// KeepAlive implements entity.Store. A lease that is over but has not been ended
// yet may be renewed too: nobody has seen it lapse.
func (s *Store) KeepAlive(ctx context.Context, id schema.LeaseID) (entity.Lease, error) {
	if ctx.Err() != nil {
		return entity.Lease{}, eval.ContextError(ctx, "renew lease")
	}
	s.leases.mu.Lock()
	defer s.leases.mu.Unlock()
	x := s.leases.all[id]
	if x == nil || x.ended {
		return entity.Lease{ID: id}, eval.ErrLapsed(id)
	}
	x.renew(time.Now())
	return x.entity(id), nil
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

// lapsed returns lapsed leases in the order of their ids. None, if it was not
// called for so long that the process must have been stopped: then each lease gets
// its full time again.
func (s *Store) lapsed(_ context.Context, after string, limit int) ([]string, error) {
	l := &s.leases
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	// Round removes the monotonic clock, which stands still while the machine sleeps.
	away := max(now.Sub(l.looked), now.Round(0).Sub(l.looked.Round(0)))
	l.looked = now
	if away > eval.LeaseGap {
		for _, x := range l.all {
			x.renew(now)
		}
		s.logger.Warn("nobody could renew leases for a while: each gets its full time again", "leases", len(l.all))
		return nil, nil
	}
	var lapsed []string
	for id, x := range l.all {
		if string(id) > after && x.lapsed(now) {
			lapsed = append(lapsed, string(id))
		}
	}
	slices.Sort(lapsed)
	return lapsed[:min(limit, len(lapsed))], nil
}
