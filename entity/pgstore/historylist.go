package pgstore

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/eval"
	"miren.dev/runtime/pkg/errs"
)

// historyCursor is the format of HistoryPage.Cursor: the last record that was
// shown.
type historyCursor struct {
	At int64  `cbor:"1,keyasint"` // microseconds since 1970
	ID string `cbor:"2,keyasint"`
}

// Records implements entity.History. Every filter is followed in the order of
// its index; the first that is given is the one that is followed.
func (s *Store) Records(ctx context.Context, q entity.HistoryQuery) (entity.HistoryPage, error) {
	from, err := checkHistoryQuery(&q)
	if err != nil {
		return entity.HistoryPage{}, err
	}
	return retryRead(ctx, s, "list the history", func(ctx context.Context) (entity.HistoryPage, error) {
		// Projects are followed one after the other, and merged: one index range each.
		lists := [][]string{nil}
		if q.Projects != nil {
			lists = nil
			for _, p := range slices.Compact(slices.Sorted(slices.Values(q.Projects))) {
				lists = append(lists, []string{p})
			}
		}
		var records []entity.HistoryRecord
		for _, projects := range lists {
			one := q
			one.Projects = projects
			found, err := s.historyRange(ctx, &one, from)
			if err != nil {
				return entity.HistoryPage{}, err
			}
			records = append(records, found...)
		}
		if len(lists) > 1 {
			slices.SortFunc(records, func(a, b entity.HistoryRecord) int {
				return cmp.Or(b.Time.Compare(a.Time), strings.Compare(b.ID, a.ID))
			})
		}
		page := entity.HistoryPage{Records: records}
		if len(records) > q.Limit {
			page.Records = records[:q.Limit:q.Limit]
			last := &records[q.Limit-1]
			b, err := eval.EncMode.Marshal(historyCursor{At: last.Time.UnixMicro(), ID: last.ID})
			if err != nil {
				return entity.HistoryPage{}, err
			}
			page.Cursor = base64.RawURLEncoding.EncodeToString(b)
		}
		return page, nil
	})
}

// checkHistoryQuery sets the limit, and returns where the listing stands.
func checkHistoryQuery(q *entity.HistoryQuery) (historyCursor, error) {
	var from historyCursor
	if !slices.Contains(entity.Streams, q.Stream) {
		return from, errs.New(errs.InvalidArgument, "there is no history %q", q.Stream).WithHint("histories are %v", entity.Streams)
	}
	for _, v := range append([]string{q.Actor, q.SubjectKind, q.SubjectID, q.Action}, q.Projects...) {
		if !eval.Storable(v) {
			return from, errs.New(errs.InvalidArgument, "%q is not text", v)
		}
	}
	if q.Limit < 0 {
		return from, errs.New(errs.InvalidArgument, "a negative limit")
	}
	if q.Limit == 0 || q.Limit > entity.MaxHistoryPage {
		q.Limit = entity.MaxHistoryPage
	}
	if q.Cursor != "" {
		b, err := base64.RawURLEncoding.DecodeString(q.Cursor)
		if err != nil || eval.DecMode.Unmarshal(b, &from) != nil || from.ID == "" || !eval.Storable(from.ID) {
			return from, errs.New(errs.InvalidArgument, "this cursor is not of a list of history")
		}
	}
	return from, nil
}

// historySQL is the statement for a query of at most one project: one more
// record than the limit, newest first.
func historySQL(q *entity.HistoryQuery, from historyCursor) (sql string, args []any) {
	var where []string
	cond := func(format string, values ...any) {
		at := make([]any, len(values))
		for i, v := range values {
			args = append(args, v)
			at[i] = len(args)
		}
		where = append(where, fmt.Sprintf(format, at...))
	}
	for _, p := range q.Projects {
		cond("project = $%d", p)
	}
	for _, f := range []struct{ column, value string }{
		{"actor", q.Actor}, {"subject_kind", q.SubjectKind}, {"subject_id", q.SubjectID}, {"action", q.Action},
	} {
		if f.value != "" {
			cond(f.column+" = $%d", f.value)
		}
	}
	if !q.Since.IsZero() {
		cond("at >= $%d", q.Since)
	}
	if !q.Until.IsZero() {
		cond("at < $%d", q.Until)
	}
	if from.ID != "" {
		cond("(at, id) < ($%d, $%d)", time.UnixMicro(from.At), from.ID)
		cond("at <= $%d", time.UnixMicro(from.At)) // leaves out whole days
	}
	sql = `select at, id, project, actor, subject_kind, subject_id, action, outcome, request, detail from history_` + string(q.Stream)
	if len(where) > 0 {
		sql += " where " + strings.Join(where, " and ")
	}
	return sql + fmt.Sprintf(" order by at desc, id desc limit %d", q.Limit+1), args
}

func (s *Store) historyRange(ctx context.Context, q *entity.HistoryQuery, from historyCursor) ([]entity.HistoryRecord, error) {
	sql, args := historySQL(q, from)
	rows, err := s.pool.Query(ctx, sql, args...)
	if err == nil {
		var records []entity.HistoryRecord
		if records, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (entity.HistoryRecord, error) {
			r := entity.HistoryRecord{Stream: q.Stream}
			var detail *string
			err := row.Scan(&r.Time, &r.ID, &r.Project, &r.Actor, &r.SubjectKind, &r.SubjectID, &r.Action, &r.Outcome, &r.RequestID, &detail)
			if r.Time = r.Time.UTC(); detail != nil {
				r.Detail = json.RawMessage(*detail)
			}
			return r, err
		}); err == nil {
			return records, nil
		}
	}
	if undefinedTable(err) {
		return s.historyRange(ctx, q, from) // a partition was dropped meanwhile; now the plan knows
	}
	return nil, err
}
