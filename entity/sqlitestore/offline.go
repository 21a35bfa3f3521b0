package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"io/fs"
	"os"
	"time"

	"miren.dev/runtime/entity/eval"
	"miren.dev/runtime/entity/transfer"
	"miren.dev/runtime/pkg/schema"
)

// Offline is a file that no server uses, without background work.
type Offline struct{ db *database }

var _ transfer.Store = (*Offline)(nil)

// OpenOffline opens the file and migrates it. If it is not to be created, NotFound
// says that there is none. FailedPrecondition: another process has it open.
func OpenOffline(ctx context.Context, path string, create bool) (*Offline, error) {
	if _, err := os.Stat(path); !create && errors.Is(err, fs.ErrNotExist) {
		return nil, transfer.NoStore(path)
	}
	db, err := openDatabase(ctx, path, 1, 10*time.Second, syncFull)
	if err != nil {
		return nil, err
	}
	if err := db.migrate(); err != nil {
		db.close()
		return nil, mapError(err, "migrate the store")
	}
	return &Offline{db}, nil
}

// Close closes the file.
func (o *Offline) Close() { o.db.close() }

// Read implements transfer.Store.
func (o *Offline) Read(ctx context.Context, f func(transfer.Item) error) (schema.Revision, error) {
	var rev int64
	err := o.db.read(ctx, "read the store", func(tx *sql.Tx) error {
		if err := tx.QueryRowContext(ctx, `select revision from store`).Scan(&rev); err != nil {
			return err
		}
		rows, err := tx.QueryContext(ctx, `select id, ttl, ended from lease`)
		err = eachRow(rows, err, func(r *sql.Rows) error {
			l := &transfer.Lease{}
			if err := r.Scan(&l.ID, &l.TTL, &l.Ended); err != nil {
				return err
			}
			return f(transfer.Item{Lease: l})
		})
		if err != nil {
			return err
		}
		rows, err = tx.QueryContext(ctx, `select record from entity order by kind, id`)
		return eachRow(rows, err, func(r *sql.Rows) error {
			var raw []byte
			if err := r.Scan(&raw); err != nil {
				return err
			}
			x, err := eval.DecodeObject(raw)
			if err != nil {
				return err
			}
			return f(transfer.Item{Entity: x})
		})
	})
	return schema.Revision(rev), err
}

// Write implements transfer.Store, in one transaction.
func (o *Offline) Write(_ context.Context, fill func(put func(transfer.Item) error) (schema.Revision, error)) error {
	err := o.db.write(func(w writer) error {
		var used bool
		if err := w.query(`select revision > 0 or exists (select 1 from entity) or exists (select 1 from lease) from store`,
			func(r *sql.Rows) error { return r.Scan(&used) }); err != nil {
			return err
		}
		if used {
			return transfer.NotEmpty()
		}
		rev, err := fill(func(it transfer.Item) error {
			if l := it.Lease; l != nil {
				_, err := w.exec(`insert into lease (id, ttl, ended) values (?1, ?2, ?3)`, string(l.ID), int64(l.TTL), l.Ended)
				return err
			}
			return w.entities(eval.EntityDiff{Insert: []*eval.Object{it.Entity}})
		})
		if err != nil {
			return err
		}
		// The next Open indexes every kind.
		if _, err := w.exec(`delete from kind_index`); err != nil {
			return err
		}
		_, err = w.exec(`update store set revision = ?1, floor = ?1, epoch = ''`, int64(rev))
		return err
	})
	return mapError(err, "write the store")
}
