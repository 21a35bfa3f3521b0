package pgstore

import (
	"context"

	"github.com/jackc/pgx/v5"

	"miren.dev/runtime/entity/eval"
	"miren.dev/runtime/pkg/schema"
)

// maxRefs bounds the references that are loaded at once; Config.MaxCascade
// bounds the references to one entity.
const maxRefs = 20_000

// projectSample is how many entities of a project are examined when it is
// deleted: none of them may stay.
const projectSample = 1001

const (
	sqlBegin = `begin isolation level read committed`
	// The lock on the counter row orders all writers. Later statements of the
	// transaction see everything committed before it was granted.
	sqlLock        = `select revision, epoch, clock_timestamp() from store for update`
	sqlLoadObjects = `select e.kind, e.id, e.record from unnest($1::text[], $2::text[]) k(kind, id) join entity e on e.kind = k.kind and e.id = k.id`
	sqlLoadExists  = `select e.kind, e.id from unnest($1::text[], $2::text[]) k(kind, id) join entity e on e.kind = k.kind and e.id = k.id`
	sqlLoadOwners  = `select u.kind, u.attr, u.value, u.scope, u.id
		from unnest($1::text[], $2::text[], $3::bytea[], $4::text[]) k(kind, attr, value, scope)
		join entity_unique u on u.kind = k.kind and u.attr = k.attr and u.value = k.value and u.scope = k.scope
		where exists (select from entity e where e.kind = u.kind and e.id = u.id)`
	sqlLoadRefs = `select k.kind, k.id, r.kind, r.id, r.attr, r.on_delete from unnest($1::text[], $2::text[]) k(kind, id)
		cross join lateral (select * from entity_ref r where r.target_kind = k.kind and r.target_id = k.id
			and exists (select from entity e where e.kind = r.kind and e.id = r.id) limit $3) r limit $4`
	sqlLoadMembers = `select l.lease, e.kind, e.id from unnest($1::text[]) l(lease)
		cross join lateral (select e.kind, e.id from entity e where e.lease = l.lease limit $2) e`
	sqlLoadProject = `select project, kind, id from entity where project = any($1::text[]) and project <> '' limit $2`
	sqlLoadLeases  = `select id, expires <= clock_timestamp(), expires = '-infinity' from lease where id = any($1::text[])`
	sqlLockLeases  = sqlLoadLeases + ` order by id for update`
	sqlLoadReplies = `select f.request, f.request_hash, l.revision, l.type, l.record
		from log f join log l on l.revision = f.revision where f.request = any($1::text[])`
)

// loader fills a view over one connection.
type loader struct {
	batch pgx.Batch
}

// queue adds statements for everything that v misses, and empties the list.
func (l *loader) queue(v *eval.View) {
	w := v.Missing
	v.Missing = eval.Wants{}
	if len(w.Objects) > 0 {
		kinds, ids := make([]string, 0, len(w.Objects)), make([]string, 0, len(w.Objects))
		for k := range w.Objects {
			kinds, ids = append(kinds, k.Kind), append(ids, k.ID)
			delete(w.Exists, k)
		}
		l.query(sqlLoadObjects, []any{kinds, ids}, func(rows pgx.Rows) error {
			var k eval.Key
			var raw []byte
			if err := rows.Scan(&k.Kind, &k.ID, &raw); err != nil {
				return err
			}
			o, err := eval.DecodeObject(raw)
			v.Objects[k] = o
			return err
		})
		for k := range w.Objects {
			v.Objects[k] = nil // unless a row says otherwise
		}
	}
	if len(w.Exists) > 0 {
		kinds, ids := make([]string, 0, len(w.Exists)), make([]string, 0, len(w.Exists))
		for k := range w.Exists {
			kinds, ids = append(kinds, k.Kind), append(ids, k.ID)
			v.Exists[k] = false
		}
		l.query(sqlLoadExists, []any{kinds, ids}, func(rows pgx.Rows) error {
			var k eval.Key
			err := rows.Scan(&k.Kind, &k.ID)
			v.Exists[k] = true
			return err
		})
	}
	if n := len(w.Owners); n > 0 {
		var u columns4
		u.grow(n)
		for k := range w.Owners {
			u.add(k)
			v.Owners[k] = ""
		}
		l.query(sqlLoadOwners, []any{u.kind, u.attr, u.value, u.scope}, func(rows pgx.Rows) error {
			var u eval.UniqueKey
			var value []byte
			var id string
			err := rows.Scan(&u.Kind, &u.Attr, &value, &u.Scope, &id)
			u.Value = string(value)
			v.Owners[u] = id
			return err
		})
	}
	if len(w.Referrers) > 0 {
		kinds, ids := make([]string, 0, len(w.Referrers)), make([]string, 0, len(w.Referrers))
		for k := range w.Referrers {
			kinds, ids = append(kinds, k.Kind), append(ids, k.ID)
			v.Referrers[k] = &eval.Referrers{Refs: map[eval.RefID]schema.OnDelete{}}
		}
		rowsLoaded := 0
		l.query(sqlLoadRefs, []any{kinds, ids, v.MaxCascade + 1, maxRefs}, func(rows pgx.Rows) error {
			var target eval.Key
			var r eval.RefID
			var policy string
			err := rows.Scan(&target.Kind, &target.ID, &r.From.Kind, &r.From.ID, &r.Attr, &policy)
			if err != nil {
				return err
			}
			to := v.Referrers[target]
			to.Refs[r] = schema.OnDelete(policy)
			to.More = len(to.Refs) > v.MaxCascade
			if rowsLoaded++; rowsLoaded == maxRefs { // the result may be incomplete for each of them
				for k := range w.Referrers {
					v.Referrers[k].More = true
				}
			}
			return nil
		})
	}
	if len(w.Members) > 0 {
		ids := make([]string, 0, len(w.Members))
		for id := range w.Members {
			ids = append(ids, string(id))
			v.Members[id] = &eval.Members{}
		}
		l.query(sqlLoadMembers, []any{ids, v.MaxCascade + 1}, func(rows pgx.Rows) error {
			var id string
			var k eval.Key
			if err := rows.Scan(&id, &k.Kind, &k.ID); err != nil {
				return err
			}
			m := v.Members[schema.LeaseID(id)]
			m.Keys = append(m.Keys, k)
			m.More = len(m.Keys) > v.MaxCascade
			return nil
		})
	}
	for id := range w.Projects {
		v.Projects[id] = nil
		l.query(sqlLoadProject, []any{[]string{id}, projectSample}, func(rows pgx.Rows) error {
			var k eval.Key
			err := rows.Scan(&id, &k.Kind, &k.ID)
			v.Projects[id] = append(v.Projects[id], k)
			return err
		})
	}
	l.queueLeases(v, w.Ending, sqlLockLeases)
	for id := range w.Ending {
		delete(w.Leases, id)
	}
	l.queueLeases(v, w.Leases, sqlLoadLeases)
	if len(w.Replies) > 0 {
		ids := make([]string, 0, len(w.Replies))
		for id := range w.Replies {
			ids = append(ids, id)
			v.Replies[id] = nil
		}
		l.query(sqlLoadReplies, []any{ids}, func(rows pgx.Rows) error {
			var id string
			var hash, raw []byte
			var rev int64
			var typ int16
			if err := rows.Scan(&id, &hash, &rev, &typ, &raw); err != nil {
				return err
			}
			rec, err := eval.DecodeRecord(raw)
			if err != nil {
				return err
			}
			if typ == eval.LogDelete {
				rec.Revision = schema.Revision(rev)
			}
			r := v.Replies[id]
			if r == nil {
				r = &eval.Reply{Hash: hash, Revision: schema.Revision(rev), Records: map[eval.Key]*schema.Record{}}
				v.Replies[id] = r
			}
			r.Records[eval.KeyOf(rec)] = rec
			return nil
		})
	}
}

func (l *loader) queueLeases(v *eval.View, set map[schema.LeaseID]struct{}, sql string) {
	if len(set) == 0 {
		return
	}
	ids := make([]string, 0, len(set))
	for id := range set {
		ids = append(ids, string(id))
		v.Leases[id] = eval.LeaseState{}
	}
	l.query(sql, []any{ids}, func(rows pgx.Rows) error {
		var id string
		st := eval.LeaseState{Exists: true}
		err := rows.Scan(&id, &st.Lapsed, &st.Ended)
		v.Leases[schema.LeaseID(id)] = st
		return err
	})
}

func (l *loader) query(sql string, args []any, row func(pgx.Rows) error) {
	l.batch.Queue(sql, args...).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			if err := row(rows); err != nil {
				return err
			}
		}
		return rows.Err()
	})
}

// run sends all statements in one round trip.
func (l *loader) run(ctx context.Context, c *pgx.Conn) error {
	if l.batch.Len() == 0 {
		return nil
	}
	return c.SendBatch(ctx, &l.batch).Close()
}

// columns4 are unique keys by column.
type columns4 struct {
	kind, attr, scope, id []string
	value                 [][]byte
}

func (c *columns4) grow(n int) {
	c.kind, c.attr, c.scope, c.value = make([]string, 0, n), make([]string, 0, n), make([]string, 0, n), make([][]byte, 0, n)
}

func (c *columns4) add(u eval.UniqueKey) {
	c.kind, c.attr, c.scope, c.value = append(c.kind, u.Kind), append(c.attr, u.Attr), append(c.scope, u.Scope), append(c.value, []byte(u.Value))
}
