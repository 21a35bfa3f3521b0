package pgstore

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"miren.dev/runtime/entity/eval"
	"miren.dev/runtime/pkg/errs"
)

const (
	connectTimeout = 5 * time.Second
	// maintenanceTimeout bounds one step of background work, which may take
	// longer than operations of callers.
	maintenanceTimeout = 30 * time.Second
)

// setParams sets the parameters that the store relies on in every connection.
func setParams(cfg *pgx.ConnConfig) {
	p := cfg.RuntimeParams
	p["search_path"] = namespace
	p["timezone"] = "UTC"
	p["default_transaction_isolation"] = "read committed"
	p["synchronous_commit"] = "on" // what is acknowledged is durable
	if p["application_name"] == "" {
		p["application_name"] = "runtime"
	}
	cfg.ConnectTimeout = connectTimeout
}

// connect opens the batcher's connection if there is none. Its queries always
// use lookups by primary key, whatever the statistics say, which lag behind.
func (b *batcher) connect(ctx context.Context) error {
	if b.conn != nil && !b.conn.IsClosed() {
		return nil
	}
	b.disconnect()
	cfg := b.s.connConfig.Copy()
	for _, name := range []string{"enable_seqscan", "enable_hashjoin", "enable_mergejoin", "jit"} {
		cfg.RuntimeParams[name] = "off"
	}
	cfg.RuntimeParams["plan_cache_mode"] = "force_generic_plan"
	// A server that hangs within a transaction must not block others for ever.
	cfg.RuntimeParams["idle_in_transaction_session_timeout"] = "10s"
	c, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return mapError(err, "connect to the store")
	}
	b.conn = c
	b.backend.Store(c.PgConn().PID())
	return nil
}

func (b *batcher) disconnect() {
	if b.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = b.conn.Close(ctx) // no statement is pending on it
	b.conn = nil
}

// abort closes the connection, so that the transaction is not committed, and
// returns err.
func (b *batcher) abort(err error) error {
	if b.conn == nil || b.conn.IsClosed() {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), connectTimeout)
	defer cancel()
	if _, e := b.conn.Exec(ctx, "rollback"); e != nil {
		b.disconnect()
	}
	return err
}

// resolve finds out whether an ambiguous commit took effect. Taking the lock of
// the counter row waits for the attempt to end, should it still be running. It
// returns the outcome if the commit took effect, nil and no error if it did
// not, and an error of unknown outcome if it cannot find out in time.
func (b *batcher) resolve(amb *ambiguous, began time.Time) (*eval.Outcome, error) {
	b.s.logger.Warn("connection lost while committing, finding out what happened", "error", amb.err)
	b.s.metrics.ambiguous.Inc()
	if amb.out.First == 0 {
		return nil, nil // the attempt changed nothing durable: repeat it
	}
	pause := retryPause
	for {
		committed, err := b.committed(amb)
		if err == nil {
			if committed {
				return amb.out, nil
			}
			return nil, nil
		}
		if time.Since(began) > b.s.cfg.RetryFor || b.s.isClosing() {
			return nil, eval.UnknownOutcome(errors.Join(amb.err, err))
		}
		select {
		case <-b.s.closing:
		case <-time.After(pause):
		}
		pause = min(2*pause, maxRetryPause)
	}
}

func (b *batcher) committed(amb *ambiguous) (bool, error) {
	ctx, cancel := context.WithTimeout(context.Background(), b.s.cfg.Attempt)
	defer cancel()
	if err := b.connect(ctx); err != nil {
		return false, err
	}
	var found bool
	w := &pgx.Batch{}
	w.Queue(sqlBegin)
	w.Queue(sqlLock)
	w.Queue(`select exists (select from log where revision = $1 and batch = $2)`, int64(amb.out.First), amb.tag).
		QueryRow(func(r pgx.Row) error { return r.Scan(&found) })
	w.Queue("rollback")
	if err := b.conn.SendBatch(ctx, w).Close(); err != nil {
		b.disconnect()
		return false, err
	}
	return found, nil
}

// retryRead runs a read, and repeats it while the database cannot be reached or
// does not answer, and there is time.
func retryRead[T any](ctx context.Context, s *Store, doing string, read func(context.Context) (T, error)) (T, error) {
	began, pause := time.Now(), retryPause
	for {
		attempt, cancel := context.WithTimeout(ctx, s.cfg.Attempt)
		v, err := read(attempt)
		cancel()
		if err == nil {
			return v, nil
		}
		if err = callError(ctx, err, doing); !errs.Is(err, errs.Unavailable) || time.Since(began) > s.cfg.RetryFor {
			return v, err
		}
		select {
		case <-ctx.Done():
			return v, err // Unavailable says more than Canceled
		case <-s.closing:
			return v, eval.ErrClosed()
		case <-time.After(pause):
		}
		pause = min(2*pause, maxRetryPause)
	}
}

// undefinedTable reports whether a relation vanished, such as a partition of
// the log that was dropped between planning and execution.
func undefinedTable(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == "42P01"
}
