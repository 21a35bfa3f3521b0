package etcdstore

import (
	"cmp"
	"iter"
	"sync"

	"github.com/google/btree"

	"miren.dev/runtime/entity/eval"
	"miren.dev/runtime/pkg/schema"
)

// replica is the state of the store at one revision, in memory.
type replica struct {
	eval *eval.Evaluator

	mu     sync.RWMutex
	epoch  string
	rev    schema.Revision
	origin uint64 // id of the cluster
	mod    int64  // revision of etcd at which the key of the state had this content

	objects  map[eval.Key]*eval.Object // each has its extracted values
	ids      *btree.BTreeG[eval.Key]
	index    *btree.BTreeG[eval.UniqueRow] // without a scope
	owners   map[eval.UniqueKey]string
	refs     map[eval.Key]map[eval.RefID]schema.OnDelete // by what is referred to
	members  map[schema.LeaseID]map[eval.Key]struct{}
	projects map[string]map[eval.Key]struct{}
}

func newReplica(e *eval.Evaluator) *replica {
	r := &replica{eval: e}
	r.clear()
	return r
}

const treeDegree = 32

func (r *replica) clear() {
	r.objects, r.owners, r.refs = map[eval.Key]*eval.Object{}, map[eval.UniqueKey]string{}, map[eval.Key]map[eval.RefID]schema.OnDelete{}
	r.members, r.projects = map[schema.LeaseID]map[eval.Key]struct{}{}, map[string]map[eval.Key]struct{}{}
	r.ids = btree.NewG(treeDegree, func(a, b eval.Key) bool { return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.ID, b.ID)) < 0 })
	r.index = btree.NewG(treeDegree, func(a, b eval.UniqueRow) bool {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Attr, b.Attr), cmp.Compare(a.Value, b.Value), cmp.Compare(a.ID, b.ID)) < 0
	})
}

// where returns the position.
func (r *replica) where() (epoch string, rev schema.Revision, mod int64) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.epoch, r.rev, r.mod
}

// apply makes the changes of a view part of the replica; mu is held.
func (r *replica) apply(v *eval.View) {
	d := v.KeyDiff()
	for _, x := range d.DeleteIndex {
		r.index.Delete(x)
	}
	for _, x := range d.DeleteUnique {
		if r.owners[x.UniqueKey] == x.ID {
			delete(r.owners, x.UniqueKey)
		}
	}
	for _, x := range d.DeleteRefs {
		to := eval.Key{Kind: x.Kind, ID: string(x.ID)}
		if delete(r.refs[to], eval.RefID{From: x.From, Attr: x.Attr}); len(r.refs[to]) == 0 {
			delete(r.refs, to)
		}
	}
	for _, x := range d.InsertIndex {
		r.index.ReplaceOrInsert(x)
	}
	for _, x := range d.InsertUnique {
		r.owners[x.UniqueKey] = x.ID
	}
	for _, x := range d.InsertRefs {
		put(r.refs, eval.Key{Kind: x.Kind, ID: string(x.ID)}, eval.RefID{From: x.From, Attr: x.Attr}, x.OnDelete)
	}
	for k, old := range v.Origin {
		if old != nil {
			remove(r.members, old.Rec.Lease, k)
			remove(r.projects, string(old.Rec.Project), k)
		}
		o := v.Objects[k]
		if o == nil {
			delete(r.objects, k)
			r.ids.Delete(k)
			continue
		}
		r.objects[k] = o
		r.ids.ReplaceOrInsert(k)
		if o.Rec.Lease != "" {
			put(r.members, o.Rec.Lease, k, struct{}{})
		}
		if o.Rec.Project != "" {
			put(r.projects, string(o.Rec.Project), k, struct{}{})
		}
	}
}

func put[A, B comparable, V any](m map[A]map[B]V, a A, b B, v V) {
	if m[a] == nil {
		m[a] = map[B]V{}
	}
	m[a][b] = v
}

func remove[A, B comparable](m map[A]map[B]struct{}, a A, b B) {
	if delete(m[a], b); len(m[a]) == 0 {
		delete(m, a)
	}
}

// Entities implements listing.Memory; mu is held.
func (r *replica) Entities(kind, after string) iter.Seq[*eval.Object] {
	return func(yield func(*eval.Object) bool) {
		r.ids.AscendGreaterOrEqual(eval.Key{Kind: kind, ID: after}, func(k eval.Key) bool {
			return k.Kind == kind && (k.ID == after || yield(r.objects[k]))
		})
	}
}

// Index implements listing.Memory; mu is held.
func (r *replica) Index(kind, attr string, value []byte, after string) iter.Seq2[[]byte, *eval.Object] {
	from := eval.UniqueRow{UniqueKey: eval.UniqueKey{Kind: kind, Attr: attr, Value: string(value)}, ID: after}
	return func(yield func([]byte, *eval.Object) bool) {
		r.index.AscendGreaterOrEqual(from, func(x eval.UniqueRow) bool {
			return x.Kind == kind && x.Attr == attr && (x == from || yield([]byte(x.Value), r.objects[eval.Key{Kind: kind, ID: x.ID}]))
		})
	}
}
