package pgstore

import (
	"bytes"
	"slices"

	"github.com/jackc/pgx/v5"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// prevMargin: a change of an entity whose previous change is this many
// revisions back or more carries the previous state in the log, so that a
// listing at an older revision finds it although the log was compacted. The
// log is never cut closer than this to its floor.
const prevMargin = 4096

// Types of log entries, as stored.
const (
	logPut    int16 = 1
	logDelete int16 = 2
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

// accepted is a transaction of a batch that will be committed.
type accepted struct {
	t        *txn
	d        *draft
	revision schema.Revision // zero: it changes no entity
}

// queueWrites adds the statements that make the batch durable. The last one is
// the commit.
func queueWrites(b *pgx.Batch, v *view, acc []accepted, tag int64, last schema.Revision) error {
	queueEntities(b, v)
	queueKeys(b, v)
	var ended, ends []string
	for _, a := range acc {
		if a.d.endedLease != "" {
			ended = append(ended, string(a.d.endedLease))
		}
		if a.d.endsLease != "" {
			ends = append(ends, string(a.d.endsLease))
		}
	}
	if len(ended) > 0 {
		b.Queue(sqlDeleteLeases, ended)
	}
	if len(ends) > 0 {
		b.Queue(sqlEndLeases, ends)
	}
	logged, err := queueLog(b, acc, tag)
	if err != nil {
		return err
	}
	if logged {
		b.Queue(sqlSetRevision, int64(last))
		b.Queue(sqlNotify)
	}
	b.Queue(sqlCommit)
	return nil
}

// queueEntities writes the net change of each entity.
func queueEntities(b *pgx.Batch, v *view) {
	type cols struct {
		kind, id, project, lease []string
		revision                 []int64
		record                   [][]byte
	}
	var ins, upd, del cols
	for k, old := range v.origin {
		o := v.objects[k]
		c := &ins
		switch {
		case o == nil && old == nil:
			continue
		case o == nil:
			del.kind, del.id = append(del.kind, k.kind), append(del.id, k.id)
			continue
		case old != nil:
			c = &upd
		}
		c.kind, c.id, c.project = append(c.kind, k.kind), append(c.id, k.id), append(c.project, string(o.rec.Project))
		c.lease, c.revision, c.record = append(c.lease, string(o.rec.Lease)), append(c.revision, int64(o.rec.Revision)), append(c.record, o.raw)
	}
	if len(del.id) > 0 {
		b.Queue(sqlDeleteEntities, del.kind, del.id)
	}
	if len(upd.id) > 0 {
		b.Queue(sqlUpdateEntities, upd.kind, upd.id, upd.project, upd.lease, upd.revision, upd.record)
	}
	if len(ins.id) > 0 {
		b.Queue(sqlInsertEntities, ins.kind, ins.id, ins.project, ins.lease, ins.revision, ins.record)
	}
}

// queueKeys writes the net changes of indexes, unique values and references:
// all removals before all additions, so that values may change owners.
func queueKeys(b *pgx.Batch, v *view) {
	var delIx, insIx, delUq, insUq columns4
	var delRef, insRef refColumns
	for k, old := range v.origin {
		o := v.objects[k]
		var was, is schema.Extracted
		var wasU, isU []uniqueKey
		if old != nil {
			was, wasU = *old.ext, uniques(old.rec, old.ext)
		}
		if o != nil {
			is, isU = *o.ext, uniques(o.rec, o.ext)
		}
		eq := func(a schema.IndexEntry) func(schema.IndexEntry) bool {
			return func(b schema.IndexEntry) bool { return a.Attr == b.Attr && bytes.Equal(a.Value, b.Value) }
		}
		for _, x := range was.Index {
			if !slices.ContainsFunc(is.Index, eq(x)) {
				delIx.add(uniqueKey{kind: k.kind, attr: x.Attr, value: string(x.Value)})
				delIx.id = append(delIx.id, k.id)
			}
		}
		for i, x := range is.Index {
			if !slices.ContainsFunc(was.Index, eq(x)) && !slices.ContainsFunc(is.Index[:i], eq(x)) {
				insIx.add(uniqueKey{kind: k.kind, attr: x.Attr, value: string(x.Value)})
				insIx.id = append(insIx.id, k.id)
			}
		}
		for _, u := range wasU {
			if !slices.Contains(isU, u) {
				delUq.add(u)
				delUq.id = append(delUq.id, k.id)
			}
		}
		for i, u := range isU {
			if !slices.Contains(wasU, u) && !slices.Contains(isU[:i], u) {
				insUq.add(u)
				insUq.id = append(insUq.id, k.id)
			}
		}
		for _, r := range was.Refs {
			if !slices.Contains(is.Refs, r) {
				delRef.add(k, r)
			}
		}
		for i, r := range is.Refs {
			if !slices.Contains(was.Refs, r) && !slices.Contains(is.Refs[:i], r) {
				insRef.add(k, r)
			}
		}
	}
	if len(delIx.id) > 0 {
		b.Queue(sqlDeleteIndex, delIx.kind, delIx.attr, delIx.value, delIx.id)
	}
	if len(insIx.id) > 0 {
		b.Queue(sqlInsertIndex, insIx.kind, insIx.attr, insIx.value, insIx.id)
	}
	if len(delUq.id) > 0 {
		b.Queue(sqlDeleteUnique, delUq.kind, delUq.attr, delUq.value, delUq.scope, delUq.id)
	}
	if len(insUq.id) > 0 {
		b.Queue(sqlInsertUnique, insUq.kind, insUq.attr, insUq.value, insUq.scope, insUq.id)
	}
	if len(delRef.id) > 0 {
		b.Queue(sqlDeleteRefs, delRef.targetKind, delRef.targetID, delRef.kind, delRef.id, delRef.attr)
	}
	if len(insRef.id) > 0 {
		b.Queue(sqlInsertRefs, insRef.targetKind, insRef.targetID, insRef.kind, insRef.id, insRef.attr, insRef.policy)
	}
}

type refColumns struct{ targetKind, targetID, kind, id, attr, policy []string }

func (c *refColumns) add(k key, r schema.RefEntry) {
	c.targetKind, c.targetID = append(c.targetKind, r.Kind), append(c.targetID, string(r.ID))
	c.kind, c.id, c.attr, c.policy = append(c.kind, k.kind), append(c.id, k.id), append(c.attr, r.Attr), append(c.policy, string(r.OnDelete))
}

// queueLog writes every change of every transaction. It reports whether there
// was any.
func queueLog(b *pgx.Batch, acc []accepted, tag int64) (bool, error) {
	var rev, prevRev []int64
	var seq []int32
	var typ []int16
	var kind, id []string
	var record, prev, gone, hash [][]byte
	var request []string
	for _, a := range acc {
		for i, c := range a.d.changes {
			// The first entry of a transaction carries its request id.
			if i == 0 && a.t.req.RequestID != "" && !a.d.partial {
				request, hash = append(request, a.t.req.RequestID), append(hash, a.t.hash)
			} else {
				request, hash = append(request, ""), append(hash, nil)
			}
			values, err := encodeValues(c.departed)
			if err != nil {
				return false, errs.New(errs.Internal, "encode indexed values of %s %s: %w", c.key.kind, c.key.id, err)
			}
			gone = append(gone, values)
			rev, seq = append(rev, int64(a.revision)), append(seq, int32(i))
			kind, id = append(kind, c.key.kind), append(id, c.key.id)
			var pr int64
			if c.old != nil {
				pr = int64(c.old.rec.Revision)
			}
			prevRev = append(prevRev, pr)
			switch {
			case c.new == nil: // the record is the last state
				typ, record, prev = append(typ, logDelete), append(record, c.old.raw), append(prev, nil)
			case c.old != nil && a.revision-schema.Revision(pr) >= prevMargin:
				typ, record, prev = append(typ, logPut), append(record, c.new.raw), append(prev, c.old.raw)
			default:
				typ, record, prev = append(typ, logPut), append(record, c.new.raw), append(prev, nil)
			}
		}
	}
	if len(rev) == 0 {
		return false, nil
	}
	b.Queue(sqlInsertLog, rev, seq, tag, typ, kind, id, prevRev, record, prev, gone, request, hash)
	return true, nil
}
