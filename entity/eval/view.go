package eval

import (
	"errors"
	"slices"
	"time"

	"miren.dev/runtime/pkg/schema"
)

// errMiss says that an evaluation needs something that is not loaded;
// View.Missing lists it.
var errMiss = errors.New("not loaded")

// RefID is one reference of an entity.
type RefID struct {
	From Key
	Attr string
}

// View is the state that a batch works on: the entities that it has loaded from
// the database under the lock of the counter row, with the changes of the
// batch's accepted transactions on top. A nil object is one that does not
// exist.
type View struct {
	Objects map[Key]*Object // current: loaded, or changed by the batch
	Origin  map[Key]*Object // versions in the database, of the entities that the batch changed
	Owners  map[UniqueKey]string
	Exists  map[Key]bool // keys whose object was not needed: do they exist

	// The database's part of each map; the batch's part is computed from origin
	// and objects, of which there are few.
	Referrers map[Key]*Referrers
	Members   map[schema.LeaseID]*Members
	Projects  map[string][]Key // at most projectSample of each

	Leases  map[schema.LeaseID]LeaseState
	Replies map[string]*Reply // replies by request id; nil: none

	Missing    Wants
	began      time.Time // when the first of it was loaded
	MaxCascade int       // bounds the referrers and the members of each key
}

// LeaseState is the state of a lease. A lease that has ended with entities left
// accepts no others.
type LeaseState struct{ Exists, Lapsed, Ended bool }

// Reply is the outcome of a committed transaction with a request id.
type Reply struct {
	Hash     []byte // hash of the request
	Revision schema.Revision
	draft    *Draft                 // a transaction of this batch
	Records  map[Key]*schema.Record // an earlier transaction: the entities that it changed, as after returns them
}

// Referrers are the references to an entity.
type Referrers struct {
	Refs map[RefID]schema.OnDelete
	More bool // the list is incomplete
}

// Members are the entities of a lease.
type Members struct {
	Keys []Key
	More bool // the list is incomplete
}

// Wants are the things to load.
type Wants struct {
	Objects   map[Key]struct{}
	Owners    map[UniqueKey]struct{}
	Exists    map[Key]struct{}
	Referrers map[Key]struct{}
	Members   map[schema.LeaseID]struct{}
	Projects  map[string]struct{}
	Leases    map[schema.LeaseID]struct{}
	Ending    map[schema.LeaseID]struct{} // leases to lock, since they may end
	Replies   map[string]struct{}
}

func add[K comparable](m *map[K]struct{}, k K) {
	if *m == nil {
		*m = map[K]struct{}{}
	}
	(*m)[k] = struct{}{}
}

func (w *Wants) empty() bool {
	return len(w.Objects)+len(w.Owners)+len(w.Exists)+len(w.Referrers)+len(w.Members)+len(w.Projects)+len(w.Leases)+len(w.Ending)+len(w.Replies) == 0
}

func newView(maxCascade int) *View {
	return &View{
		Objects: map[Key]*Object{}, Origin: map[Key]*Object{}, Owners: map[UniqueKey]string{}, Exists: map[Key]bool{},
		Referrers: map[Key]*Referrers{}, Members: map[schema.LeaseID]*Members{}, Projects: map[string][]Key{},
		Leases: map[schema.LeaseID]LeaseState{}, Replies: map[string]*Reply{}, began: time.Now(), MaxCascade: maxCascade,
	}
}

// want adds the things that evaluating t will need, as far as they can be
// foreseen.
func (v *View) want(t *Txn) {
	if t.Req.RequestID != "" && !t.guarded {
		add(&v.Missing.Replies, t.Req.RequestID)
	}
	if t.EndLease != "" {
		add(&v.Missing.Ending, t.EndLease)
		add(&v.Missing.Members, t.EndLease)
	}
	for i := range t.Req.Ops {
		op := &t.Req.Ops[i]
		k := KeyOf(&op.Record)
		add(&v.Missing.Objects, k)
		switch op.Type {
		case opCreate, opUpdateSpec, opUpdateStatus:
			if t.exts[i] == nil {
				continue
			}
			if op.Type == opCreate {
				for _, r := range t.exts[i].Refs {
					add(&v.Missing.Exists, Key{r.Kind, string(r.ID)})
				}
				if op.Record.Project != "" {
					add(&v.Missing.Exists, Key{projectKind, string(op.Record.Project)})
				}
				if op.Record.Lease != "" {
					add(&v.Missing.Leases, op.Record.Lease)
				}
				for _, u := range uniques(&op.Record, t.exts[i]) {
					add(&v.Missing.Owners, u)
				}
			}
		case opDelete:
			add(&v.Missing.Referrers, k)
		}
	}
}

// object returns the current version of k, nil if there is none.
func (v *View) object(k Key) (*Object, error) {
	o, ok := v.Objects[k]
	if !ok {
		add(&v.Missing.Objects, k)
		return nil, errMiss
	}
	return o, nil
}

// present reports whether k exists.
func (v *View) present(k Key) (bool, error) {
	if o, ok := v.Objects[k]; ok {
		return o != nil, nil
	}
	e, ok := v.Exists[k]
	if !ok {
		add(&v.Missing.Exists, k)
		return false, errMiss
	}
	return e, nil
}

// owner returns the id of the entity that has a unique value, or "".
func (v *View) owner(u UniqueKey) (string, error) {
	id, ok := v.Owners[u]
	if !ok {
		add(&v.Missing.Owners, u)
		return "", errMiss
	}
	return id, nil
}

// lease returns the state of a lease.
func (v *View) lease(id schema.LeaseID) (LeaseState, error) {
	l, ok := v.Leases[id]
	if !ok {
		add(&v.Missing.Leases, id)
		return l, errMiss
	}
	return l, nil
}

// refsTo returns the references to k that other entities hold, or some of them
// if there are more.
func (v *View) refsTo(k Key) (refs map[RefID]schema.OnDelete, more bool, err error) {
	db, ok := v.Referrers[k]
	if !ok {
		add(&v.Missing.Referrers, k)
		return nil, false, errMiss
	}
	return v.applyChanges(db.Refs, func(o *Object, add func(RefID, schema.OnDelete)) {
		for _, r := range o.Ext.Refs {
			if r.Kind == k.Kind && string(r.ID) == k.ID {
				add(RefID{KeyOf(o.Rec), r.Attr}, r.OnDelete)
			}
		}
	}), db.More, nil
}

// applyChanges returns db without the old and with the new values of the
// entities that this batch changed.
func (v *View) applyChanges(db map[RefID]schema.OnDelete, has func(o *Object, add func(RefID, schema.OnDelete))) map[RefID]schema.OnDelete {
	if len(v.Origin) == 0 {
		return db
	}
	out := make(map[RefID]schema.OnDelete, len(db))
	for r, policy := range db {
		if _, changed := v.Origin[r.From]; !changed {
			out[r] = policy
		}
	}
	for k := range v.Origin {
		if o := v.Objects[k]; o != nil {
			has(o, func(r RefID, p schema.OnDelete) { out[r] = p })
		}
	}
	return out
}

// leaseMembers returns the entities bound to a lease, or some of them if there
// are more.
func (v *View) leaseMembers(id schema.LeaseID) (keys []Key, more bool, err error) {
	db, ok := v.Members[id]
	if !ok {
		add(&v.Missing.Members, id)
		return nil, false, errMiss
	}
	keys = v.applyMembers(db.Keys, func(o *Object) bool { return o.Rec.Lease == id })
	slices.SortFunc(keys, compareKeys)
	return keys, db.More, nil
}

// projectMembers returns entities of a project, or some of them if there are
// many.
func (v *View) projectMembers(id string) ([]Key, error) {
	db, ok := v.Projects[id]
	if !ok {
		add(&v.Missing.Projects, id)
		return nil, errMiss
	}
	return v.applyMembers(db, func(o *Object) bool { return string(o.Rec.Project) == id }), nil
}

func (v *View) applyMembers(db []Key, is func(*Object) bool) []Key {
	var out []Key
	for _, k := range db {
		if _, changed := v.Origin[k]; !changed {
			out = append(out, k)
		}
	}
	for k := range v.Origin {
		if o := v.Objects[k]; o != nil && is(o) {
			out = append(out, k)
		}
	}
	return out
}

// accept makes the changes of an accepted transaction part of the view.
func (v *View) accept(d *Draft) {
	for _, c := range d.Changes {
		if _, ok := v.Origin[c.key]; !ok {
			v.Origin[c.key] = c.Old
		}
		v.Objects[c.key] = c.New
	}
	for _, u := range d.freed {
		v.Owners[u] = ""
	}
	for u, id := range d.taken {
		v.Owners[u] = id
	}
	if d.endsLease != "" {
		v.Leases[d.endsLease] = LeaseState{Exists: true, Lapsed: true, Ended: true}
	}
	if d.endedLease != "" {
		v.Leases[d.endedLease] = LeaseState{}
	}
}
