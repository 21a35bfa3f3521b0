package pgstore

import (
	"context"

	"github.com/jackc/pgx/v5"

	"miren.dev/runtime/entity/eval"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// reindexPage is how many entities are read at once.
const reindexPage = 500

// reindex rebuilds the extracted values of the kinds whose indexed attributes
// have changed since a program last opened the store, so that a newly indexed
// attribute finds old entities too.
func (s *Store) reindex(ctx context.Context) error {
	rows, err := s.pool.Query(ctx, `select kind, fingerprint from kind_index`)
	if err != nil {
		return mapError(err, "read what is indexed")
	}
	have := map[string]string{}
	var kind, fp string
	if _, err := pgx.ForEachRow(rows, []any{&kind, &fp}, func() error { have[kind] = fp; return nil }); err != nil {
		return mapError(err, "read what is indexed")
	}
	for _, k := range s.cfg.Kinds {
		if have[k.Name] == eval.Fingerprint(k) {
			continue
		}
		err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error { return s.reindexKind(ctx, tx, k) })
		if err != nil {
			return errs.Wrap(mapError(err, "write"), "index the %s again", k.Plural)
		}
	}
	return nil
}

// reindexKind holds the counter row, so that no writer runs meanwhile.
func (s *Store) reindexKind(ctx context.Context, tx pgx.Tx, k *schema.Kind) error {
	if _, err := tx.Exec(ctx, sqlLock); err != nil {
		return err
	}
	for _, table := range []string{"entity_index", "entity_unique", "entity_ref"} {
		if _, err := tx.Exec(ctx, `delete from `+table+` where kind = $1`, k.Name); err != nil {
			return err
		}
	}
	after, total := "", 0
	for {
		rows, err := tx.Query(ctx, `select record from entity where kind = $1 and id > $2 order by id limit $3`, k.Name, after, reindexPage)
		if err != nil {
			return err
		}
		raws, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
		if err != nil {
			return err
		}
		if len(raws) == 0 {
			break
		}
		v := s.eval.NewView()
		for _, raw := range raws {
			o, err := eval.DecodeObject(raw)
			if err != nil {
				return err
			}
			s.eval.ExtractOld(k, o)
			key := eval.KeyOf(o.Rec)
			v.Origin[key], v.Objects[key] = nil, o
			after = key.ID
		}
		b := &pgx.Batch{}
		queueKeys(b, v.KeyDiff())
		if b.Len() > 0 {
			if err := tx.SendBatch(ctx, b).Close(); err != nil {
				return err
			}
		}
		total += len(raws)
	}
	if total > 0 {
		s.logger.Info("indexed entities again", "kind", k.Name, "entities", total)
	}
	_, err := tx.Exec(ctx, `insert into kind_index (kind, fingerprint) values ($1, $2) on conflict (kind) do update set fingerprint = excluded.fingerprint`,
		k.Name, eval.Fingerprint(k))
	return err
}
