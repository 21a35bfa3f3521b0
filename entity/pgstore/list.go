package pgstore

import (
	"context"

	"github.com/jackc/pgx/v5"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/listing"
	"miren.dev/runtime/pkg/schema"
)

// List implements entity.Reader. Later pages show the store as it was at the
// revision of the first: changes since then are undone from the log.
func (s *Store) List(ctx context.Context, q entity.Query) (entity.Page, error) {
	l, err := listing.New(s.eval, q, "$%d")
	if err != nil {
		return entity.Page{}, err
	}
	return retryRead(ctx, s, "list "+q.Kind, func(ctx context.Context) (entity.Page, error) { return s.listPage(ctx, l) })
}

// listPage reads everything in one snapshot and one round trip.
func (s *Store) listPage(ctx context.Context, l *listing.Listing) (entity.Page, error) {
	r := l.Rows()
	var now, floor int64
	b := &pgx.Batch{}
	b.Queue(`begin isolation level repeatable read read only`)
	b.Queue(`select revision, epoch from store`).QueryRow(func(row pgx.Row) error { return row.Scan(&now, &r.Epoch) })
	sql, args := l.SQL()
	b.Queue(sql, args...).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			var raw, value []byte
			if err := rows.Scan(&raw, &value); err != nil {
				return err
			}
			if err := r.Add(raw, value); err != nil {
				return err
			}
		}
		return rows.Err()
	})
	if !l.First() {
		since, kind, after := l.Past()
		b.Queue(sqlPast, int64(since), kind, after).Query(func(rows pgx.Rows) error {
			for rows.Next() {
				var raw []byte
				if err := rows.Scan(&raw); err != nil {
					return err
				}
				if err := r.AddPast(raw); err != nil {
					return err
				}
			}
			return rows.Err()
		})
	}
	b.Queue(sqlCommit)
	// In a snapshot of its own, after the log was read: see readLogPage.
	b.Queue(`select c.floor, s.epoch from compaction c, store s`).QueryRow(func(row pgx.Row) error { return row.Scan(&floor, &r.EpochAfter) })
	if err := s.pool.SendBatch(ctx, b).Close(); err != nil {
		return entity.Page{}, err
	}
	r.Revision, r.Floor = schema.Revision(now), schema.Revision(floor)
	return r.Page()
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
	from (select distinct on (l.id) l.kind, l.id, l.type, l.prev_revision, l.record, l.prev from log l
		where l.revision > $1 and l.kind = $2 and l.id > $3 order by l.id, l.revision, l.seq) c
	where c.prev_revision > 0`
