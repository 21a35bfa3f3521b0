package sqlitestore

import (
	"context"
	"database/sql"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/listing"
	"miren.dev/runtime/pkg/schema"
)

// List implements entity.Reader. Later pages show the store as it was at the
// revision of the first: changes since then are undone from the log.
func (s *Store) List(ctx context.Context, q entity.Query) (entity.Page, error) {
	l, err := listing.New(s.eval, q, "?%d")
	if err != nil {
		return entity.Page{}, err
	}
	var page entity.Page
	err = s.db.read(ctx, "list "+q.Kind, func(tx *sql.Tx) error {
		r := l.Rows()
		var rev, floor int64
		if err := tx.QueryRowContext(ctx, `select revision, epoch, floor from store`).Scan(&rev, &r.Epoch, &floor); err != nil {
			return err
		}
		// The floor moves in the transaction that drops what is below it, so one
		// snapshot is enough.
		r.Revision, r.Floor, r.EpochAfter = schema.Revision(rev), schema.Revision(floor), r.Epoch
		query, args := l.SQL()
		rows, err := tx.QueryContext(ctx, query, args...)
		err = eachRow(rows, err, func(row *sql.Rows) error {
			var raw, value []byte
			if err := row.Scan(&raw, &value); err != nil {
				return err
			}
			return r.Add(raw, value)
		})
		if err != nil {
			return err
		}
		if !l.First() {
			since, kind, after := l.Past()
			rows, err := tx.QueryContext(ctx, sqlPast, int64(since), kind, after)
			err = eachRow(rows, err, func(row *sql.Rows) error {
				var raw []byte
				if err := row.Scan(&raw); err != nil {
					return err
				}
				return r.AddPast(raw)
			})
			if err != nil {
				return err
			}
		}
		page, err = r.Page()
		return err
	})
	return page, err
}

// sqlPast selects, for every entity of a kind that changed after a revision,
// its state at that revision: the state before its first change since. For a
// deletion the log has it as the record; for an update it is prev, or an entry
// of its own that is recent enough to be still there.
const sqlPast = `select case
		when c.type = 2 then c.record
		when c.prev is not null then c.prev
		else (select p.record from log p where p.revision = c.prev_revision and p.kind = c.kind and p.id = c.id)
	end
	from (select l.kind, l.id, l.type, l.prev_revision, l.record, l.prev, row_number() over (partition by l.id order by l.revision, l.seq) as n
		from log l where l.revision > ?1 and l.kind = ?2 and l.id > ?3) c
	where c.n = 1 and c.prev_revision > 0`
