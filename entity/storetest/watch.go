package storetest

import (
	"context"
	"testing"
	"time"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/wait"
)

func testWatchFromList(t *testing.T, f *fixture) {
	a := f.stored()
	page, err := f.List(t.Context(), entity.Query{Kind: "thing"})
	if err != nil {
		t.Fatal(err)
	}
	b := f.stored()
	a.Spec.Color = "blue"
	if err := entity.UpdateSpec(t.Context(), f, a); err != nil {
		t.Fatal(err)
	}
	w := f.follow(entity.WatchQuery{Kinds: []string{"thing"}, From: page.Token})
	b.Status.Phase = "busy"
	if err := entity.UpdateStatus(t.Context(), f, b); err != nil {
		t.Fatal(err)
	}
	if err := entity.Delete(t.Context(), f, a); err != nil {
		t.Fatal(err)
	}
	type seen struct {
		typ entity.EventType
		id  any
		rev any
	}
	got := []seen{}
	var tokens []schema.Token
	for range 4 {
		e := w.change()
		got = append(got, seen{e.Type, e.Record.ID, e.Record.Revision})
		tokens = append(tokens, e.Token)
		if e.Token.Revision != e.Record.Revision || e.Token.Epoch != page.Token.Epoch {
			t.Errorf("token %v of an event at revision %d", e.Token, e.Record.Revision)
		}
		if e.Type == entity.EventDelete {
			last, err := entity.Decode[Thing](&e.Record)
			if err != nil || last.Spec.Color != "blue" {
				t.Errorf("last object: %+v, %v", last, err)
			}
		}
	}
	r := page.Token.Revision
	want := []seen{{entity.EventPut, b.ID, r + 1}, {entity.EventPut, a.ID, r + 2}, {entity.EventPut, b.ID, r + 3}, {entity.EventDelete, a.ID, r + 4}}
	f.equal("events", got, want)

	// Resuming anywhere returns exactly the remaining events.
	for i, tok := range tokens {
		w := f.follow(entity.WatchQuery{Kinds: []string{"thing"}, From: tok})
		for _, want := range want[i+1:] {
			e := w.next()
			f.equal("resumed event", seen{e.Type, e.Record.ID, e.Record.Revision}, want)
		}
		if e := w.next(); e.Type != entity.EventBookmark || e.Token.Revision < r+4 {
			t.Errorf("after the rest came %+v", e)
		}
	}
}

func testWatchSelect(t *testing.T, f *fixture) {
	other := f.newProject()
	things := f.follow(entity.WatchQuery{Kinds: []string{"thing"}})
	all := f.follow(entity.WatchQuery{})
	mine := f.follow(entity.WatchQuery{Kinds: []string{"thing"}, Project: other})
	for _, w := range []*follower{things, all, mine} {
		if e := w.next(); e.Type != entity.EventBookmark {
			t.Fatalf("first event %+v", e)
		}
	}
	node := new(Node)
	f.create(node)
	a := f.stored()
	b := f.stored(func(o *Thing) { o.Project = other })
	if e := things.change(); e.Record.ID != a.ID {
		t.Errorf("things: %+v", e)
	}
	if e := things.change(); e.Record.ID != b.ID {
		t.Errorf("things: %+v", e)
	}
	if e := mine.change(); e.Record.ID != b.ID {
		t.Errorf("of a project: %+v", e)
	}
	var last entity.Event
	for _, want := range []any{node.ID, a.ID, b.ID} {
		if last = all.change(); any(last.Record.ID) != want {
			t.Errorf("everything: %+v, want %v", last, want)
		}
	}
	// Several kinds, in one order.
	several := f.follow(entity.WatchQuery{Kinds: []string{"node", "thing"}, From: schema.Token{Epoch: last.Token.Epoch, Revision: node.Revision - 1}})
	f.create(new(Project))
	c := f.stored()
	for _, want := range []any{node.ID, a.ID, b.ID, c.ID} {
		if e := several.change(); any(e.Record.ID) != want {
			t.Errorf("of two kinds: %+v, want %v", e, want)
		}
	}
	_, err := f.Watch(t.Context(), entity.WatchQuery{Kinds: []string{"thing", "nonsense"}})
	f.fails(err, errs.InvalidArgument)
}

// testWatchIDs: a watch of ids sends no other events, whether it reads recent
// changes or old ones.
func testWatchIDs(t *testing.T, f *fixture) {
	mine, also := f.stored(func(o *Thing) { o.ID = "thing-mine" }), schema.ID("thing-later")
	before := mine.Revision
	q := entity.WatchQuery{Kinds: []string{"thing"}, IDs: []schema.ID{mine.ID, also}}
	w := f.follow(q)
	first := w.next()
	if first.Type != entity.EventBookmark || first.Token.Revision < before {
		t.Fatalf("first event: %+v", first)
	}
	for range 5 {
		f.stored()
	}
	later := f.stored(func(o *Thing) { o.ID = also })
	mine.Status.Count++
	if err := entity.UpdateStatus(t.Context(), f, mine); err != nil {
		t.Fatal(err)
	}
	f.stored()
	if err := entity.Delete(t.Context(), f, later); err != nil {
		t.Fatal(err)
	}
	type seen struct {
		typ entity.EventType
		id  schema.ID
		rev schema.Revision
	}
	want := []seen{{entity.EventPut, also, before + 6}, {entity.EventPut, mine.ID, before + 7}, {entity.EventDelete, also, before + 9}}
	q.From = schema.Token{Epoch: first.Token.Epoch, Revision: before}
	for name, w := range map[string]*follower{"running": w, "resumed": f.follow(q)} {
		for _, want := range want {
			e := w.change()
			f.equal(name, seen{e.Type, e.Record.ID, e.Record.Revision}, want)
		}
	}
	// Ids alone are enough, and other conditions hold too.
	q.Kinds = nil
	if e := f.follow(q).change(); e.Record.ID != also {
		t.Errorf("without a kind: %+v", e)
	}
	q.Project = f.newProject()
	elsewhere := f.follow(q)
	if e := elsewhere.next(); e.Type != entity.EventBookmark {
		t.Errorf("of another project: %+v", e)
	}
	_, err := f.Watch(t.Context(), entity.WatchQuery{IDs: make([]schema.ID, entity.MaxWatchIDs+1)})
	f.fails(err, errs.InvalidArgument)
}

// change is an event of a watch about an entity.
type change struct {
	typ entity.EventType
	id  schema.ID
}

// drive makes changes that enter, leave and stay within the color blue and the
// label on=yes, and returns the events that watches of each must send.
func (f *fixture) drive() (blue, label []change) {
	f.t.Helper()
	must := func(err error) {
		f.t.Helper()
		if err != nil {
			f.t.Fatal(err)
		}
	}
	put, leave, gone := entity.EventPut, entity.EventLeave, entity.EventDelete
	a := f.stored(func(o *Thing) { o.ID, o.Spec.Color = "thing-a", "blue" }) // created within
	b := f.stored(func(o *Thing) { o.ID = "thing-b" })
	a.Status.Phase = "busy" // stays
	must(entity.UpdateStatus(f.t.Context(), f, a))
	b.Spec.Color, b.Labels = "blue", map[string]string{"on": "yes"} // enters
	must(entity.UpdateSpec(f.t.Context(), f, b))
	a.Spec.Color = "red" // leaves
	must(entity.UpdateSpec(f.t.Context(), f, a))
	a.Spec.Size = 3 // outside
	must(entity.UpdateSpec(f.t.Context(), f, a))
	b.Labels = map[string]string{"on": "no"} // stays in one, leaves the other
	must(entity.UpdateSpec(f.t.Context(), f, b))
	must(entity.Delete(f.t.Context(), f, a)) // outside
	must(entity.Delete(f.t.Context(), f, b)) // within
	c := f.thing(func(o *Thing) { o.ID, o.Spec.Color = "thing-c", "blue" })
	d := f.thing(func(o *Thing) { o.ID = "thing-d" })
	f.mustTxn(f.op(entity.CreateOp(d)), f.op(entity.CreateOp(c))) // half of a transaction
	last := f.stored(func(o *Thing) { o.ID, o.Spec.Color, o.Labels = "thing-z", "blue", map[string]string{"on": "yes"} })
	blue = []change{{put, a.ID}, {put, a.ID}, {put, b.ID}, {leave, a.ID}, {put, b.ID}, {gone, b.ID}, {put, c.ID}, {put, last.ID}}
	return blue, []change{{put, b.ID}, {leave, b.ID}, {put, last.ID}}
}

var (
	selectBlue  = &entity.Selector{Attr: "spec.color", Value: []byte("blue")}
	selectLabel = entity.LabelSelector("on", "yes")
)

// testWatchValue: a watch by value sends the events of entities with the value,
// and one event when an entity loses it.
func testWatchValue(t *testing.T, f *fixture) {
	w := f.follow(entity.WatchQuery{Kinds: []string{"thing"}, Select: selectBlue})
	l := f.follow(entity.WatchQuery{Select: selectLabel})
	for _, w := range []*follower{w, l} {
		if e := w.next(); e.Type != entity.EventBookmark {
			t.Fatalf("first event: %+v", e)
		}
	}
	blue, label := f.drive()
	w.expect("by color", blue)
	l.expect("by label", label)
	_, err := f.Watch(t.Context(), entity.WatchQuery{Select: new(entity.Selector)})
	f.fails(err, errs.InvalidArgument)
}

// testWatchValueResumes: the same for a watch that resumes from an older
// position.
func testWatchValueResumes(t *testing.T, f *fixture) {
	page, err := f.List(t.Context(), entity.Query{Kind: "thing"})
	if err != nil {
		t.Fatal(err)
	}
	blue, label := f.drive()
	f.follow(entity.WatchQuery{Kinds: []string{"thing"}, Select: selectBlue, From: page.Token}).expect("by color", blue)
	f.follow(entity.WatchQuery{Kinds: []string{"thing", "node"}, Select: selectLabel, From: page.Token}).expect("by label", label)
}

// expect reads exactly these changes.
func (w *follower) expect(what string, want []change) {
	w.f.t.Helper()
	var got []change
	for range want {
		e := w.change()
		got = append(got, change{e.Type, e.Record.ID})
	}
	w.f.equal(what, got, want)
}

// testWatchTransaction: the changes of a transaction come together, and no
// token resumes in its middle, which would lose the rest.
func testWatchTransaction(t *testing.T, f *fixture) {
	w := f.follow(entity.WatchQuery{Kinds: []string{"thing"}})
	w.next()
	a, b := f.thing(), f.thing()
	res := f.mustTxn(f.op(entity.CreateOp(a)), f.op(entity.CreateOp(b)))
	evs, err := w.Next(t.Context())
	if err != nil || len(evs) < 2 || evs[0].Record.Revision != res.Revision || evs[1].Record.Revision != res.Revision {
		t.Fatalf("events of a transaction: %+v, %v", evs, err)
	}
	resumed := f.follow(entity.WatchQuery{Kinds: []string{"thing"}, From: evs[0].Token})
	for e := resumed.change(); e.Record.ID != evs[1].Record.ID; e = resumed.change() {
	}
	resumed = f.follow(entity.WatchQuery{Kinds: []string{"thing"}, From: evs[1].Token})
	if e := resumed.next(); e.Type != entity.EventBookmark {
		t.Errorf("after the last event of a transaction came %+v", e)
	}
}

func testWatchBookmarks(t *testing.T, f *fixture) {
	w := f.follow(entity.WatchQuery{Kinds: []string{"thing"}, Bookmarks: 50 * time.Millisecond})
	first := w.next()
	if first.Type != entity.EventBookmark {
		t.Fatalf("first event: %+v", first)
	}
	node := new(Node)
	f.create(node) // another kind: no event, but the position moves
	wait.For(f.t, "a bookmark behind another kind's change", func() bool {
		e := w.next()
		return e.Type == entity.EventBookmark && e.Token.Revision >= node.Revision
	})
	o := f.stored()
	if e := w.change(); e.Record.ID != o.ID {
		t.Errorf("event: %+v", e)
	}
	// A watch that asks for no bookmarks gets only the first.
	quiet := f.follow(entity.WatchQuery{Kinds: []string{"thing"}})
	if e := quiet.next(); e.Type != entity.EventBookmark {
		t.Fatalf("first event: %+v", e)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if evs, err := quiet.Next(ctx); !errs.Is(err, errs.DeadlineExceeded) {
		t.Errorf("a quiet watch returned %v, %v", evs, err)
	}
	o = f.stored() // and it continues
	if e := quiet.next(); e.Record.ID != o.ID {
		t.Errorf("event: %+v", e)
	}
}

func testWatchEnds(t *testing.T, f *fixture) {
	w, err := f.Watch(t.Context(), entity.WatchQuery{Kinds: []string{"thing"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Next(t.Context()); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := w.Next(context.Background())
		done <- err
	}()
	w.Close()
	w.Close()
	f.fails(wait.Receive(t, "the end of Next after Close", done), errs.Canceled)
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	w, err = f.Watch(t.Context(), entity.WatchQuery{Kinds: []string{"thing"}})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	_, err = w.Next(canceled)
	f.fails(err, errs.Canceled)
}

func testWatchOtherEpoch(t *testing.T, f *fixture) {
	page, err := f.List(t.Context(), entity.Query{Kind: "thing"})
	if err != nil {
		t.Fatal(err)
	}
	for name, tok := range map[string]schema.Token{
		"another epoch": {Epoch: "epoch-other", Revision: page.Token.Revision},
		"the future":    {Epoch: page.Token.Epoch, Revision: page.Token.Revision + 1000},
	} {
		w, err := f.Watch(t.Context(), entity.WatchQuery{Kinds: []string{"thing"}, From: tok})
		if err == nil { // a backend may notice later
			ctx, cancel := context.WithTimeout(t.Context(), wait.Limit)
			_, err = w.Next(ctx)
			cancel()
			w.Close()
		}
		if !errs.Is(err, errs.Compacted) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
