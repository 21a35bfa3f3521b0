package pgstore

import (
	"context"

	"github.com/jackc/pgx/v5"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/eval"
)

// sqlClosure looks for a reference that restricts the deletion of an entity
// that goes with the given ones, and whose own entity is not deleted with them.
// The transaction may change the references of the entities that it names.
const sqlClosure = `with recursive gone(kind, id) as (
		select kind collate "C", id collate "C" from unnest($1::text[], $2::text[]) k(kind, id)
		union
		select r.kind, r.id from gone g join entity_ref r on r.target_kind = g.kind and r.target_id = g.id where r.on_delete = 'cascade'
	)
	select r.target_kind, r.target_id, r.kind, r.id, r.attr
	from gone g join entity_ref r on r.target_kind = g.kind and r.target_id = g.id
	where r.on_delete = 'restrict' and not exists (select from gone o where o.kind = r.kind and o.id = r.id)
		and not exists (select from unnest($3::text[], $4::text[]) o(kind, id) where o.kind = r.kind and o.id = r.id)
		and exists (select from entity e where e.kind = r.kind and e.id = r.id)
	limit 1`

// checkClosure refuses a deletion that cannot be completed before any part of
// it is applied.
func (s *Store) checkClosure(ctx context.Context, t *eval.Txn) error {
	limited, cancel := context.WithTimeout(ctx, maintenanceTimeout)
	defer cancel()
	var kinds, ids, namedKinds, namedIDs []string
	for i := range t.Req.Ops {
		op := &t.Req.Ops[i]
		if op.Type == entity.OpDelete {
			kinds, ids = append(kinds, op.Record.Kind), append(ids, string(op.Record.ID))
		}
		namedKinds, namedIDs = append(namedKinds, op.Record.Kind), append(namedIDs, string(op.Record.ID))
	}
	if t.EndLease != "" {
		rows, err := s.pool.Query(limited, `select kind, id from entity where lease = $1`, string(t.EndLease))
		if err != nil {
			return callError(ctx, err, "read the entities of a lease")
		}
		var kind, id string
		if _, err := pgx.ForEachRow(rows, []any{&kind, &id}, func() error { kinds, ids = append(kinds, kind), append(ids, id); return nil }); err != nil {
			return callError(ctx, err, "read the entities of a lease")
		}
	}
	var target eval.Key
	var r eval.RefID
	err := s.pool.QueryRow(limited, sqlClosure, kinds, ids, namedKinds, namedIDs).Scan(&target.Kind, &target.ID, &r.From.Kind, &r.From.ID, &r.Attr)
	if err == pgx.ErrNoRows {
		return nil
	}
	if err != nil {
		return callError(ctx, err, "read what a deletion takes with it")
	}
	return eval.ErrInUse(target, r)
}
