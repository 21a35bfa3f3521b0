package storetest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

func testCreateGet(t *testing.T, f *fixture) {
	before := time.Now().Add(-time.Minute)
	o := f.stored(func(o *Thing) {
		o.Name, o.Labels = "a", map[string]string{"x": "1", "y": ""}
		o.Spec.Size, o.Status.Phase = -5, "new"
	})
	got := f.get(o.ID)
	f.equal("stored", got, o)
	if got.Revision == 0 || got.SpecRevision != got.Revision || got.StatusRevision != got.Revision || got.CreateRevision != got.Revision {
		t.Errorf("revisions of a new entity: %+v", got.Meta)
	}
	if got.CreatedAt.Before(before) || !got.CreatedAt.Equal(got.UpdatedAt) {
		t.Errorf("times of a new entity: %+v", got.Meta)
	}
	f.absent("thing-nobody", "THING", "")
	_, err := f.Get(t.Context(), "nonsense", o.ID)
	f.fails(err, errs.InvalidArgument, "kind", "nonsense")
	_, err = f.Get(t.Context(), "node", o.ID)
	f.fails(err, errs.NotFound, "kind", "node", "id", string(o.ID))
	named, err := entity.ByName[Thing](t.Context(), f, f.project, "a")
	if err != nil || named.ID != o.ID {
		t.Errorf("by name: %v, %v", named, err)
	}
	err = entity.Create(t.Context(), f, f.thing(func(n *Thing) { n.ID = o.ID }))
	f.fails(err, errs.AlreadyExists, "kind", "thing", "id", string(o.ID))
}

func testInvalid(t *testing.T, f *fixture) {
	good := f.op(entity.CreateOp(f.thing()))
	for name, change := range map[string]func(*entity.Op){
		"unknown kind":    func(o *entity.Op) { o.Record.Kind = "nonsense" },
		"foreign prefix":  func(o *entity.Op) { o.Record.ID = "node-1" },
		"upper case id":   func(o *entity.Op) { o.Record.ID = "thing-A" },
		"long id":         func(o *entity.Op) { o.Record.ID = schema.ID("thing-" + strings.Repeat("a", 60)) },
		"no project":      func(o *entity.Op) { o.Record.Project = "" },
		"missing color":   func(o *entity.Op) { o.Record.Spec = []byte{0xa0} },
		"broken spec":     func(o *entity.Op) { o.Record.Spec = []byte{0xff} },
		"huge":            func(o *entity.Op) { o.Record.Spec = make([]byte, 2<<20) },
		"empty label":     func(o *entity.Op) { o.Record.Labels = map[string]string{"": "x"} },
		"unknown op type": func(o *entity.Op) { o.Type = 99 },
	} {
		op := good
		change(&op)
		if _, err := f.txn(op); !errs.Is(err, errs.InvalidArgument) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	_, err := f.txn()
	f.fails(err, errs.InvalidArgument)
	_, err = f.txn(good, good)
	f.fails(err, errs.InvalidArgument)
	node := f.op(entity.CreateOp(&Node{}))
	node.Record.Project = f.project
	_, err = f.txn(node)
	f.fails(err, errs.InvalidArgument, "attr", "meta.project")
	f.mustTxn(good)
}

func testRevisions(t *testing.T, f *fixture) {
	o := f.stored()
	created := o.Revision
	o.Spec.Color = "blue"
	if err := entity.UpdateSpec(t.Context(), f, o); err != nil {
		t.Fatal(err)
	}
	if o.Revision != created+1 || o.SpecRevision != created+1 || o.StatusRevision != created || o.CreateRevision != created {
		t.Errorf("after a spec update: %+v", o.Meta)
	}
	// A status write does not need the spec to be current.
	stale := f.get(o.ID)
	o.Labels = map[string]string{"l": "v"}
	if err := entity.UpdateSpec(t.Context(), f, o); err != nil {
		t.Fatal(err)
	}
	stale.Status.Phase = "busy"
	if err := entity.UpdateStatus(t.Context(), f, stale); err != nil {
		t.Fatalf("status update beside a spec update: %v", err)
	}
	got := f.get(o.ID)
	if got.Revision != created+3 || got.SpecRevision != created+2 || got.StatusRevision != created+3 || got.UpdatedAt.Before(got.CreatedAt) {
		t.Errorf("after both: %+v", got.Meta)
	}
	if got.Spec.Color != "blue" || got.Status.Phase != "busy" || got.Labels["l"] != "v" {
		t.Errorf("contents after both: %+v", got)
	}
	// Both halves at once.
	got.Spec.Color, got.Status.Phase = "green", "idle"
	res := f.mustTxn(f.op(entity.UpdateSpecOp(got)), f.op(entity.UpdateStatusOp(got)))
	both := f.get(o.ID)
	if both.SpecRevision != res.Revision || both.StatusRevision != res.Revision || both.Spec.Color != "green" || both.Status.Phase != "idle" {
		t.Errorf("after one transaction with both: %+v", both)
	}
	// A rejected transaction takes no revision.
	if err := entity.UpdateSpec(t.Context(), f, o); err == nil {
		t.Fatal("stale update was accepted")
	}
	if next := f.stored(); next.Revision != res.Revision+1 {
		t.Errorf("revision after a rejected transaction: %d, want %d", next.Revision, res.Revision+1)
	}
}

func testConditions(t *testing.T, f *fixture) {
	o := f.stored()
	stale := *o
	o.Spec.Color = "blue"
	if err := entity.UpdateSpec(t.Context(), f, o); err != nil {
		t.Fatal(err)
	}
	d := []string{"kind", "thing", "id", string(o.ID)}
	f.fails(entity.UpdateSpec(t.Context(), f, &stale), errs.Conflict, d...)
	f.fails(entity.Delete(t.Context(), f, &stale), errs.Conflict, d...)
	_, err := f.txn(f.op(entity.CheckOp(&stale)))
	f.fails(err, errs.Conflict, d...)
	if err := entity.UpdateStatus(t.Context(), f, &stale); err != nil {
		t.Errorf("status is not touched by the spec update: %v", err)
	}
	f.fails(entity.UpdateStatus(t.Context(), f, o), errs.Conflict, d...)

	nobody := f.thing(func(o *Thing) { o.ID, o.Revision, o.SpecRevision, o.StatusRevision = "thing-nobody", 1, 1, 1 })
	for name, make := range map[string]func(schema.Object) (entity.Op, error){
		"spec": entity.UpdateSpecOp, "status": entity.UpdateStatusOp, "delete": entity.DeleteOp, "check": entity.CheckOp} {
		if _, err := f.txn(f.op(make(nobody))); !errs.Is(err, errs.NotFound) {
			t.Errorf("%s of an absent entity: %v", name, err)
		}
	}
	nobody.Revision = 0
	f.mustTxn(f.op(entity.CheckOp(nobody)))
	o = f.get(o.ID)
	absent := *o
	absent.Revision = 0
	_, err = f.txn(f.op(entity.CheckOp(&absent)))
	f.fails(err, errs.AlreadyExists, d...)

	res := f.mustTxn(f.op(entity.CheckOp(o)))
	f.equal("checked", res.Records[0].Meta, o.Meta)
	other := *o
	other.Project = f.newProject()
	f.fails(entity.UpdateSpec(t.Context(), f, &other), errs.InvalidArgument, "attr", "meta.project")
	if err := entity.Delete(t.Context(), f, o); err != nil {
		t.Fatal(err)
	}
	f.absent(o.ID)
}

// testABA: a value that changed and changed back is not the value that was
// read.
func testABA(t *testing.T, f *fixture) {
	o := f.stored(func(o *Thing) { o.ID = "thing-aba" })
	stale := *o
	for _, color := range []string{"blue", "red"} {
		o.Spec.Color = color
		if err := entity.UpdateSpec(t.Context(), f, o); err != nil {
			t.Fatal(err)
		}
	}
	f.fails(entity.UpdateSpec(t.Context(), f, &stale), errs.Conflict)
	if err := entity.Delete(t.Context(), f, o); err != nil {
		t.Fatal(err)
	}
	again := f.stored(func(o *Thing) { o.ID = "thing-aba" })
	f.fails(entity.UpdateSpec(t.Context(), f, o), errs.Conflict)
	f.fails(entity.Delete(t.Context(), f, o), errs.Conflict)
	f.equal("survivor", f.get("thing-aba"), again)
}

func testTxnAtomic(t *testing.T, f *fixture) {
	a, b := f.stored(), f.stored()
	fresh := f.thing()
	a.Spec.Color = "blue"
	stale := *b
	stale.Revision--
	_, err := f.txn(f.op(entity.UpdateSpecOp(a)), f.op(entity.CreateOp(fresh)), f.op(entity.CheckOp(&stale)))
	f.fails(err, errs.Conflict, "id", string(b.ID))
	f.absent(fresh.ID)
	if f.get(a.ID).Spec.Color != "red" {
		t.Error("half of a rejected transaction was applied")
	}
	res := f.mustTxn(f.op(entity.UpdateSpecOp(a)), f.op(entity.CreateOp(fresh)), f.op(entity.DeleteOp(b)))
	if len(res.Records) != 3 || res.Records[0].Revision != res.Revision || res.Records[1].CreateRevision != res.Revision || res.Records[2].ID != b.ID {
		t.Errorf("result: %+v", res)
	}
	f.equal("created", res.Records[1].Meta, f.get(fresh.ID).Meta)
	f.equal("updated", res.Records[0].Meta, f.get(a.ID).Meta)
	f.absent(b.ID)
}

// testTxnOrderFree: references and uniqueness hold after a transaction,
// whatever the order within.
func testTxnOrderFree(t *testing.T, f *fixture) {
	owner := f.thing(func(o *Thing) { o.ID = "thing-owner" })
	child := f.thing(func(o *Thing) { o.Spec.Owner = owner.ID })
	f.mustTxn(f.op(entity.CreateOp(child)), f.op(entity.CreateOp(owner)))

	// Names change hands.
	a := f.stored(func(o *Thing) { o.Name = "a" })
	b := f.stored(func(o *Thing) { o.Name = "b" })
	a.Name, b.Name = "b", "a"
	f.mustTxn(f.op(entity.UpdateSpecOp(a)), f.op(entity.UpdateSpecOp(b)))
	if f.get(a.ID).Name != "b" || f.get(b.ID).Name != "a" {
		t.Error("names were not swapped")
	}
	b = f.get(b.ID)
	c := f.thing(func(o *Thing) { o.Name = "a" })
	f.mustTxn(f.op(entity.CreateOp(c)), f.op(entity.DeleteOp(b)))

	// Both ends of a restricting reference can be deleted together.
	target := f.stored()
	user := f.stored(func(o *Thing) { o.Spec.Needs = target.ID })
	f.mustTxn(f.op(entity.DeleteOp(target)), f.op(entity.DeleteOp(user)))
	f.absent(target.ID, user.ID)
}

func testUnique(t *testing.T, f *fixture) {
	a := f.stored(func(o *Thing) { o.Name, o.Spec.Serial, o.Spec.Global = "n", "s", "g" })
	taken := func(attr string, err error) {
		t.Helper()
		f.fails(err, errs.AlreadyExists, "kind", "thing", "attr", attr, "owner", string(a.ID))
	}
	create := func(change func(*Thing)) error { return entity.Create(t.Context(), f, f.thing(change)) }
	taken("meta.name", create(func(o *Thing) { o.Name = "n" }))
	taken("spec.serial", create(func(o *Thing) { o.Spec.Serial = "s" }))
	taken("spec.global", create(func(o *Thing) { o.Spec.Global = "g" }))
	b := f.stored(func(o *Thing) { o.Name = "m" })
	b.Name = "n"
	taken("meta.name", entity.UpdateSpec(t.Context(), f, b))

	// Another project has names and serials of its own, but not globals.
	other := f.newProject()
	if err := create(func(o *Thing) { o.Project, o.Name, o.Spec.Serial = other, "n", "s" }); err != nil {
		t.Errorf("same name in another project: %v", err)
	}
	taken("spec.global", create(func(o *Thing) { o.Project, o.Spec.Global = other, "g" }))

	// A value that was given up is free.
	a.Name, a.Spec.Serial = "", ""
	if err := entity.UpdateSpec(t.Context(), f, a); err != nil {
		t.Fatal(err)
	}
	if err := create(func(o *Thing) { o.Name, o.Spec.Serial = "n", "s" }); err != nil {
		t.Errorf("name that was given up: %v", err)
	}
	if err := entity.Delete(t.Context(), f, a); err != nil {
		t.Fatal(err)
	}
	if err := create(func(o *Thing) { o.Spec.Global = "g" }); err != nil {
		t.Errorf("value of a deleted entity: %v", err)
	}
}

func testReferences(t *testing.T, f *fixture) {
	for attr, change := range map[string]func(*Thing){
		"spec.owner":  func(o *Thing) { o.Spec.Owner = "thing-nobody" },
		"spec.needs":  func(o *Thing) { o.Spec.Needs = "thing-nobody" },
		"spec.likes":  func(o *Thing) { o.Spec.Likes = "thing-nobody" },
		"status.node": func(o *Thing) { o.Status.Node = "node-nobody" },
	} {
		f.fails(entity.Create(t.Context(), f, f.thing(change)), errs.FailedPrecondition, "attr", attr)
	}
	f.fails(entity.Create(t.Context(), f, f.thing(func(o *Thing) { o.Project = "proj-nobody" })), errs.FailedPrecondition, "attr", "meta.project")

	target := f.stored()
	user := f.stored(func(o *Thing) { o.Spec.Needs = target.ID })
	f.fails(entity.Delete(t.Context(), f, target), errs.FailedPrecondition, "id", string(target.ID), "attr", "spec.needs")
	user.Spec.Needs = ""
	if err := entity.UpdateSpec(t.Context(), f, user); err != nil {
		t.Fatal(err)
	}
	user.Spec.Likes = target.ID
	if err := entity.UpdateSpec(t.Context(), f, user); err != nil {
		t.Fatal(err)
	}
	if err := entity.Delete(t.Context(), f, target); err != nil {
		t.Fatalf("delete what is only liked: %v", err)
	}
	user = f.get(user.ID)
	if user.Spec.Likes != "" {
		t.Error("the reference dangles")
	}

	// References in the status.
	node := new(Node)
	f.create(node)
	user.Status.Node = node.ID
	if err := entity.UpdateStatus(t.Context(), f, user); err != nil {
		t.Fatal(err)
	}
	f.fails(entity.Delete(t.Context(), f, node), errs.FailedPrecondition, "attr", "status.node")
	user.Status.Node = ""
	if err := entity.UpdateStatus(t.Context(), f, user); err != nil {
		t.Fatal(err)
	}
	if err := entity.Delete(t.Context(), f, node); err != nil {
		t.Error(err)
	}
}

func testCascade(t *testing.T, f *fixture) {
	root := f.stored()
	var all []schema.ID
	all = append(all, root.ID)
	parents := []*Thing{root}
	for range 3 {
		var next []*Thing
		for _, p := range parents {
			for range 3 {
				c := f.stored(func(o *Thing) { o.Spec.Owner = p.ID })
				next, all = append(next, c), append(all, c.ID)
			}
		}
		parents = next
	}
	// A leaf with a restricting reference keeps the whole tree.
	holder := f.stored(func(o *Thing) { o.Spec.Needs = parents[0].ID })
	f.fails(entity.Delete(t.Context(), f, root), errs.FailedPrecondition, "id", string(parents[0].ID))
	if len(f.list(entity.Query{})) != len(all)+1 {
		t.Fatal("a refused deletion deleted something")
	}
	w := f.follow(entity.WatchQuery{Kinds: []string{"thing"}, From: schema.Token{}})
	if e := w.next(); e.Type != entity.EventBookmark {
		t.Fatalf("first event: %+v", e)
	}
	if err := entity.Delete(t.Context(), f, holder); err != nil {
		t.Fatal(err)
	}
	w.change()
	res := f.mustTxn(f.op(entity.DeleteOp(root)))
	f.absent(all...)
	for range all {
		if e := w.change(); e.Type != entity.EventDelete || e.Record.Revision != res.Revision || len(e.Record.Spec) == 0 {
			t.Errorf("event of a cascade: %+v", e)
		}
	}
	// A cascade along a cycle ends.
	a := f.stored()
	b := f.stored(func(o *Thing) { o.Spec.Owner = a.ID })
	a.Spec.Owner = b.ID
	if err := entity.UpdateSpec(t.Context(), f, a); err != nil {
		t.Fatal(err)
	}
	if err := entity.Delete(t.Context(), f, a); err != nil {
		t.Fatal(err)
	}
	f.absent(a.ID, b.ID)
}

func testProjectMembers(t *testing.T, f *fixture) {
	p := f.newProject()
	proj, err := entity.Get[Project](t.Context(), f, p)
	if err != nil {
		t.Fatal(err)
	}
	o := f.stored(func(o *Thing) { o.Project = p })
	f.fails(entity.Delete(t.Context(), f, proj), errs.FailedPrecondition, "attr", "meta.project")
	f.mustTxn(f.op(entity.DeleteOp(proj)), f.op(entity.DeleteOp(o)))
	f.fails(entity.Create(t.Context(), f, f.thing(func(o *Thing) { o.Project = p })), errs.FailedPrecondition, "attr", "meta.project")
}

func testRequestID(t *testing.T, f *fixture) {
	o := f.thing(func(o *Thing) { o.Name = "once" })
	req := entity.TxnRequest{RequestID: "r1", Ops: []entity.Op{f.op(entity.CreateOp(o))}}
	first, err := f.Txn(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	again, err := f.Txn(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	f.equal("repeated result", again, first)
	if next := f.stored(); next.Revision != first.Revision+1 {
		t.Errorf("the repetition took a revision: %d after %d", next.Revision, first.Revision)
	}
	other := entity.TxnRequest{RequestID: "r1", Ops: []entity.Op{f.op(entity.CreateOp(f.thing()))}}
	_, err = f.Txn(t.Context(), other)
	f.fails(err, errs.InvalidArgument)

	// Labels are a map: the same transaction is recognized whatever their order.
	labelled := entity.TxnRequest{RequestID: "labels", Ops: []entity.Op{f.op(entity.CreateOp(f.thing(func(o *Thing) {
		o.Labels = map[string]string{}
		for i := range 16 {
			o.Labels[fmt.Sprintf("label-%d", i)] = fmt.Sprint(i)
		}
	})))}}
	once, err := f.Txn(t.Context(), labelled)
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		again, err := f.Txn(t.Context(), labelled)
		if err != nil {
			t.Fatalf("repeated with many labels: %v", err)
		}
		f.equal("repeated result with many labels", again, once)
	}

	// A rejected transaction may be repeated and then succeed.
	del := entity.TxnRequest{RequestID: "r2", Ops: []entity.Op{{Type: entity.OpCheck, Record: schema.Record{Kind: "thing", Meta: schema.Meta{ID: "thing-later"}}, If: 0}, f.op(entity.CreateOp(f.thing()))}}
	later := f.stored(func(o *Thing) { o.ID = "thing-later" })
	_, err = f.Txn(t.Context(), del)
	f.fails(err, errs.AlreadyExists)
	if err := entity.Delete(t.Context(), f, later); err != nil {
		t.Fatal(err)
	}
	if _, err = f.Txn(t.Context(), del); err != nil {
		t.Errorf("repeated after the reason is gone: %v", err)
	}
	// Many repetitions at once apply once.
	racer := entity.TxnRequest{RequestID: "r3", Ops: []entity.Op{f.op(entity.CreateOp(f.thing()))}}
	results := make(chan entity.TxnResult, 16)
	for range cap(results) {
		go func() {
			res, err := f.Txn(context.WithoutCancel(t.Context()), racer)
			if err != nil {
				t.Error(err)
			}
			results <- res
		}()
	}
	want := <-results
	for range cap(results) - 1 {
		f.equal("concurrent repetition", <-results, want)
	}
}

// testCanceledWrite: the error of a cancelled write says whether the write may
// have taken effect.
func testCanceledWrite(t *testing.T, f *fixture) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	o := f.thing(func(o *Thing) { o.ID = "thing-canceled" })
	f.fails(entity.Create(ctx, f, o), errs.Canceled)
	f.absent(o.ID)
}
