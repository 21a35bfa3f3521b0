package pgstore

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/records"
)

var dialect = records.Dialect{Param: "$%d", Time: func(t time.Time) any { return t }}

// Records implements entity.History. Every filter is followed in the order of
// its index; the first that is given is the one that is followed.
func (s *Store) Records(ctx context.Context, q entity.HistoryQuery) (entity.HistoryPage, error) {
	return retryRead(ctx, s, "list the history", func(ctx context.Context) (entity.HistoryPage, error) {
		return records.List(q, func(q *entity.HistoryQuery, from records.Cursor) ([]entity.HistoryRecord, error) {
			return s.historyRange(ctx, q, from)
		})
	})
}

func (s *Store) historyRange(ctx context.Context, q *entity.HistoryQuery, from records.Cursor) ([]entity.HistoryRecord, error) {
	sql, args := dialect.SQL(q, from)
	rows, err := s.pool.Query(ctx, sql, args...)
	if err == nil {
		var found []entity.HistoryRecord
		if found, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (entity.HistoryRecord, error) {
			r := entity.HistoryRecord{Stream: q.Stream}
			var detail *string
			err := row.Scan(&r.Time, &r.ID, &r.Project, &r.Actor, &r.SubjectKind, &r.SubjectID, &r.Action, &r.Outcome, &r.RequestID, &detail)
			if r.Time = r.Time.UTC(); detail != nil {
				r.Detail = json.RawMessage(*detail)
			}
			return r, err
		}); err == nil {
			return found, nil
		}
	}
	if undefinedTable(err) {
		return s.historyRange(ctx, q, from) // a partition was dropped meanwhile; now the plan knows
	}
	return nil, err
}
