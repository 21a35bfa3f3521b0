package sqlitestore

import (
	"database/sql"

	"miren.dev/runtime/entity/eval"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// reindexPage is how many entities are read at once.
const reindexPage = 500

// reindex rebuilds the extracted values of the kinds whose indexed attributes
// have changed since a program last opened the store, so that a newly indexed
// attribute finds old entities too.
func (s *Store) reindex() error {
	for _, k := range s.cfg.Kinds {
		if err := s.db.write(func(w writer) error { return s.reindexKind(w, k) }); err != nil {
			return errs.Wrap(mapError(err, "write"), "index the %s again", k.Plural)
		}
	}
	return nil
}

func (s *Store) reindexKind(w writer, k *schema.Kind) error {
	var have string
	if err := w.query(`select fingerprint from kind_index where kind = ?1`, func(r *sql.Rows) error { return r.Scan(&have) }, k.Name); err != nil {
		return err
	}
	if have == eval.Fingerprint(k) {
		return errRollback
	}
	for _, table := range []string{"entity_index", "entity_unique", "entity_ref"} {
		if _, err := w.exec(`delete from `+table+` where kind = ?1`, k.Name); err != nil {
			return err
		}
	}
	after, total := "", 0
	for {
		v := s.eval.NewView()
		err := w.query(`select record from entity where kind = ?1 and id > ?2 order by id limit ?3`, func(r *sql.Rows) error {
			var raw []byte
			if err := r.Scan(&raw); err != nil {
				return err
			}
			o, err := eval.DecodeObject(raw)
			if err != nil {
				return err
			}
			s.eval.ExtractOld(k, o)
			key := eval.KeyOf(o.Rec)
			v.Origin[key], v.Objects[key] = nil, o
			after = max(after, key.ID)
			return nil
		}, k.Name, after, reindexPage)
		if err != nil {
			return err
		}
		if len(v.Origin) == 0 {
			break
		}
		if err := w.keys(v.KeyDiff()); err != nil {
			return err
		}
		total += len(v.Origin)
	}
	if total > 0 {
		s.logger.Info("indexed entities again", "kind", k.Name, "entities", total)
	}
	_, err := w.exec(`insert into kind_index (kind, fingerprint) values (?1, ?2) on conflict (kind) do update set fingerprint = excluded.fingerprint`,
		k.Name, eval.Fingerprint(k))
	return err
}
