package pgstore

import (
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/records"
)

// HistorySQL is the statement of a list, for tests of its plan.
func HistorySQL(q entity.HistoryQuery, cursor string) (string, []any, error) {
	q.Cursor = cursor
	from, err := records.Check(&q)
	sql, args := dialect.SQL(&q, from)
	return sql, args, err
}
