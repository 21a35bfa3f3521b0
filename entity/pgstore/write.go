package pgstore

import (
	"github.com/jackc/pgx/v5"

	"miren.dev/runtime/entity/eval"
)

const (
	sqlInsertEntities = `insert into entity (kind, id, project, lease, revision, record)
		select kind, id, project, nullif(lease, ''), revision, record
		from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::bytea[]) k(kind, id, project, lease, revision, record)`
	sqlUpdateEntities = `update entity e set project = k.project, lease = nullif(k.lease, ''), revision = k.revision, record = k.record
		from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::bytea[]) k(kind, id, project, lease, revision, record)
		where e.kind = k.kind and e.id = k.id`
	sqlDeleteEntities = `delete from entity e using unnest($1::text[], $2::text[]) k(kind, id) where e.kind = k.kind and e.id = k.id`
	sqlDeleteIndex    = `delete from entity_index e using unnest($1::text[], $2::text[], $3::bytea[], $4::text[]) k(kind, attr, value, id)
		where e.kind = k.kind and e.attr = k.attr and e.value = k.value and e.id = k.id`
	sqlInsertIndex = `insert into entity_index (kind, attr, value, id) select * from unnest($1::text[], $2::text[], $3::bytea[], $4::text[]) on conflict do nothing`
	// The id protects a value that has got a new owner meanwhile.
	sqlDeleteUnique = `delete from entity_unique e using unnest($1::text[], $2::text[], $3::bytea[], $4::text[], $5::text[]) k(kind, attr, value, scope, id)
		where e.kind = k.kind and e.attr = k.attr and e.value = k.value and e.scope = k.scope and e.id = k.id`
	sqlInsertUnique = `insert into entity_unique (kind, attr, value, scope, id) select * from unnest($1::text[], $2::text[], $3::bytea[], $4::text[], $5::text[])
		on conflict (kind, attr, value, scope) do update set id = excluded.id`
	sqlDeleteRefs = `delete from entity_ref e using unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[]) k(target_kind, target_id, kind, id, attr)
		where e.target_kind = k.target_kind and e.target_id = k.target_id and e.kind = k.kind and e.id = k.id and e.attr = k.attr`
	sqlInsertRefs = `insert into entity_ref (target_kind, target_id, kind, id, attr, on_delete)
		select * from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[])
		on conflict (target_kind, target_id, kind, id, attr) do update set on_delete = excluded.on_delete`
	sqlInsertLog = `insert into log (revision, seq, batch, type, kind, id, prev_revision, record, prev, departed, request, request_hash)
		select revision, seq, $3, type, kind, id, prev_revision, record, prev, departed, nullif(request, ''), request_hash
		from unnest($1::bigint[], $2::int[], $4::smallint[], $5::text[], $6::text[], $7::bigint[], $8::bytea[], $9::bytea[], $10::bytea[], $11::text[], $12::bytea[])
		k(revision, seq, type, kind, id, prev_revision, record, prev, departed, request, request_hash)`
	sqlDeleteLeases = `delete from lease where id = any($1::text[])`
	// A lease with entities left is not renewed any more.
	sqlEndLeases   = `update lease set expires = '-infinity' where id = any($1::text[])`
	sqlSetRevision = `update store set revision = $1`
	sqlNotify      = `notify runtime_store`
	sqlCommit      = `commit`
)

// queueWrites adds the statements that make the batch durable. The last one is
// the commit.
func queueWrites(b *pgx.Batch, out *eval.Outcome, tag int64) error {
	queueEntities(b, out.View.EntityDiff())
	queueKeys(b, out.View.KeyDiff())
	ended, ending := out.Leases()
	if len(ended) > 0 {
		b.Queue(sqlDeleteLeases, ended)
	}
	if len(ending) > 0 {
		b.Queue(sqlEndLeases, ending)
	}
	rows, err := out.LogRows()
	if err != nil {
		return err
	}
	if len(rows) > 0 {
		queueLog(b, rows, tag)
		b.Queue(sqlSetRevision, int64(out.Last))
		b.Queue(sqlNotify)
	}
	b.Queue(sqlCommit)
	return nil
}

func queueEntities(b *pgx.Batch, d eval.EntityDiff) {
	if len(d.Delete) > 0 {
		var kinds, ids []string
		for _, k := range d.Delete {
			kinds, ids = append(kinds, k.Kind), append(ids, k.ID)
		}
		b.Queue(sqlDeleteEntities, kinds, ids)
	}
	put := func(sql string, list []*eval.Object) {
		var kind, id, project, lease []string
		var revision []int64
		var record [][]byte
		for _, o := range list {
			kind, id, project = append(kind, o.Rec.Kind), append(id, string(o.Rec.ID)), append(project, string(o.Rec.Project))
			lease, revision, record = append(lease, string(o.Rec.Lease)), append(revision, int64(o.Rec.Revision)), append(record, o.Raw)
		}
		if len(list) > 0 {
			b.Queue(sql, kind, id, project, lease, revision, record)
		}
	}
	put(sqlUpdateEntities, d.Update)
	put(sqlInsertEntities, d.Insert)
}

func queueKeys(b *pgx.Batch, d eval.KeyDiff) {
	keys := func(sql string, rows []eval.UniqueRow, scoped bool) {
		var c columns4
		for _, r := range rows {
			c.add(r.UniqueKey)
			c.id = append(c.id, r.ID)
		}
		switch {
		case len(rows) == 0:
		case scoped:
			b.Queue(sql, c.kind, c.attr, c.value, c.scope, c.id)
		default:
			b.Queue(sql, c.kind, c.attr, c.value, c.id)
		}
	}
	keys(sqlDeleteIndex, d.DeleteIndex, false)
	keys(sqlInsertIndex, d.InsertIndex, false)
	keys(sqlDeleteUnique, d.DeleteUnique, true)
	keys(sqlInsertUnique, d.InsertUnique, true)
	refs := func(sql string, rows []eval.RefRow, policies bool) {
		var targetKind, targetID, kind, id, attr, policy []string
		for _, r := range rows {
			targetKind, targetID = append(targetKind, r.Kind), append(targetID, string(r.RefEntry.ID))
			kind, id, attr, policy = append(kind, r.From.Kind), append(id, r.From.ID), append(attr, r.Attr), append(policy, string(r.OnDelete))
		}
		switch {
		case len(rows) == 0:
		case policies:
			b.Queue(sql, targetKind, targetID, kind, id, attr, policy)
		default:
			b.Queue(sql, targetKind, targetID, kind, id, attr)
		}
	}
	refs(sqlDeleteRefs, d.DeleteRefs, false)
	refs(sqlInsertRefs, d.InsertRefs, true)
}

func queueLog(b *pgx.Batch, rows []eval.LogRow, tag int64) {
	var rev, prevRev []int64
	var seq []int32
	var typ []int16
	var kind, id, request []string
	var record, prev, gone, hash [][]byte
	for _, r := range rows {
		rev, seq, typ = append(rev, int64(r.Revision)), append(seq, int32(r.Seq)), append(typ, r.Type)
		kind, id, prevRev = append(kind, r.Key.Kind), append(id, r.Key.ID), append(prevRev, int64(r.PrevRevision))
		record, prev, gone = append(record, r.Record), append(prev, r.Prev), append(gone, r.Departed)
		request, hash = append(request, r.Request), append(hash, r.RequestHash)
	}
	b.Queue(sqlInsertLog, rev, seq, tag, typ, kind, id, prevRev, record, prev, gone, request, hash)
}
