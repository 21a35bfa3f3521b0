package storetest

import (
	"fmt"
	"testing"
	"time"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// large is a number of entities above the bound of one deletion, if the store
// is opened with MaxCascade.
const large = 350

// MaxCascade is how many entities a deletion should change at once in the store
// under test, so that few are enough for a large one. A multiple of it also
// passes, and tests less.
const MaxCascade = 100

// testClear: references with the policy clear are removed with their target, in
// spec and status, alone and in lists; nothing else of their entity changes.
func testClear(t *testing.T, f *fixture) {
	target, other := f.stored(), f.stored()
	user := f.stored(func(o *Thing) {
		o.Spec.Size, o.Spec.Likes, o.Spec.Friends, o.Status.Phase = 7, target.ID, []schema.ID{other.ID, target.ID}, "busy"
	})
	watcher := f.stored(func(o *Thing) { o.Status.Seen = target.ID })
	bystander := f.stored(func(o *Thing) { o.Spec.Likes = other.ID })
	w := f.follow(entity.WatchQuery{IDs: []schema.ID{user.ID, watcher.ID, target.ID, bystander.ID}})
	w.next()
	res := f.mustTxn(f.op(entity.DeleteOp(target)))

	want := *user
	want.Revision, want.SpecRevision, want.Spec.Likes, want.Spec.Friends = res.Revision, res.Revision, "", []schema.ID{other.ID}
	got := f.get(user.ID)
	want.UpdatedAt = got.UpdatedAt
	f.equal("cleared in the spec", got, &want)
	got = f.get(watcher.ID)
	if got.Status.Seen != "" || got.StatusRevision != res.Revision || got.SpecRevision != watcher.SpecRevision || got.Revision != res.Revision {
		t.Errorf("cleared in the status: %+v", got)
	}
	f.equal("what does not refer to it", f.get(bystander.ID), bystander)
	told := map[schema.ID]entity.EventType{}
	for range 3 {
		e := w.change()
		if told[e.Record.ID] = e.Type; e.Record.Revision != res.Revision {
			t.Errorf("event: %+v", e)
		}
	}
	f.equal("told", told, map[schema.ID]entity.EventType{user.ID: entity.EventPut, watcher.ID: entity.EventPut, target.ID: entity.EventDelete})
	f.fails(entity.UpdateSpec(t.Context(), f, user), errs.Conflict)

	// Together with an update that keeps the reference.
	user = f.get(user.ID)
	user.Spec.Size = 8
	res = f.mustTxn(f.op(entity.UpdateSpecOp(user)), f.op(entity.DeleteOp(f.get(other.ID))))
	got = f.get(user.ID)
	if got.Spec.Size != 8 || len(got.Spec.Friends) != 0 {
		t.Errorf("updated and cleared: %+v", got)
	}
	f.equal("result", res.Records[0].Meta, got.Meta)

	// A transaction cannot create a reference to an entity that it deletes.
	gone := f.stored()
	_, err := f.txn(f.op(entity.DeleteOp(gone)), f.op(entity.CreateOp(f.thing(func(o *Thing) { o.Spec.Likes = gone.ID }))))
	f.fails(err, errs.FailedPrecondition, "attr", "spec.likes")

	// An entity that is deleted too is not cleared, and a refused deletion
	// clears nothing.
	child := f.stored(func(o *Thing) { o.Spec.Owner, o.Spec.Likes = gone.ID, gone.ID })
	likes := f.stored(func(o *Thing) { o.Spec.Likes = child.ID })
	needs := f.stored(func(o *Thing) { o.Spec.Needs = child.ID })
	f.fails(entity.Delete(t.Context(), f, gone), errs.FailedPrecondition, "id", string(child.ID))
	f.equal("after a refused deletion", f.get(likes.ID), likes)
	f.mustTxn(f.op(entity.DeleteOp(gone)), f.op(entity.DeleteOp(needs)))
	f.absent(gone.ID, child.ID)
	if got := f.get(likes.ID); got.Spec.Likes != "" {
		t.Errorf("of a cascade: %+v", got)
	}
}

// testCascadeWithin: a restricting reference does not prevent the deletion of
// its target if the referrer is deleted too, however the cascade reaches it.
func testCascadeWithin(t *testing.T, f *fixture) {
	root := f.stored(func(o *Thing) { o.ID = "thing-root" })
	f.stored(func(o *Thing) { o.ID, o.Spec.Owner = "thing-a", root.ID })
	f.stored(func(o *Thing) { o.ID, o.Spec.Owner = "thing-b", root.ID })
	f.stored(func(o *Thing) { o.ID, o.Spec.Owner, o.Spec.Needs = "thing-c", "thing-b", "thing-a" })
	f.mustTxn(f.op(entity.DeleteOp(root)))
	f.absent("thing-root", "thing-a", "thing-b", "thing-c")
}

// grow creates n things, several at a time.
func (f *fixture) grow(n int, change func(i int, o *Thing)) {
	f.t.Helper()
	for i := 0; i < n; {
		var ops []entity.Op
		for ; i < n && len(ops) < MaxCascade; i++ {
			ops = append(ops, f.op(entity.CreateOp(f.thing(func(o *Thing) { change(i, o) }))))
		}
		f.mustTxn(ops...)
	}
}

func (f *fixture) count() int {
	f.t.Helper()
	return len(f.list(entity.Query{}))
}

// testCascadeLarge: a large deletion is applied in parts, innermost first; it
// is refused as a whole if an entity in it must stay.
func testCascadeLarge(t *testing.T, f *fixture) {
	root := f.stored(func(o *Thing) { o.ID = "thing-root" })
	id := func(i int) schema.ID { return schema.ID(fmt.Sprintf("thing-%05d", i)) }
	// Fifty entities below the root; the others below these, some with
	// references across.
	f.grow(large, func(i int, o *Thing) {
		o.ID, o.Spec.Owner = id(i), root.ID
		if i >= 50 {
			o.Spec.Owner = id(i % 50)
		}
		if i > 100 && i%3 == 0 {
			o.Spec.Needs = id(i - 7)
		}
		if i > 100 && i%3 == 1 {
			o.Spec.Likes = id(i - 5)
		}
	})
	outside := f.stored(func(o *Thing) { o.Spec.Likes = id(large - 1) })
	holder := f.stored(func(o *Thing) { o.Spec.Needs = id(large / 2) })
	f.fails(entity.Delete(t.Context(), f, root), errs.FailedPrecondition, "id", string(id(large/2)))
	if n := f.count(); n != large+3 {
		t.Fatalf("a refused deletion left %d of %d", n, large+3)
	}
	if err := entity.Delete(t.Context(), f, holder); err != nil {
		t.Fatal(err)
	}
	stale := *root
	root.Spec.Size = 5
	if err := entity.UpdateSpec(t.Context(), f, root); err != nil {
		t.Fatal(err)
	}
	f.fails(entity.Delete(t.Context(), f, &stale), errs.Conflict)
	if n := f.count(); n != large+2 {
		t.Fatalf("a deletion that was not of the newest left %d of %d", n, large+2)
	}
	w := f.follow(entity.WatchQuery{Kinds: []string{"thing"}})
	w.next()
	fresh := f.thing(func(o *Thing) { o.ID = "thing-fresh" })
	res, err := f.Txn(t.Context(), entity.TxnRequest{RequestID: "large", Ops: []entity.Op{f.op(entity.DeleteOp(root)), f.op(entity.CreateOp(fresh))}})
	if err != nil {
		t.Fatal(err)
	}
	// Every part sends events, referrers before their targets.
	gone, last := map[schema.ID]bool{}, schema.Revision(0)
	for len(gone) <= large {
		e := w.change()
		switch e.Type {
		case entity.EventDelete:
			o, err := entity.Decode[Thing](&e.Record)
			if err != nil {
				t.Fatal(err)
			}
			if gone[o.Spec.Owner] && e.Record.Revision != last {
				t.Fatalf("%s was deleted after its owner", o.ID)
			}
			if gone[e.Record.ID] = true; e.Record.Revision < last {
				t.Fatalf("revision %d after %d", e.Record.Revision, last)
			}
			last = e.Record.Revision
		case entity.EventPut:
			if e.Record.ID != outside.ID && e.Record.ID != fresh.ID && gone[e.Record.ID] {
				t.Fatalf("%s was changed after it was deleted", e.Record.ID)
			}
		}
	}
	if last != res.Revision || res.Records[0].ID != root.ID || res.Records[1].CreateRevision != res.Revision {
		t.Errorf("the last part is of revision %d, the result %+v", last, res)
	}
	if n := f.count(); n != 2 || f.get(outside.ID).Spec.Likes != "" {
		t.Errorf("%d are left", n)
	}
	// A repetition is answered with the outcome.
	again, err := f.Txn(t.Context(), entity.TxnRequest{RequestID: "large", Ops: []entity.Op{f.op(entity.DeleteOp(root)), f.op(entity.CreateOp(fresh))}})
	if err != nil || again.Revision != res.Revision {
		t.Errorf("repeated: %+v, %v", again, err)
	}
}

// testCascadeNamed: the parts of a large deletion do not change entities that
// its transaction names: their conditions must hold until the end.
func testCascadeNamed(t *testing.T, f *fixture) {
	root := f.stored(func(o *Thing) { o.ID = "thing-root" })
	id := func(i int) schema.ID { return schema.ID(fmt.Sprintf("thing-%05d", i)) }
	f.grow(large, func(i int, o *Thing) { o.ID, o.Spec.Owner = id(i), root.ID })
	root.Spec.Likes = id(0)
	if err := entity.UpdateSpec(t.Context(), f, root); err != nil {
		t.Fatal(err)
	}
	moves := f.stored(func(o *Thing) { o.Spec.Owner, o.Spec.Likes = root.ID, id(1) })
	checked := f.stored(func(o *Thing) { o.Spec.Likes, o.Status.Seen = id(2), id(3) })
	stays := *moves
	stays.Spec.Owner, stays.Spec.Likes = "", ""
	// Without the check, since the checked entity must keep its reference.
	f.mustTxn(f.op(entity.UpdateSpecOp(&stays)), f.op(entity.DeleteOp(root)))
	if got := f.get(moves.ID); got.Spec.Owner != "" {
		t.Errorf("%+v", got)
	}
	if got := f.get(checked.ID); got.Spec.Likes != "" || got.Status.Seen != "" {
		t.Errorf("%+v", got)
	}
	if n := f.count(); n != 2 {
		t.Errorf("%d are left", n)
	}

	root = f.stored(func(o *Thing) { o.ID = "thing-root" })
	f.grow(large, func(i int, o *Thing) { o.ID, o.Spec.Owner = id(i), root.ID })
	checked = f.get(checked.ID)
	checked.Spec.Likes = id(2)
	if err := entity.UpdateSpec(t.Context(), f, checked); err != nil {
		t.Fatal(err)
	}
	res := f.mustTxn(f.op(entity.DeleteOp(root)), f.op(entity.CheckOp(checked)))
	if got := f.get(checked.ID); got.Spec.Likes != "" || got.Revision != res.Revision {
		t.Errorf("%+v, want it cleared with revision %d", got, res.Revision)
	}
}

// testClearLarge: very many references are cleared in parts.
func testClearLarge(t *testing.T, f *fixture) {
	target := f.stored()
	f.grow(large, func(_ int, o *Thing) { o.Spec.Likes, o.Status.Seen = target.ID, target.ID })
	if err := entity.Delete(t.Context(), f, target); err != nil {
		t.Fatal(err)
	}
	all, _, err := entity.List[Thing](t.Context(), f, entity.Query{})
	if err != nil || len(all) != large {
		t.Fatalf("%d are left: %v", len(all), err)
	}
	for _, o := range all {
		if o.Spec.Likes != "" || o.Status.Seen != "" {
			t.Fatalf("not cleared: %+v", o)
		}
	}
}

// testLeaseLarge: a lease with very many entities ends with all of them.
func testLeaseLarge(t *testing.T, f *fixture) {
	l := f.grant(time.Hour)
	first := f.stored(func(o *Thing) { o.ID, o.Lease = "thing-0first", l })
	f.grow(large, func(i int, o *Thing) {
		if o.Lease = l; i%5 == 0 { // deleted by cascade
			o.Lease, o.Spec.Owner = "", first.ID
		}
	})
	if err := f.Revoke(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	if n := f.count(); n != 0 {
		t.Errorf("%d are left", n)
	}
	_, err := f.KeepAlive(t.Context(), l)
	f.fails(err, errs.NotFound)
	f.fails(entity.Create(t.Context(), f, f.thing(func(o *Thing) { o.Lease = l })), errs.FailedPrecondition, "attr", "meta.lease")
}
