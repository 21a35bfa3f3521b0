// Package records keeps what the histories of entity stores have in common,
// whatever their databases are: it imports none.
package records

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"time"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/eval"
	"miren.dev/runtime/pkg/errs"
)

// Cursor is the format of HistoryPage.Cursor: the last record that was
// shown.
type Cursor struct {
	At int64  `cbor:"1,keyasint"` // microseconds since 1970
	ID string `cbor:"2,keyasint"`
}

// List makes a page. read returns what SQL selects for a query of at most one
// project, of which list makes one for each project of q. Errors:
// InvalidArgument, and those of read.
func List(q entity.HistoryQuery, read func(q *entity.HistoryQuery, from Cursor) ([]entity.HistoryRecord, error)) (entity.HistoryPage, error) {
	from, err := Check(&q)
	if err != nil {
		return entity.HistoryPage{}, err
	}
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
		found, err := read(&one, from)
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
		b, err := eval.EncMode.Marshal(Cursor{At: last.Time.UnixMicro(), ID: last.ID})
		if err != nil {
			return entity.HistoryPage{}, err
		}
		page.Cursor = base64.RawURLEncoding.EncodeToString(b)
	}
	return page, nil
}

// Check sets the limit, and returns where the listing stands.
func Check(q *entity.HistoryQuery) (Cursor, error) {
	var from Cursor
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

// Dialect is how a database spells a statement.
type Dialect struct {
	Param string              // format of a numbered parameter: "$%d" or "?%d"
	Time  func(time.Time) any // a time as a parameter
}

// SQL is the statement for a query of at most one project: one more record than
// the limit, newest first. It reads the table history_ and the stream.
func (d Dialect) SQL(q *entity.HistoryQuery, from Cursor) (sql string, args []any) {
	var where []string
	cond := func(format string, values ...any) {
		params := make([]any, len(values))
		for i, v := range values {
			args = append(args, v)
			params[i] = fmt.Sprintf(d.Param, len(args))
		}
		where = append(where, fmt.Sprintf(format, params...))
	}
	for _, p := range q.Projects {
		cond("project = %s", p)
	}
	for _, f := range []struct{ column, value string }{
		{"actor", q.Actor}, {"subject_kind", q.SubjectKind}, {"subject_id", q.SubjectID}, {"action", q.Action},
	} {
		if f.value != "" {
			cond(f.column+" = %s", f.value)
		}
	}
	if !q.Since.IsZero() {
		cond("at >= %s", d.Time(q.Since))
	}
	if !q.Until.IsZero() {
		cond("at < %s", d.Time(q.Until))
	}
	if from.ID != "" {
		cond("(at, id) < (%s, %s)", d.Time(time.UnixMicro(from.At)), from.ID)
		cond("at <= %s", d.Time(time.UnixMicro(from.At))) // leaves out whole days
	}
	sql = `select at, id, project, actor, subject_kind, subject_id, action, outcome, request, detail from history_` + string(q.Stream)
	if len(where) > 0 {
		sql += " where " + strings.Join(where, " and ")
	}
	return sql + fmt.Sprintf(" order by at desc, id desc limit %d", q.Limit+1), args
}
