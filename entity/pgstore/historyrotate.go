package pgstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/records"
	"miren.dev/runtime/pkg/errs"
)

const (
	// rotateInterval is how often the partitions of the history are looked after.
	rotateInterval = time.Hour
	// daysAhead is how many days before their first record partitions are made.
	daysAhead = 1
	// writerKeep is how long the row of an appender that is gone is kept. One that
	// is idle for longer gets a new row.
	writerKeep = 7 * 24 * time.Hour

	day       = 24 * time.Hour
	dayFormat = "20060102" // in the names of partitions
)

// rotate keeps the history within its retention until ctx ends.
func (s *Store) rotate(ctx context.Context) {
	tick := time.NewTicker(rotateInterval)
	defer tick.Stop()
	for {
		if err := s.RotateHistory(ctx, s.cfg.KeepHistory); err != nil && ctx.Err() == nil {
			s.logger.Warn("cannot rotate the history", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// RotateHistory makes the partitions of the next days, and drops the days that
// are older than keep; a stream that keep does not name has its default. A day
// is dropped whole, so records are kept for up to a day longer. The store does so
// by itself. What fails for one stream does not hold up the others.
func (s *Store) RotateHistory(ctx context.Context, keep map[entity.Stream]time.Duration) error {
	steps := []func(context.Context) error{s.makeHistory, s.forgetWriters}
	for _, stream := range entity.Streams {
		age := records.Keep(keep, stream)
		steps = append(steps, func(ctx context.Context) error { return s.dropHistory(ctx, stream, age) })
	}
	var errList []error
	for _, step := range steps {
		ctx, cancel := context.WithTimeout(ctx, maintenanceTimeout)
		errList = append(errList, step(ctx))
		cancel()
	}
	return errors.Join(errList...)
}

func (s *Store) forgetWriters(ctx context.Context) error {
	_, err := s.pool.Exec(ctx, `delete from history_writer where at < clock_timestamp() - $1::interval`, writerKeep)
	return mapError(err, "forget old writers of the history")
}

func (s *Store) databaseTime(ctx context.Context) (time.Time, error) {
	var now time.Time
	err := s.pool.QueryRow(ctx, `select clock_timestamp()`).Scan(&now)
	return now.UTC(), mapError(err, "ask the database for the time")
}

// makeHistory makes sure that the partitions from today on exist.
func (s *Store) makeHistory(ctx context.Context) error {
	now, err := s.databaseTime(ctx)
	if err != nil {
		return err
	}
	var errList []error
	for _, stream := range entity.Streams {
		have, err := s.historyDays(ctx, stream)
		if err != nil {
			return err
		}
		for i := range daysAhead + 1 {
			first := now.Truncate(day).Add(time.Duration(i) * day)
			if have[first] {
				continue
			}
			errList = append(errList, s.ddl(ctx, fmt.Sprintf("create table if not exists %s partition of history_%s for values from ('%s') to ('%s')",
				historyPartition(stream, first), stream, first.Format(time.RFC3339), first.Add(day).Format(time.RFC3339))))
		}
	}
	return errors.Join(errList...)
}

// dropHistory drops the days of a stream that ended longer ago than age. It gives
// up on the first that cannot be dropped, such as while it is being read for
// long, and is called again.
func (s *Store) dropHistory(ctx context.Context, stream entity.Stream, age time.Duration) error {
	now, err := s.databaseTime(ctx)
	if err != nil {
		return err
	}
	have, err := s.historyDays(ctx, stream)
	if err != nil {
		return err
	}
	for first := range have {
		if now.Sub(first.Add(day)) < age {
			continue
		}
		name := historyPartition(stream, first)
		if err := s.ddl(ctx, "drop table if exists "+name); err != nil {
			return err
		}
		s.logger.Info("dropped a day of the history", "partition", name)
	}
	return nil
}

func historyPartition(stream entity.Stream, first time.Time) string {
	return "history_" + string(stream) + "_" + first.Format(dayFormat)
}

// historyDays are the days for which a stream has a partition, by their
// beginning in UTC.
func (s *Store) historyDays(ctx context.Context, stream entity.Stream) (map[time.Time]bool, error) {
	rows, err := s.pool.Query(ctx, `select c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid
		where i.inhparent = $1::text::regclass`, "history_"+string(stream))
	if err != nil {
		return nil, mapError(err, "list the days of the history")
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, mapError(err, "list the days of the history")
	}
	days := map[time.Time]bool{}
	for _, name := range names {
		first, err := time.Parse(dayFormat, strings.TrimPrefix(name, "history_"+string(stream)+"_"))
		if err != nil {
			return nil, errs.New(errs.Corrupt, "%s is not the name of a partition of the history", name)
		}
		days[first] = true
	}
	return days, nil
}
