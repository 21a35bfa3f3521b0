package pgstore

import "miren.dev/runtime/entity"

// HistorySQL is the statement of a list, for tests of its plan.
func HistorySQL(q entity.HistoryQuery, cursor string) (string, []any, error) {
	q.Cursor = cursor
	from, err := checkHistoryQuery(&q)
	sql, args := historySQL(&q, from)
	return sql, args, err
}
