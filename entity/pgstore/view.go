package pgstore

import (
	"errors"
	"slices"
	"time"

	"miren.dev/runtime/pkg/schema"
)

// errMiss says that an evaluation needs something that is not loaded;
// view.missing lists it.
var errMiss = errors.New("not loaded")

// refID is one reference of an entity.
type refID struct {
	from key
	attr string
}

// view is the state that a batch works on: the entities that it has loaded from
// the database under the lock of the counter row, with the changes of the
// batch's accepted transactions on top. A nil object is one that does not
// exist.
type view struct {
	objects map[key]*object // current: loaded, or changed by the batch
	origin  map[key]*object // versions in the database, of the entities that the batch changed
	owners  map[uniqueKey]string
	exists  map[key]bool // keys whose object was not needed: do they exist

	// The database's part of each map; the batch's part is computed from origin
	// and objects, of which there are few.
	referrers map[key]*referrers
	members   map[schema.LeaseID]*members
	projects  map[string][]key // at most projectSample of each

	leases  map[schema.LeaseID]leaseState
	replies map[string]*reply // replies by request id; nil: none

	missing    wants
	began      time.Time // when the first of it was loaded
	maxCascade int       // bounds the referrers and the members of each key
}

// leaseState is the state of a lease. A lease that has ended with entities left
// accepts no others.
type leaseState struct{ exists, lapsed, ended bool }

// reply is the outcome of a committed transaction with a request id.
type reply struct {
	hash     []byte // hash of the request
	revision schema.Revision
	draft    *draft                 // a transaction of this batch
	records  map[key]*schema.Record // an earlier transaction: the entities that it changed, as after returns them
}

// referrers are the references to an entity.
type referrers struct {
	refs map[refID]schema.OnDelete
	more bool // the list is incomplete
}

// members are the entities of a lease.
type members struct {
	keys []key
	more bool // the list is incomplete
}

// wants are the things to load.
type wants struct {
	objects   map[key]struct{}
	owners    map[uniqueKey]struct{}
	exists    map[key]struct{}
	referrers map[key]struct{}
	members   map[schema.LeaseID]struct{}
	projects  map[string]struct{}
	leases    map[schema.LeaseID]struct{}
	ending    map[schema.LeaseID]struct{} // leases to lock, since they may end
	replies   map[string]struct{}
}

func add[K comparable](m *map[K]struct{}, k K) {
	if *m == nil {
		*m = map[K]struct{}{}
	}
	(*m)[k] = struct{}{}
}

func (w *wants) empty() bool {
	return len(w.objects)+len(w.owners)+len(w.exists)+len(w.referrers)+len(w.members)+len(w.projects)+len(w.leases)+len(w.ending)+len(w.replies) == 0
}

func newView(maxCascade int) *view {
	return &view{
		objects: map[key]*object{}, origin: map[key]*object{}, owners: map[uniqueKey]string{}, exists: map[key]bool{},
		referrers: map[key]*referrers{}, members: map[schema.LeaseID]*members{}, projects: map[string][]key{},
		leases: map[schema.LeaseID]leaseState{}, replies: map[string]*reply{}, began: time.Now(), maxCascade: maxCascade,
	}
}

// want adds the things that evaluating t will need, as far as they can be
// foreseen.
func (v *view) want(t *txn) {
	if t.req.RequestID != "" && !t.guarded {
		add(&v.missing.replies, t.req.RequestID)
	}
	if t.endLease != "" {
		add(&v.missing.ending, t.endLease)
		add(&v.missing.members, t.endLease)
	}
	for i := range t.req.Ops {
		op := &t.req.Ops[i]
		k := keyOf(&op.Record)
		add(&v.missing.objects, k)
		switch op.Type {
		case opCreate, opUpdateSpec, opUpdateStatus:
			if t.exts[i] == nil {
				continue
			}
			if op.Type == opCreate {
				for _, r := range t.exts[i].Refs {
					add(&v.missing.exists, key{r.Kind, string(r.ID)})
				}
				if op.Record.Project != "" {
					add(&v.missing.exists, key{projectKind, string(op.Record.Project)})
				}
				if op.Record.Lease != "" {
					add(&v.missing.leases, op.Record.Lease)
				}
				for _, u := range uniques(&op.Record, t.exts[i]) {
					add(&v.missing.owners, u)
				}
			}
		case opDelete:
			add(&v.missing.referrers, k)
		}
	}
}

// object returns the current version of k, nil if there is none.
func (v *view) object(k key) (*object, error) {
	o, ok := v.objects[k]
	if !ok {
		add(&v.missing.objects, k)
		return nil, errMiss
	}
	return o, nil
}

// present reports whether k exists.
func (v *view) present(k key) (bool, error) {
	if o, ok := v.objects[k]; ok {
		return o != nil, nil
	}
	e, ok := v.exists[k]
	if !ok {
		add(&v.missing.exists, k)
		return false, errMiss
	}
	return e, nil
}

// owner returns the id of the entity that has a unique value, or "".
func (v *view) owner(u uniqueKey) (string, error) {
	id, ok := v.owners[u]
	if !ok {
		add(&v.missing.owners, u)
		return "", errMiss
	}
	return id, nil
}

// lease returns the state of a lease.
func (v *view) lease(id schema.LeaseID) (leaseState, error) {
	l, ok := v.leases[id]
	if !ok {
		add(&v.missing.leases, id)
		return l, errMiss
	}
	return l, nil
}

// refsTo returns the references to k that other entities hold, or some of them
// if there are more.
func (v *view) refsTo(k key) (refs map[refID]schema.OnDelete, more bool, err error) {
	db, ok := v.referrers[k]
	if !ok {
		add(&v.missing.referrers, k)
		return nil, false, errMiss
	}
	return v.applyChanges(db.refs, func(o *object, add func(refID, schema.OnDelete)) {
		for _, r := range o.ext.Refs {
			if r.Kind == k.kind && string(r.ID) == k.id {
				add(refID{keyOf(o.rec), r.Attr}, r.OnDelete)
			}
		}
	}), db.more, nil
}

// applyChanges returns db without the old and with the new values of the
// entities that this batch changed.
func (v *view) applyChanges(db map[refID]schema.OnDelete, has func(o *object, add func(refID, schema.OnDelete))) map[refID]schema.OnDelete {
	if len(v.origin) == 0 {
		return db
	}
	out := make(map[refID]schema.OnDelete, len(db))
	for r, policy := range db {
		if _, changed := v.origin[r.from]; !changed {
			out[r] = policy
		}
	}
	for k := range v.origin {
		if o := v.objects[k]; o != nil {
			has(o, func(r refID, p schema.OnDelete) { out[r] = p })
		}
	}
	return out
}

// leaseMembers returns the entities bound to a lease, or some of them if there
// are more.
func (v *view) leaseMembers(id schema.LeaseID) (keys []key, more bool, err error) {
	db, ok := v.members[id]
	if !ok {
		add(&v.missing.members, id)
		return nil, false, errMiss
	}
	keys = v.applyMembers(db.keys, func(o *object) bool { return o.rec.Lease == id })
	slices.SortFunc(keys, compareKeys)
	return keys, db.more, nil
}

// projectMembers returns entities of a project, or some of them if there are
// many.
func (v *view) projectMembers(id string) ([]key, error) {
	db, ok := v.projects[id]
	if !ok {
		add(&v.missing.projects, id)
		return nil, errMiss
	}
	return v.applyMembers(db, func(o *object) bool { return string(o.rec.Project) == id }), nil
}

func (v *view) applyMembers(db []key, is func(*object) bool) []key {
	var out []key
	for _, k := range db {
		if _, changed := v.origin[k]; !changed {
			out = append(out, k)
		}
	}
	for k := range v.origin {
		if o := v.objects[k]; o != nil && is(o) {
			out = append(out, k)
		}
	}
	return out
}

// accept makes the changes of an accepted transaction part of the view.
func (v *view) accept(d *draft) {
	for _, c := range d.changes {
		if _, ok := v.origin[c.key]; !ok {
			v.origin[c.key] = c.old
		}
		v.objects[c.key] = c.new
	}
	for _, u := range d.freed {
		v.owners[u] = ""
	}
	for u, id := range d.taken {
		v.owners[u] = id
	}
	if d.endsLease != "" {
		v.leases[d.endsLease] = leaseState{exists: true, lapsed: true, ended: true}
	}
	if d.endedLease != "" {
		v.leases[d.endedLease] = leaseState{}
	}
}
