package sqlitestore

import (
	"database/sql"
	"embed"
	"fmt"
	"io/fs"

	"miren.dev/runtime/pkg/errs"
)

//go:embed migrations/*.sql
var migrations embed.FS

// migrate brings the file to the newest schema. SQLite keeps its version.
func (d *database) migrate() error {
	steps, err := fs.Glob(migrations, "migrations/*.sql") // sorted
	if err != nil {
		return err
	}
	return d.write(func(w writer) error {
		var have int
		if err := w.query("pragma user_version", func(r *sql.Rows) error { return r.Scan(&have) }); err != nil {
			return mapError(err, "read the version of the store")
		}
		if have > len(steps) {
			return errs.New(errs.FailedPrecondition, "the store has schema version %d, newer than the %d this program knows", have, len(steps)).
				WithHint("run the version of runtime that wrote it, or a newer one")
		}
		if have == len(steps) {
			return errRollback
		}
		for _, name := range steps[have:] {
			b, err := fs.ReadFile(migrations, name)
			if err != nil {
				return err
			}
			if _, err := w.d.conn.ExecContext(bg, string(b)); err != nil {
				return mapError(err, "migrate the store: "+name)
			}
		}
		_, err := w.d.conn.ExecContext(bg, fmt.Sprintf("pragma user_version = %d", len(steps)))
		return mapError(err, "migrate the store")
	})
}
