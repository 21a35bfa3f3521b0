package sqlitestore

import (
	"context"
	"database/sql"
	"encoding/json"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/eval"
)

// sqlClosure looks for a reference that restricts the deletion of an entity
// that goes with the given ones, and whose own entity is not deleted with them.
// The transaction may change the references of the entities that it names. The
// entities are arrays of JSON: [[kind, id], ...].
const sqlClosure = `with recursive gone(kind, id) as (
		select value ->> 0, value ->> 1 from json_each(?1)
		union
		select kind, id from entity where lease = ?3
		union
		select r.kind, r.id from gone g join entity_ref r on r.target_kind = g.kind and r.target_id = g.id where r.on_delete = 'cascade'
	)
	select r.target_kind, r.target_id, r.kind, r.id, r.attr
	from gone g join entity_ref r on r.target_kind = g.kind and r.target_id = g.id
	where r.on_delete = 'restrict' and not exists (select 1 from gone o where o.kind = r.kind and o.id = r.id)
		and not exists (select 1 from json_each(?2) o where o.value ->> 0 = r.kind and o.value ->> 1 = r.id)
		and exists (select 1 from entity e where e.kind = r.kind and e.id = r.id)
	limit 1`

// checkClosure refuses a deletion that cannot be completed before any part of
// it is applied.
func (s *Store) checkClosure(ctx context.Context, t *eval.Txn) error {
	deleted, named := [][2]string{}, [][2]string{}
	for i := range t.Req.Ops {
		op := &t.Req.Ops[i]
		k := [2]string{op.Record.Kind, string(op.Record.ID)}
		if op.Type == entity.OpDelete {
			deleted = append(deleted, k)
		}
		named = append(named, k)
	}
	var args []any
	for _, list := range [][][2]string{deleted, named} {
		b, err := json.Marshal(list)
		if err != nil {
			return err
		}
		args = append(args, string(b))
	}
	args = append(args, nil)
	if t.EndLease != "" {
		args[2] = string(t.EndLease)
	}
	return s.db.read(ctx, "read what a deletion takes with it", func(tx *sql.Tx) error {
		var target eval.Key
		var r eval.RefID
		err := tx.QueryRowContext(ctx, sqlClosure, args...).Scan(&target.Kind, &target.ID, &r.From.Kind, &r.From.ID, &r.Attr)
		switch err {
		case nil:
			return eval.ErrInUse(target, r)
		case sql.ErrNoRows:
			return nil
		}
		return err
	})
}
