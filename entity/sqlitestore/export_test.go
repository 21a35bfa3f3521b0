package sqlitestore

import (
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/records"
)

// HistorySQL is the statement of a list, for tests of its plan.
func HistorySQL(q entity.HistoryQuery) (string, []any) { return dialect.SQL(&q, records.Cursor{}) }
