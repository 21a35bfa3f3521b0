package pgstore

import (
	"context"

	"github.com/jackc/pgx/v5"

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
func (l *loader) queue(v *view) {
	w := v.missing
	v.missing = wants{}
	if len(w.objects) > 0 {
		kinds, ids := make([]string, 0, len(w.objects)), make([]string, 0, len(w.objects))
		for k := range w.objects {
			kinds, ids = append(kinds, k.kind), append(ids, k.id)
			delete(w.exists, k)
		}
		l.query(sqlLoadObjects, []any{kinds, ids}, func(rows pgx.Rows) error {
			var k key
			var raw []byte
			if err := rows.Scan(&k.kind, &k.id, &raw); err != nil {
				return err
			}
			o, err := decodeObject(raw)
			v.objects[k] = o
			return err
		})
		for k := range w.objects {
			v.objects[k] = nil // unless a row says otherwise
		}
	}
	if len(w.exists) > 0 {
		kinds, ids := make([]string, 0, len(w.exists)), make([]string, 0, len(w.exists))
		for k := range w.exists {
			kinds, ids = append(kinds, k.kind), append(ids, k.id)
			v.exists[k] = false
		}
		l.query(sqlLoadExists, []any{kinds, ids}, func(rows pgx.Rows) error {
			var k key
			err := rows.Scan(&k.kind, &k.id)
			v.exists[k] = true
			return err
		})
	}
	if n := len(w.owners); n > 0 {
		var u columns4
		u.grow(n)
		for k := range w.owners {
			u.add(k)
			v.owners[k] = ""
		}
		l.query(sqlLoadOwners, []any{u.kind, u.attr, u.value, u.scope}, func(rows pgx.Rows) error {
			var u uniqueKey
			var value []byte
			var id string
			err := rows.Scan(&u.kind, &u.attr, &value, &u.scope, &id)
			u.value = string(value)
			v.owners[u] = id
			return err
		})
	}
	if len(w.referrers) > 0 {
		kinds, ids := make([]string, 0, len(w.referrers)), make([]string, 0, len(w.referrers))
		for k := range w.referrers {
			kinds, ids = append(kinds, k.kind), append(ids, k.id)
			v.referrers[k] = &referrers{refs: map[refID]schema.OnDelete{}}
		}
		rowsLoaded := 0
		l.query(sqlLoadRefs, []any{kinds, ids, v.maxCascade + 1, maxRefs}, func(rows pgx.Rows) error {
			var target key
			var r refID
			var policy string
			err := rows.Scan(&target.kind, &target.id, &r.from.kind, &r.from.id, &r.attr, &policy)
			if err != nil {
				return err
			}
			to := v.referrers[target]
			to.refs[r] = schema.OnDelete(policy)
			to.more = len(to.refs) > v.maxCascade
			if rowsLoaded++; rowsLoaded == maxRefs { // the result may be incomplete for each of them
				for k := range w.referrers {
					v.referrers[k].more = true
				}
			}
			return nil
		})
	}
	if len(w.members) > 0 {
		ids := make([]string, 0, len(w.members))
		for id := range w.members {
			ids = append(ids, string(id))
			v.members[id] = &members{}
		}
		l.query(sqlLoadMembers, []any{ids, v.maxCascade + 1}, func(rows pgx.Rows) error {
			var id string
			var k key
			if err := rows.Scan(&id, &k.kind, &k.id); err != nil {
				return err
			}
			m := v.members[schema.LeaseID(id)]
			m.keys = append(m.keys, k)
			m.more = len(m.keys) > v.maxCascade
			return nil
		})
	}
	for id := range w.projects {
		v.projects[id] = nil
		l.query(sqlLoadProject, []any{[]string{id}, projectSample}, func(rows pgx.Rows) error {
			var k key
			err := rows.Scan(&id, &k.kind, &k.id)
			v.projects[id] = append(v.projects[id], k)
			return err
		})
	}
	l.queueLeases(v, w.ending, sqlLockLeases)
	for id := range w.ending {
		delete(w.leases, id)
	}
	l.queueLeases(v, w.leases, sqlLoadLeases)
	if len(w.replies) > 0 {
		ids := make([]string, 0, len(w.replies))
		for id := range w.replies {
			ids = append(ids, id)
			v.replies[id] = nil
		}
		l.query(sqlLoadReplies, []any{ids}, func(rows pgx.Rows) error {
			var id string
			var hash, raw []byte
			var rev int64
			var typ int16
			if err := rows.Scan(&id, &hash, &rev, &typ, &raw); err != nil {
				return err
			}
			rec, err := decodeRecord(raw)
			if err != nil {
				return err
			}
			if typ == logDelete {
				rec.Revision = schema.Revision(rev)
			}
			r := v.replies[id]
			if r == nil {
				r = &reply{hash: hash, revision: schema.Revision(rev), records: map[key]*schema.Record{}}
				v.replies[id] = r
			}
			r.records[keyOf(rec)] = rec
			return nil
		})
	}
}

func (l *loader) queueLeases(v *view, set map[schema.LeaseID]struct{}, sql string) {
	if len(set) == 0 {
		return
	}
	ids := make([]string, 0, len(set))
	for id := range set {
		ids = append(ids, string(id))
		v.leases[id] = leaseState{}
	}
	l.query(sql, []any{ids}, func(rows pgx.Rows) error {
		var id string
		st := leaseState{exists: true}
		err := rows.Scan(&id, &st.lapsed, &st.ended)
		v.leases[schema.LeaseID(id)] = st
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

func (c *columns4) add(u uniqueKey) {
	c.kind, c.attr, c.scope, c.value = append(c.kind, u.kind), append(c.attr, u.attr), append(c.scope, u.scope), append(c.value, []byte(u.value))
}
