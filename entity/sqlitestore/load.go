package sqlitestore

import (
	"database/sql"

	"miren.dev/runtime/entity/eval"
	"miren.dev/runtime/pkg/schema"
)

// projectSample is how many entities of a project are examined when it is
// deleted: none of them may stay.
const projectSample = 1001

// loader fills a view within the transaction that will write. Each lookup is a
// statement of its own, since SQLite is not across a network.
type loader struct {
	w      writer
	leases *leases
	locked bool // leases.mu is held: some may end
}

// load loads everything that v misses, and empties the list.
func (l *loader) load(v *eval.View) error {
	want := v.Missing
	v.Missing = eval.Wants{}
	for _, step := range []func(*eval.View, *eval.Wants) error{
		l.objects, l.exists, l.owners, l.referrers, l.members, l.projects, l.loadLeases, l.replies,
	} {
		if err := step(v, &want); err != nil {
			return err
		}
	}
	return nil
}

func (l *loader) objects(v *eval.View, want *eval.Wants) error {
	for k := range want.Objects {
		v.Objects[k] = nil
		err := l.w.query(`select record from entity where kind = ?1 and id = ?2`, func(r *sql.Rows) error {
			var raw []byte
			err := r.Scan(&raw)
			if err == nil {
				v.Objects[k], err = eval.DecodeObject(raw)
			}
			return err
		}, k.Kind, k.ID)
		if err != nil {
			return err
		}
	}
	return nil
}

func (l *loader) exists(v *eval.View, want *eval.Wants) error {
	for k := range want.Exists {
		if _, ok := want.Objects[k]; ok {
			continue
		}
		v.Exists[k] = false
		err := l.w.query(`select 1 from entity where kind = ?1 and id = ?2`, func(*sql.Rows) error {
			v.Exists[k] = true
			return nil
		}, k.Kind, k.ID)
		if err != nil {
			return err
		}
	}
	return nil
}

func (l *loader) owners(v *eval.View, want *eval.Wants) error {
	for u := range want.Owners {
		v.Owners[u] = ""
		err := l.w.query(`select u.id from entity_unique u where u.kind = ?1 and u.attr = ?2 and u.value = ?3 and u.scope = ?4
			and exists (select 1 from entity e where e.kind = u.kind and e.id = u.id)`, func(r *sql.Rows) error {
			var id string
			err := r.Scan(&id)
			v.Owners[u] = id
			return err
		}, u.Kind, u.Attr, []byte(u.Value), u.Scope)
		if err != nil {
			return err
		}
	}
	return nil
}

func (l *loader) referrers(v *eval.View, want *eval.Wants) error {
	for k := range want.Referrers {
		refs := &eval.Referrers{Refs: map[eval.RefID]schema.OnDelete{}}
		v.Referrers[k] = refs
		err := l.w.query(`select r.kind, r.id, r.attr, r.on_delete from entity_ref r where r.target_kind = ?1 and r.target_id = ?2
			and exists (select 1 from entity e where e.kind = r.kind and e.id = r.id) limit ?3`, func(r *sql.Rows) error {
			var ref eval.RefID
			var policy string
			err := r.Scan(&ref.From.Kind, &ref.From.ID, &ref.Attr, &policy)
			refs.Refs[ref] = schema.OnDelete(policy)
			refs.More = len(refs.Refs) > v.MaxCascade
			return err
		}, k.Kind, k.ID, v.MaxCascade+1)
		if err != nil {
			return err
		}
	}
	return nil
}

func (l *loader) members(v *eval.View, want *eval.Wants) error {
	for id := range want.Members {
		m := &eval.Members{}
		v.Members[id] = m
		err := l.w.query(`select kind, id from entity where lease = ?1 limit ?2`, func(r *sql.Rows) error {
			var k eval.Key
			err := r.Scan(&k.Kind, &k.ID)
			m.Keys = append(m.Keys, k)
			m.More = len(m.Keys) > v.MaxCascade
			return err
		}, string(id), v.MaxCascade+1)
		if err != nil {
			return err
		}
	}
	return nil
}

func (l *loader) projects(v *eval.View, want *eval.Wants) error {
	for id := range want.Projects {
		v.Projects[id] = nil
		err := l.w.query(`select kind, id from entity where project = ?1 and project <> '' limit ?2`, func(r *sql.Rows) error {
			var k eval.Key
			err := r.Scan(&k.Kind, &k.ID)
			v.Projects[id] = append(v.Projects[id], k)
			return err
		}, id, projectSample)
		if err != nil {
			return err
		}
	}
	return nil
}

func (l *loader) replies(v *eval.View, want *eval.Wants) error {
	for id := range want.Replies {
		v.Replies[id] = nil
		err := l.w.query(`select f.request_hash, l.revision, l.type, l.record from log f join log l on l.revision = f.revision where f.request = ?1`, func(r *sql.Rows) error {
			var hash, raw []byte
			var rev int64
			var typ int16
			if err := r.Scan(&hash, &rev, &typ, &raw); err != nil {
				return err
			}
			rec, err := eval.DecodeRecord(raw)
			if err != nil {
				return err
			}
			if typ == eval.LogDelete {
				rec.Revision = schema.Revision(rev)
			}
			reply := v.Replies[id]
			if reply == nil {
				reply = &eval.Reply{Hash: hash, Revision: schema.Revision(rev), Records: map[eval.Key]*schema.Record{}}
				v.Replies[id] = reply
			}
			reply.Records[eval.KeyOf(rec)] = rec
			return nil
		}, id)
		if err != nil {
			return err
		}
	}
	return nil
}

// loadLeases takes the lock of the leases, until release, if some of them may end:
// one that ends is not renewed meanwhile.
func (l *loader) loadLeases(v *eval.View, want *eval.Wants) error {
	if len(want.Ending)+len(want.Leases) == 0 {
		return nil
	}
	if !l.locked {
		l.leases.mu.Lock()
		if len(want.Ending) > 0 {
			l.locked = true
		} else {
			defer l.leases.mu.Unlock()
		}
	}
	for _, ids := range []map[schema.LeaseID]struct{}{want.Ending, want.Leases} {
		for id := range ids {
			v.Leases[id] = l.leases.state(id)
		}
	}
	return nil
}

// end notes which leases the committed transactions have ended, and which have
// ended with entities left.
func (l *loader) end(ended, ending []string) {
	for _, id := range ended {
		delete(l.leases.all, schema.LeaseID(id))
	}
	for _, id := range ending {
		if x := l.leases.all[schema.LeaseID(id)]; x != nil {
			x.ended = true
		}
	}
}

// release undoes the lock of loadLeases.
func (l *loader) release() {
	if l.locked {
		l.leases.mu.Unlock()
	}
}
