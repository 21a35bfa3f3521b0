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
	w := f.follow(entity.WatchQuery{Kind: "thing", From: page.Token})
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

	// Resuming anywhere gives exactly the rest.
	for i, tok := range tokens {
		w := f.follow(entity.WatchQuery{Kind: "thing", From: tok})
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
	things := f.follow(entity.WatchQuery{Kind: "thing"})
	all := f.follow(entity.WatchQuery{})
	mine := f.follow(entity.WatchQuery{Kind: "thing", Project: other})
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
	for _, want := range []any{node.ID, a.ID, b.ID} {
		if e := all.change(); any(e.Record.ID) != want {
			t.Errorf("everything: %+v, want %v", e, want)
		}
	}
	_, err := f.Watch(t.Context(), entity.WatchQuery{Kind: "nonsense"})
	f.fails(err, errs.InvalidArgument)
}

// testWatchTransaction: the changes of a transaction come together, and no
// token lets one resume in its middle and lose the rest.
func testWatchTransaction(t *testing.T, f *fixture) {
	w := f.follow(entity.WatchQuery{Kind: "thing"})
	w.next()
	a, b := f.thing(), f.thing()
	res := f.mustTxn(f.op(entity.CreateOp(a)), f.op(entity.CreateOp(b)))
	evs, err := w.Next(t.Context())
	if err != nil || len(evs) < 2 || evs[0].Record.Revision != res.Revision || evs[1].Record.Revision != res.Revision {
		t.Fatalf("events of a transaction: %+v, %v", evs, err)
	}
	resumed := f.follow(entity.WatchQuery{Kind: "thing", From: evs[0].Token})
	for e := resumed.change(); e.Record.ID != evs[1].Record.ID; e = resumed.change() {
	}
	resumed = f.follow(entity.WatchQuery{Kind: "thing", From: evs[1].Token})
	if e := resumed.next(); e.Type != entity.EventBookmark {
		t.Errorf("after the last event of a transaction came %+v", e)
	}
}

func testWatchBookmarks(t *testing.T, f *fixture) {
	w := f.follow(entity.WatchQuery{Kind: "thing", Bookmarks: 50 * time.Millisecond})
	first := w.next()
	if first.Type != entity.EventBookmark {
		t.Fatalf("first event: %+v", first)
	}
	node := new(Node)
	f.create(node) // of another kind: no event, but the position moves
	wait.For(f.t, "a bookmark behind another kind's change", func() bool {
		e := w.next()
		return e.Type == entity.EventBookmark && e.Token.Revision >= node.Revision
	})
	o := f.stored()
	if e := w.change(); e.Record.ID != o.ID {
		t.Errorf("event: %+v", e)
	}
	// One that asks for none gets only the first.
	quiet := f.follow(entity.WatchQuery{Kind: "thing"})
	if e := quiet.next(); e.Type != entity.EventBookmark {
		t.Fatalf("first event: %+v", e)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if evs, err := quiet.Next(ctx); !errs.Is(err, errs.DeadlineExceeded) {
		t.Errorf("a quiet watch returned %v, %v", evs, err)
	}
	o = f.stored() // and it goes on
	if e := quiet.next(); e.Record.ID != o.ID {
		t.Errorf("event: %+v", e)
	}
}

func testWatchEnds(t *testing.T, f *fixture) {
	w, err := f.Watch(t.Context(), entity.WatchQuery{Kind: "thing"})
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
	w, err = f.Watch(t.Context(), entity.WatchQuery{Kind: "thing"})
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
		w, err := f.Watch(t.Context(), entity.WatchQuery{Kind: "thing", From: tok})
		if err == nil { // a backend may find out later
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
