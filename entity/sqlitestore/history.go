package sqlitestore

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"time"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/records"
)

// rotateInterval is how often old records of the history are dropped.
const rotateInterval = time.Hour

// dialect spells lists of the history; a view for each stream stands for its
// table.
var dialect = records.Dialect{Param: "?%d", Time: func(t time.Time) any { return t.UnixMicro() }}

// Append implements entity.History.
func (s *Store) Append(ctx context.Context, list ...entity.HistoryRecord) error {
	return s.appends.Append(ctx, list)
}

// runAppender appends what is queued until the store is closing.
func (s *Store) runAppender() {
	defer close(s.appenderDone)
	for {
		batch := s.appends.Collect()
		if batch == nil {
			return
		}
		if len(batch) == 0 {
			continue
		}
		err := s.append(batch)
		for _, a := range batch {
			a.Finish(err)
		}
	}
}

// append makes a batch durable. The times of records are at least a microsecond
// apart, which keeps their order.
func (s *Store) append(batch []*records.Appending) error {
	began := time.Now()
	cols := records.Columns(batch)
	at := max(now().UnixMicro(), s.last+1)
	err := s.db.write(func(w writer) error {
		for i := range cols[0] {
			args := []any{at + int64(i)}
			for _, c := range cols {
				args = append(args, c[i])
			}
			_, err := w.exec(`insert into history (at, stream, id, project, actor, subject_kind, subject_id, action, outcome, request, detail)
				values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, nullif(?11, ''))`, args...)
			if err != nil {
				return err
			}
		}
		return nil
	})
	if s.last = at + int64(len(cols[0])) - 1; err == nil {
		s.metrics.appended(len(cols[0]), time.Since(began))
	}
	return mapError(err, "append to the history")
}

// Records implements entity.History. Every filter is followed in the order of
// its index.
func (s *Store) Records(ctx context.Context, q entity.HistoryQuery) (page entity.HistoryPage, err error) {
	err = s.db.read(ctx, "list the history", func(tx *sql.Tx) error {
		page, err = records.List(q, func(q *entity.HistoryQuery, from records.Cursor) ([]entity.HistoryRecord, error) {
			query, args := dialect.SQL(q, from)
			var found []entity.HistoryRecord
			rows, err := tx.QueryContext(ctx, query, args...)
			err = eachRow(rows, err, func(row *sql.Rows) error {
				r := entity.HistoryRecord{Stream: q.Stream}
				var at int64
				var detail *string
				err := row.Scan(&at, &r.ID, &r.Project, &r.Actor, &r.SubjectKind, &r.SubjectID, &r.Action, &r.Outcome, &r.RequestID, &detail)
				if r.Time = time.UnixMicro(at).UTC(); detail != nil {
					r.Detail = json.RawMessage(*detail)
				}
				found = append(found, r)
				return err
			})
			return found, err
		})
		return err
	})
	return page, err
}

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

// RotateHistory drops the records that are older than keep; a stream that keep
// does not name has its default. The store does so by itself. What fails for one
// stream does not hold up the others.
func (s *Store) RotateHistory(ctx context.Context, keep map[entity.Stream]time.Duration) error {
	var errList []error
	for _, stream := range entity.Streams {
		before := now().Add(-records.Keep(keep, stream)).UnixMicro()
		errList = append(errList, s.deletePages(ctx, "rotate the history",
			`delete from history where rowid in (select rowid from history where stream = ?1 and at < ?2 limit ?3)`, string(stream), before))
	}
	return errors.Join(errList...)
}
