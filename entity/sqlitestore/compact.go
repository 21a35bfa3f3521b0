package sqlitestore

import (
	"context"
	"database/sql"
	"time"

	"miren.dev/runtime/entity/eval"
)

const (
	compactInterval = 30 * time.Second
	// deletePage is how many rows one transaction of background work drops, so that
	// writes wait for it only briefly.
	deletePage = 2000
)

// compact keeps the log within its bounds until ctx ends.
func (s *Store) compact(ctx context.Context) {
	tick := time.NewTicker(compactInterval)
	defer tick.Stop()
	for {
		if err := s.Compact(ctx, s.cfg.KeepFor, s.cfg.KeepRevisions); err != nil && ctx.Err() == nil {
			s.logger.Warn("cannot compact the log", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Compact drops the changes of the log that are older than keepFor, or farther
// back than keepRevisions. The store does so by itself.
func (s *Store) Compact(ctx context.Context, keepFor time.Duration, keepRevisions int64) error {
	var floor int64
	err := s.db.write(func(w writer) error {
		at := now()
		old := at.Add(-keepFor).UnixMicro()
		if _, err := w.exec(`insert into log_mark (at, revision) select ?1, revision from store where true on conflict do nothing`, at.UnixMicro()); err != nil {
			return err
		}
		var cut int64
		err := w.query(`select max(coalesce((select max(revision) from log_mark where at <= ?1), 0), revision - ?2), floor from store`,
			func(r *sql.Rows) error { return r.Scan(&cut, &floor) }, old, keepRevisions)
		if err != nil {
			return err
		}
		if _, err := w.exec(`delete from log_mark where at < (select max(at) from log_mark where at <= ?1)`, old); err != nil {
			return err
		}
		if cut <= floor {
			return nil
		}
		// Readers that see the new floor may lack what is dropped below it.
		floor = cut
		_, err = w.exec(`update store set floor = ?1`, floor)
		return err
	})
	if err != nil {
		return mapError(err, "compact the log")
	}
	s.metrics.floor.Set(float64(floor))
	// See eval.PrevMargin: what is just below the floor is needed for lists.
	return s.deletePages(ctx, "compact the log", `delete from log where rowid in (select rowid from log where revision <= ?1 limit ?2)`, floor-eval.PrevMargin)
}

// deletePages repeats a statement that deletes up to so many rows as its last
// parameter says, until it finds no more.
func (s *Store) deletePages(ctx context.Context, doing, query string, args ...any) error {
	for ctx.Err() == nil {
		var n int64
		err := s.db.write(func(w writer) error {
			res, err := w.exec(query, append(args, deletePage)...)
			if err == nil {
				n, err = res.RowsAffected()
			}
			return err
		})
		if err != nil {
			return mapError(err, doing)
		}
		if n < deletePage {
			return nil
		}
	}
	return eval.ContextError(ctx, doing)
}
