package storetest

import (
	"context"
	"reflect"
	"slices"
	"testing"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/wait"
)

// Run runs the suite. open returns an empty store that knows Kinds, and closes
// it at the end of the test.
func Run(t *testing.T, open func(t *testing.T) entity.Store) {
	for _, c := range []struct {
		name string
		run  func(t *testing.T, f *fixture)
	}{
		{"CreateGet", testCreateGet},
		{"Invalid", testInvalid},
		{"Revisions", testRevisions},
		{"Conditions", testConditions},
		{"ABA", testABA},
		{"TxnAtomic", testTxnAtomic},
		{"TxnOrderFree", testTxnOrderFree},
		{"Unique", testUnique},
		{"References", testReferences},
		{"Clear", testClear},
		{"Cascade", testCascade},
		{"CascadeWithin", testCascadeWithin},
		{"CascadeLarge", testCascadeLarge},
		{"CascadeNamed", testCascadeNamed},
		{"ClearLarge", testClearLarge},
		{"ProjectMembers", testProjectMembers},
		{"RequestID", testRequestID},
		{"Add", testAdd},
		{"AddQuota", testAddQuota},
		{"ListSelect", testListSelect},
		{"ListOneRevision", testListOneRevision},
		{"ListCursor", testListCursor},
		{"ListOrder", testListOrder},
		{"ListQueue", testListQueue},
		{"WatchFromList", testWatchFromList},
		{"WatchSelect", testWatchSelect},
		{"WatchIDs", testWatchIDs},
		{"WatchValue", testWatchValue},
		{"WatchValueResumes", testWatchValueResumes},
		{"WatchTransaction", testWatchTransaction},
		{"WatchBookmarks", testWatchBookmarks},
		{"WatchEnds", testWatchEnds},
		{"WatchOtherEpoch", testWatchOtherEpoch},
		{"ConcurrentWriters", testConcurrentWriters},
		{"ConcurrentCounter", testConcurrentCounter},
		{"RejectedAmongOthers", testRejectedAmongOthers},
		{"LeaseLapse", testLeaseLapse},
		{"LeaseKeepAlive", testLeaseKeepAlive},
		{"LeaseRevoke", testLeaseRevoke},
		{"LeaseConditions", testLeaseConditions},
		{"LeaseLarge", testLeaseLarge},
		{"CanceledWrite", testCanceledWrite},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := &fixture{t: t, Store: open(t)}
			f.project = f.newProject()
			c.run(t, f)
		})
	}
}

// fixture is a store with a project, and helpers that fail the test.
type fixture struct {
	entity.Store
	t       *testing.T
	project schema.ID
}

func (f *fixture) newProject() schema.ID {
	f.t.Helper()
	p := new(Project)
	f.create(p)
	return p.ID
}

// thing returns a new, unstored thing.
func (f *fixture) thing(change ...func(*Thing)) *Thing {
	o := &Thing{Meta: schema.Meta{Project: f.project}, Spec: ThingSpec{Color: "red"}}
	for _, c := range change {
		c(o)
	}
	return o
}

// stored returns a new, stored thing.
func (f *fixture) stored(change ...func(*Thing)) *Thing {
	f.t.Helper()
	o := f.thing(change...)
	f.create(o)
	return o
}

func (f *fixture) create(o schema.Object) {
	f.t.Helper()
	if err := entity.Create(f.t.Context(), f, o); err != nil {
		f.t.Fatalf("create %s: %v", o.EntityKind().Name, err)
	}
}

func (f *fixture) get(id schema.ID) *Thing {
	f.t.Helper()
	o, err := entity.Get[Thing](f.t.Context(), f, id)
	if err != nil {
		f.t.Fatalf("get: %v", err)
	}
	return o
}

func (f *fixture) absent(ids ...schema.ID) {
	f.t.Helper()
	for _, id := range ids {
		if o, err := entity.Get[Thing](f.t.Context(), f, id); !errs.Is(err, errs.NotFound) {
			f.t.Errorf("%s is there: %+v, %v", id, o, err)
		}
	}
}

func (f *fixture) txn(ops ...entity.Op) (entity.TxnResult, error) {
	return f.Txn(f.t.Context(), entity.TxnRequest{Ops: ops})
}

func (f *fixture) mustTxn(ops ...entity.Op) entity.TxnResult {
	f.t.Helper()
	res, err := f.txn(ops...)
	if err != nil {
		f.t.Fatalf("txn: %v", err)
	}
	return res
}

// fails checks the class of an error and its details, given as pairs.
func (f *fixture) fails(err error, class errs.Class, details ...string) {
	f.t.Helper()
	if !errs.Is(err, class) {
		f.t.Errorf("got %v (%s), want %s", err, errs.ClassOf(err), class)
		return
	}
	for i := 0; i+1 < len(details); i += 2 {
		if got := errs.Detail(err, details[i]); got != details[i+1] {
			f.t.Errorf("%v: detail %s is %q, want %q", err, details[i], got, details[i+1])
		}
	}
}

func (f *fixture) op(op entity.Op, err error) entity.Op {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
	return op
}

// list returns the ids that q selects, in order.
func (f *fixture) list(q entity.Query) []schema.ID {
	f.t.Helper()
	q.Kind = "thing"
	page, err := f.List(f.t.Context(), q)
	if err != nil {
		f.t.Fatalf("list: %v", err)
	}
	if page.Cursor != "" {
		f.t.Fatal("list does not fit one page")
	}
	return ids(page.Records)
}

func ids(recs []schema.Record) []schema.ID {
	out := []schema.ID{}
	for _, r := range recs {
		out = append(out, r.ID)
	}
	return out
}

func sorted(things ...*Thing) []schema.ID {
	out := []schema.ID{}
	for _, o := range things {
		out = append(out, o.ID)
	}
	slices.Sort(out)
	return out
}

func (f *fixture) equal(what string, got, want any) {
	f.t.Helper()
	if !reflect.DeepEqual(got, want) {
		f.t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// follow starts a watch that is closed at the end of the test.
func (f *fixture) follow(q entity.WatchQuery) *follower {
	f.t.Helper()
	w, err := f.Watch(f.t.Context(), q)
	if err != nil {
		f.t.Fatalf("watch: %v", err)
	}
	f.t.Cleanup(w.Close)
	return &follower{f: f, Watch: w}
}

// follower reads a watch event by event.
type follower struct {
	entity.Watch
	f       *fixture
	pending []entity.Event
}

// next returns the next event, which must come in time.
func (w *follower) next() entity.Event {
	w.f.t.Helper()
	if len(w.pending) == 0 {
		ctx, cancel := context.WithTimeout(w.f.t.Context(), wait.Limit)
		defer cancel()
		evs, err := w.Next(ctx)
		if err != nil {
			w.f.t.Fatalf("next event: %v", err)
		}
		if len(evs) == 0 {
			w.f.t.Fatal("Next returned nothing")
		}
		w.pending = evs
	}
	e := w.pending[0]
	w.pending = w.pending[1:]
	return e
}

// change returns the next event that is not a bookmark.
func (w *follower) change() entity.Event {
	w.f.t.Helper()
	for {
		if e := w.next(); e.Type != entity.EventBookmark {
			return e
		}
	}
}
