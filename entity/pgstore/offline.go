package pgstore

import (
	"context"

	"github.com/jackc/pgx/v5"

	"miren.dev/runtime/entity/eval"
	"miren.dev/runtime/entity/transfer"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// offlinePage is how many entities one statement inserts.
const offlinePage = 200

// Offline is a database that no server uses, without background work.
type Offline struct{ conn *pgx.Conn }

var _ transfer.Store = (*Offline)(nil)

// OpenOffline connects to the database and migrates it. If it is not to be
// created, NotFound says that it has no store.
func OpenOffline(ctx context.Context, url string, create bool) (*Offline, error) {
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, errs.New(errs.InvalidArgument, "store URL: %w", err)
	}
	setParams(cfg)
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, mapError(err, "connect to the store")
	}
	o := &Offline{conn}
	var found bool
	if err = conn.QueryRow(ctx, `select to_regclass($1) is not null`, namespace+".store").Scan(&found); err == nil {
		if found || create {
			err = Migrate(ctx, url)
		} else {
			err = transfer.NoStore("the database " + cfg.Database)
		}
	}
	if err != nil {
		o.Close()
		return nil, mapError(err, "open the store")
	}
	return o, nil
}

// Close closes the connection.
func (o *Offline) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), connectTimeout)
	defer cancel()
	_ = o.conn.Close(ctx) // what is not committed is undone
}

// Read implements transfer.Store.
func (o *Offline) Read(ctx context.Context, f func(transfer.Item) error) (schema.Revision, error) {
	var rev int64
	err := pgx.BeginTxFunc(ctx, o.conn, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, `select revision from store`).Scan(&rev); err != nil {
			return err
		}
		var l transfer.Lease
		rows, err := tx.Query(ctx, `select id, ttl, expires = '-infinity' from lease`)
		if err != nil {
			return err
		}
		if _, err := pgx.ForEachRow(rows, []any{&l.ID, &l.TTL, &l.Ended}, func() error {
			one := l
			return f(transfer.Item{Lease: &one})
		}); err != nil {
			return err
		}
		rows, err = tx.Query(ctx, `select record from entity`)
		if err != nil {
			return err
		}
		var raw []byte
		_, err = pgx.ForEachRow(rows, []any{&raw}, func() error {
			x, err := eval.DecodeObject(raw)
			if err != nil {
				return err
			}
			return f(transfer.Item{Entity: x})
		})
		return err
	})
	return schema.Revision(rev), offlineError(ctx, err, "read the store")
}

// Write implements transfer.Store, in one transaction.
func (o *Offline) Write(ctx context.Context, fill func(put func(transfer.Item) error) (schema.Revision, error)) error {
	err := pgx.BeginFunc(ctx, o.conn, func(tx pgx.Tx) error {
		var used bool
		if _, err := tx.Exec(ctx, sqlLock); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, `select revision > 0 or exists (select from entity) or exists (select from lease) from store`).Scan(&used); err != nil {
			return err
		}
		if used {
			return transfer.NotEmpty()
		}
		var page []*eval.Object
		flush := func() error {
			b := &pgx.Batch{}
			queueEntities(b, eval.EntityDiff{Insert: page})
			page = page[:0]
			if b.Len() == 0 {
				return nil
			}
			return tx.SendBatch(ctx, b).Close()
		}
		rev, err := fill(func(it transfer.Item) error {
			if l := it.Lease; l != nil {
				_, err := tx.Exec(ctx, `insert into lease (id, ttl, expires) values ($1, $2, case when $3 then '-infinity' else clock_timestamp() + $2 end)`,
					string(l.ID), l.TTL, l.Ended)
				return err
			}
			if page = append(page, it.Entity); len(page) < offlinePage {
				return nil
			}
			return flush()
		})
		if err == nil {
			err = flush()
		}
		if err != nil {
			return err
		}
		b := &pgx.Batch{}
		// The next Open indexes every kind, and gives leases their full time.
		b.Queue(`delete from kind_index`)
		b.Queue(`update expirer set at = 'epoch'`)
		b.Queue(`update compaction set floor = $1`, int64(rev))
		b.Queue(`update store set revision = $1, epoch = ''`, int64(rev))
		return tx.SendBatch(ctx, b).Close()
	})
	return offlineError(ctx, err, "write the store")
}

// offlineError gives an error its class.
func offlineError(ctx context.Context, err error, doing string) error {
	if err != nil && ctx.Err() != nil {
		return eval.ContextError(ctx, doing)
	}
	return mapError(err, doing)
}
