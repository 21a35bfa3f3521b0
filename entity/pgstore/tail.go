package pgstore

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"miren.dev/runtime/entity/eval"
	"miren.dev/runtime/entity/feed"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

const (
	// pollInterval is how often the tailer reads the log without a
	// notification.
	pollInterval = time.Second
	// staleAfter is the age of the tailer's last check from which on a bookmark is
	// not sent.
	staleAfter = 3 * pollInterval
)

// sqlReadLog reads one page of the log up to a revision; null kinds or ids
// select everything.
const sqlReadLog = `select revision, type, record, departed from log
	where revision > $1 and revision <= $2 and ($3::text[] is null or kind = any($3)) and ($4::text[] is null or id = any($4))
	order by revision, seq limit $5`

// tail follows the log until ctx ends, so that the hub also gets the commits of
// other servers.
func (s *Store) tail(ctx context.Context) {
	hints := make(chan struct{}, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.listen(ctx, hints)
	}()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	failing := false
	for {
		switch err := s.poll(ctx); {
		case err == nil && failing:
			failing = false
			s.logger.Info("following the log again")
		case err != nil && ctx.Err() == nil && !failing:
			failing = true
			s.logger.Warn("cannot follow the log", "error", err)
		}
		select {
		case <-ctx.Done():
			<-done
			return
		case <-hints:
		case <-s.hub.Gap():
		case <-tick.C:
		}
	}
}

// listen turns notifications of other connections into hints.
func (s *Store) listen(ctx context.Context, hints chan<- struct{}) {
	hint := func() {
		select {
		case hints <- struct{}{}:
		default:
		}
	}
	for pause := retryPause; ctx.Err() == nil; pause = min(2*pause, maxRetryPause) {
		c, err := pgx.ConnectConfig(ctx, s.connConfig.Copy())
		if err == nil {
			if _, err = c.Exec(ctx, "listen runtime_store"); err == nil {
				pause = retryPause
				hint() // for commits from before the LISTEN
			}
			for err == nil {
				n, e := c.WaitForNotification(ctx)
				if err = e; e == nil && n.PID != s.batcher.backend.Load() {
					hint()
				}
			}
			closing, cancel := context.WithTimeout(context.Background(), time.Second)
			_ = c.Close(closing) // the connection is broken or no longer needed
			cancel()
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// poll brings the hub up to date with the log.
func (s *Store) poll(ctx context.Context) error {
	for {
		ctx, cancel := context.WithTimeout(ctx, s.cfg.Attempt)
		more, err := s.pollOnce(ctx)
		cancel()
		if err != nil || !more {
			return err
		}
	}
}

func (s *Store) pollOnce(ctx context.Context) (more bool, err error) {
	began := time.Now()
	var epoch, origin, server string
	var rev int64
	if err := s.pool.QueryRow(ctx, sqlWhere).Scan(&rev, &epoch, &origin, &server); err != nil {
		return false, err
	}
	known, last := s.hub.Where()
	s.metrics.lag.Set(float64(max(0, schema.Revision(rev)-last)))
	switch {
	case origin != server:
		// The server switched to another copy of the database while it ran.
		if epoch, err = s.newEpoch(ctx, epoch); err != nil {
			return false, err
		}
		return true, nil
	case epoch != known:
		s.logger.Warn("the store began a new epoch", "epoch", epoch, "revision", rev)
		s.hub.Begin(epoch, schema.Revision(rev))
		return false, nil
	case schema.Revision(rev) < last:
		// The batcher may have fed its commit after the query: check again
		// before believing it.
		var again int64
		if err := s.pool.QueryRow(ctx, sqlWhere).Scan(&again, &epoch, &origin, &server); err != nil {
			return false, err
		}
		if epoch == known && origin == server && schema.Revision(again) < last {
			s.logger.Error("the store went back in time", "revision", again, "previous", last)
			_, err := s.newEpoch(ctx, epoch)
			return true, err
		}
	case schema.Revision(rev) > last:
		entries, to, err := s.readLog(ctx, epoch, last, schema.Revision(rev), nil, nil)
		if errs.Is(err, errs.Compacted) {
			var now string
			if err := s.pool.QueryRow(ctx, `select epoch from store`).Scan(&now); err != nil || now != epoch {
				return err == nil, err
			}
			// So far behind that the log is gone: no watch can continue.
			s.logger.Warn("fell behind the log", "previous", last, "revision", rev)
			s.hub.Begin(epoch, schema.Revision(rev))
			return false, nil
		}
		if err != nil {
			return false, err
		}
		if len(entries) == 0 || entries[0].Rev != last+1 {
			return false, errs.New(errs.Corrupt, "the log has a gap after revision %d", last)
		}
		s.hub.Feed(epoch, last+1, to, entries)
		if to < schema.Revision(rev) {
			return true, nil
		}
	}
	s.hub.SetChecked(began)
	return false, nil
}

// source is the Store as its hub sees it.
type source struct{ s *Store }

// Poll implements feed.Source.
func (src source) Poll(ctx context.Context) error {
	return callError(ctx, src.s.poll(ctx), "watch")
}

// Position implements feed.Source.
func (src source) Position(ctx context.Context) (feed.Position, error) {
	return retryRead(ctx, src.s, "watch", func(ctx context.Context) (feed.Position, error) {
		var rev, floor int64
		var p feed.Position
		err := src.s.pool.QueryRow(ctx, `select s.revision, s.epoch, c.floor from store s, compaction c`).Scan(&rev, &p.Epoch, &floor)
		p.Last, p.Floor = schema.Revision(rev), schema.Revision(floor)
		return p, err
	})
}

// Changes implements feed.Source.
func (src source) Changes(ctx context.Context, epoch string, from, to schema.Revision, kinds []string, ids []schema.ID) ([]feed.Entry, schema.Revision, error) {
	type page struct {
		entries []feed.Entry
		to      schema.Revision
	}
	p, err := retryRead(ctx, src.s, "watch", func(ctx context.Context) (page, error) {
		entries, to, err := src.s.readLog(ctx, epoch, from, to, kinds, ids)
		return page{entries, to}, err
	})
	return p.entries, p.to, err
}

// readLog returns the changes after from, and the revision up to which they are
// complete. Compacted if part of them is gone.
func (s *Store) readLog(ctx context.Context, epoch string, from, to schema.Revision, kinds []string, ids []schema.ID) ([]feed.Entry, schema.Revision, error) {
	return feed.WholeRevisions(to, func(limit int) ([]feed.Entry, error) { return s.readLogPage(ctx, epoch, from, to, kinds, ids, limit) })
}

func (s *Store) readLogPage(ctx context.Context, epoch string, from, to schema.Revision, kinds []string, ids []schema.ID, limit int) ([]feed.Entry, error) {
	var entries []feed.Entry
	b := &pgx.Batch{}
	b.Queue(sqlReadLog, int64(from), int64(to), orNull(kinds), orNull(ids), limit).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			var rev int64
			var typ int16
			var raw, departed []byte
			if err := rows.Scan(&rev, &typ, &raw, &departed); err != nil {
				return err
			}
			e, err := s.hub.DecodeEntry(rev, typ, raw, departed)
			if err != nil {
				return err
			}
			entries = append(entries, e)
		}
		return rows.Err()
	})
	// Read the floor after the log, in a later snapshot: a floor is published
	// before anything below it is dropped.
	var floor int64
	var now string
	b.Queue(`select c.floor, s.epoch from compaction c, store s`).QueryRow(func(r pgx.Row) error { return r.Scan(&floor, &now) })
	err := s.pool.SendBatch(ctx, b).Close()
	if undefinedTable(err) {
		return s.readLogPage(ctx, epoch, from, to, kinds, ids, limit) // a partition was dropped meanwhile; the next plan knows
	}
	if err != nil {
		return nil, err
	}
	if now != epoch {
		return nil, eval.Compacted(schema.Token{Epoch: epoch, Revision: from}, "the store began a new epoch")
	}
	if from < schema.Revision(floor) {
		return nil, eval.Compacted(schema.Token{Epoch: epoch, Revision: from}, "the log was compacted")
	}
	return entries, nil
}

// orNull returns a list for SQL, NULL if it is empty.
func orNull[S ~string](list []S) []string {
	var out []string
	for _, s := range list {
		out = append(out, string(s))
	}
	return out
}
