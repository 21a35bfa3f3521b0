package pgstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"miren.dev/runtime/entity/eval"
	"miren.dev/runtime/pkg/errs"
)

const compactInterval = 30 * time.Second

// compact keeps the log within its bounds until ctx ends.
func (s *Store) compact(ctx context.Context) {
	tick := time.NewTicker(compactInterval)
	defer tick.Stop()
	for {
		if err := s.Compact(ctx, s.cfg.KeepFor, s.cfg.KeepRevisions); err != nil && ctx.Err() == nil && !errs.Is(err, errs.Unavailable) {
			s.logger.Warn("cannot compact the log", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Compact drops the partitions of the log that are older than keepFor, or
// farther back than keepRevisions. The store does so by itself.
func (s *Store) Compact(ctx context.Context, keepFor time.Duration, keepRevisions int64) error {
	ctx, cancel := context.WithTimeout(ctx, maintenanceTimeout)
	defer cancel()
	var rev, old, floor int64
	b := &pgx.Batch{}
	b.Queue(`insert into log_mark (at, revision) select clock_timestamp(), revision from store on conflict do nothing`)
	b.Queue(`select s.revision, c.floor, coalesce((select max(revision) from log_mark where at <= clock_timestamp() - $1::interval), 0)
		from store s, compaction c`, keepFor).QueryRow(func(r pgx.Row) error { return r.Scan(&rev, &floor, &old) })
	b.Queue(`delete from log_mark where at < clock_timestamp() - $1::interval
		and at < (select max(at) from log_mark where at <= clock_timestamp() - $1::interval)`, keepFor)
	if err := s.pool.SendBatch(ctx, b).Close(); err != nil {
		return mapError(err, "compact")
	}
	// The next partition must exist well before the batcher needs it.
	if rev%partitionSize > partitionSize/2 {
		if err := s.makePartition(ctx, rev/partitionSize+1); err != nil {
			return err
		}
	}
	cut := max(old, rev-keepRevisions) - eval.PrevMargin
	if first := cut / partitionSize * partitionSize; cut > 0 && first > 0 && first+eval.PrevMargin > floor {
		floor = first + eval.PrevMargin
		// Publish the floor before dropping anything: readers check it after
		// they have read.
		if _, err := s.pool.Exec(ctx, `update compaction set floor = greatest(floor, $1)`, floor); err != nil {
			return mapError(err, "compact")
		}
	}
	s.metrics.floor.Set(float64(floor))
	return s.dropPartitions(ctx, (floor-eval.PrevMargin)/partitionSize)
}

// dropPartitions drops the partitions below number n. While a reader uses the
// log it soon gives up, so that no other reader queues behind it; compact calls
// it again later.
func (s *Store) dropPartitions(ctx context.Context, n int64) error {
	if n <= 0 {
		return nil
	}
	rows, err := s.pool.Query(ctx, `select c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid
		where i.inhparent = 'log'::regclass`)
	if err != nil {
		return mapError(err, "list partitions")
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return mapError(err, "list partitions")
	}
	for _, name := range names {
		var i int64
		if _, err := fmt.Sscanf(name, "log_%d", &i); err != nil || i >= n {
			continue
		}
		if err := s.ddl(ctx, "drop table if exists "+pgx.Identifier{name}.Sanitize()); err != nil {
			return err
		}
		s.logger.Info("dropped a partition of the log", "partition", name)
	}
	return nil
}

// makePartition creates the partitions up to number n that do not exist.
func (s *Store) makePartition(ctx context.Context, n int64) error {
	stmt := fmt.Sprintf("create table if not exists log_%d partition of log for values from (%d) to (%d)", n, n*partitionSize, (n+1)*partitionSize)
	if err := s.ddl(ctx, stmt); err != nil {
		return err
	}
	for {
		have := s.batcher.partitions.Load()
		if have > n || s.batcher.partitions.CompareAndSwap(have, n+1) {
			return nil
		}
	}
}

// ddlLock is the advisory lock under which the log's partitions change: the
// batcher and the compaction of each server may create the same one at once,
// and "if not exists" does not see a transaction that has not committed yet.
const ddlLock = 0x706172746974

// ddl runs a statement that locks the log exclusively. It retries with a short
// lock timeout, so that other statements never wait long behind it.
func (s *Store) ddl(ctx context.Context, stmt string) error {
	var err error
	for range 100 {
		err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "set local lock_timeout = '100ms'"); err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, "select pg_advisory_xact_lock($1)", int64(ddlLock)); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, stmt)
			return err
		})
		if err == nil {
			return nil
		}
		if e := mapError(err, "change the log's partitions"); !errs.Is(e, errs.Unavailable) {
			return e
		}
		select {
		case <-ctx.Done():
			return mapError(errors.Join(ctx.Err(), err), "change the log's partitions")
		case <-time.After(20 * time.Millisecond):
		}
	}
	return mapError(err, "change the log's partitions")
}
