package sqlitestore

import (
	"context"
	"database/sql"
	"encoding/json"

	"miren.dev/runtime/entity/eval"
	"miren.dev/runtime/entity/feed"
	"miren.dev/runtime/pkg/schema"
)

// sqlReadLog reads one page of the log up to a revision; null kinds or ids
// select everything. They are arrays of JSON.
const sqlReadLog = `select revision, type, record, departed from log
	where revision > ?1 and revision <= ?2 and (?3 is null or kind in (select value from json_each(?3)))
		and (?4 is null or id in (select value from json_each(?4)))
	order by revision, seq limit ?5`

// source is the Store as its hub sees it.
type source struct{ s *Store }

// Poll implements feed.Source: the hub lacks nothing.
func (src source) Poll(context.Context) error { return nil }

// Position implements feed.Source.
func (src source) Position(ctx context.Context) (p feed.Position, err error) {
	err = src.s.db.read(ctx, "read the store's position", func(tx *sql.Tx) error {
		var rev, floor int64
		err := tx.QueryRowContext(ctx, `select revision, epoch, floor from store`).Scan(&rev, &p.Epoch, &floor)
		p.Last, p.Floor = schema.Revision(rev), schema.Revision(floor)
		return err
	})
	return p, err
}

// Changes implements feed.Source.
func (src source) Changes(ctx context.Context, epoch string, from, to schema.Revision, kinds []string, ids []schema.ID) ([]feed.Entry, schema.Revision, error) {
	var filters [2]any
	for i, list := range []any{kinds, ids} {
		if len(kinds) > 0 && i == 0 || len(ids) > 0 && i == 1 {
			b, err := json.Marshal(list)
			if err != nil {
				return nil, 0, err
			}
			filters[i] = string(b)
		}
	}
	return feed.WholeRevisions(to, func(limit int) (entries []feed.Entry, err error) {
		err = src.s.db.read(ctx, "watch", func(tx *sql.Tx) error {
			var floor int64
			var now string
			if err := tx.QueryRowContext(ctx, `select floor, epoch from store`).Scan(&floor, &now); err != nil {
				return err
			}
			token := schema.Token{Epoch: epoch, Revision: from}
			switch {
			case now != epoch:
				return eval.Compacted(token, "the store began a new epoch")
			case from < schema.Revision(floor):
				return eval.Compacted(token, "the log was compacted")
			}
			rows, err := tx.QueryContext(ctx, sqlReadLog, int64(from), int64(to), filters[0], filters[1], limit)
			return eachRow(rows, err, func(r *sql.Rows) error {
				var rev int64
				var typ int16
				var raw, departed []byte
				if err := r.Scan(&rev, &typ, &raw, &departed); err != nil {
					return err
				}
				e, err := src.s.hub.DecodeEntry(rev, typ, raw, departed)
				entries = append(entries, e)
				return err
			})
		})
		return entries, err
	})
}
