package sqlitestore

import (
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/records"
)

// HistorySQL is the statement of a list, for tests of its plan.
func HistorySQL(q entity.HistoryQuery) (string, []any) { return dialect.SQL(&q, records.Cursor{}) }

// Pragma returns a setting of the connection that writes.
func (s *Store) Pragma(name string) (value string, err error) {
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	err = s.db.conn.QueryRowContext(bg, "pragma "+name).Scan(&value)
	return value, err
}
