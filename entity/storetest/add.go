package storetest

import (
	"sync"
	"sync/atomic"
	"testing"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

func bound(n int64) *int64 { return &n }

func testAdd(t *testing.T, f *fixture) {
	o := f.stored(func(o *Thing) { o.Status.Phase = "kept" })
	stale := *o
	add := func(a entity.Addition) (*Thing, error) { return entity.Add[Thing](t.Context(), f, o.ID, a) }
	count := func(n int64) entity.Addition { return entity.Addition{Attr: "status.count", Delta: n} }
	got, err := add(count(3))
	if err != nil || got.Status.Count != 3 || got.Status.Phase != "kept" {
		t.Fatalf("after the first addition: %+v, %v", got, err)
	}
	if got.Revision != o.Revision+1 || got.StatusRevision != got.Revision || got.SpecRevision != o.SpecRevision {
		t.Errorf("revisions after an addition to the status: %+v", got.Meta)
	}
	f.equal("stored", f.get(o.ID), got)
	if got, err = add(entity.Addition{Attr: "spec.size", Delta: -2}); err != nil || got.Spec.Size != -2 || got.SpecRevision != got.Revision {
		t.Errorf("addition to the spec: %+v, %v", got, err)
	}
	f.equal("by the new value", f.list(entity.Query{Index: []entity.IndexMatch{{Attr: "spec.size", Op: entity.IndexEq, Value: Int(-2)}}}), sorted(o))

	// Bounds hold for the sum, and nothing changes beyond them.
	d := []string{"kind", "thing", "id", string(o.ID), "attr", "status.count"}
	over, under := count(8), count(-4)
	over.Max, under.Min = bound(10), bound(0)
	_, err = add(over)
	f.fails(err, errs.ResourceExhausted, append(d, "value", "3", "limit", "10")...)
	_, err = add(under)
	f.fails(err, errs.ResourceExhausted, append(d, "value", "3", "limit", "0")...)
	f.equal("after sums out of bounds", f.get(o.ID), got)
	over.Delta, under.Delta = 7, -10
	if got, err = add(over); err != nil || got.Status.Count != 10 {
		t.Errorf("up to the bound: %+v, %v", got, err)
	}
	if got, err = add(under); err != nil || got.Status.Count != 0 {
		t.Errorf("down to the bound: %+v, %v", got, err)
	}

	// A writer that replaces the status conflicts unless it has read the sum.
	stale.Status.Phase = "other"
	f.fails(entity.UpdateStatus(t.Context(), f, &stale), errs.Conflict)

	// Several attributes and entities are changed together or not at all.
	other := f.stored()
	limited := count(1)
	limited.Max = bound(0)
	size := entity.AddOp(ThingKind, o.ID, entity.Addition{Attr: "spec.size", Delta: 5})
	_, err = f.txn(size, entity.AddOp(ThingKind, other.ID, limited))
	f.fails(err, errs.ResourceExhausted, "id", string(other.ID))
	res := f.mustTxn(size, entity.AddOp(ThingKind, o.ID, count(4)), entity.AddOp(ThingKind, o.ID, count(1)), entity.AddOp(ThingKind, other.ID, count(1)))
	now := f.get(o.ID)
	if now.Spec.Size != 3 || now.Status.Count != 5 || now.Revision != res.Revision || f.get(other.ID).Status.Count != 1 {
		t.Errorf("after several additions: %+v", now)
	}
	for i := range 3 {
		f.equal("result of an addition", res.Records[i].Meta, now.Meta)
	}

	for name, op := range map[string]entity.Op{
		"no attribute":    entity.AddOp(ThingKind, o.ID, entity.Addition{Attr: "status.nonsense", Delta: 1}),
		"not an integer":  entity.AddOp(ThingKind, o.ID, entity.Addition{Attr: "spec.color", Delta: 1}),
		"nothing to add":  {Type: entity.OpAdd, Record: schema.Record{Kind: "thing", Meta: schema.Meta{ID: o.ID}}},
		"with a revision": {Type: entity.OpAdd, Record: schema.Record{Kind: "thing", Meta: schema.Meta{ID: o.ID}}, Add: &entity.Addition{Attr: "status.count"}, If: 1},
		"overflow":        entity.AddOp(ThingKind, o.ID, entity.Addition{Attr: "status.count", Delta: 1<<63 - 1}),
	} {
		if _, err := f.txn(op); !errs.Is(err, errs.InvalidArgument) {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err = f.txn(size, f.op(entity.UpdateSpecOp(now)))
	f.fails(err, errs.InvalidArgument)
	_, err = f.txn(entity.AddOp(ThingKind, "thing-nobody", count(1)))
	f.fails(err, errs.NotFound)

	// A repeated request adds once.
	req := entity.TxnRequest{RequestID: "add", Ops: []entity.Op{entity.AddOp(ThingKind, o.ID, count(1))}}
	for range 3 {
		if _, err := f.Txn(t.Context(), req); err != nil {
			t.Fatal(err)
		}
	}
	if n := f.get(o.ID).Status.Count; n != 6 {
		t.Errorf("a repeated addition: %d, want 6", n)
	}
	req.Ops[0].Add.Delta = 2
	_, err = f.Txn(t.Context(), req)
	f.fails(err, errs.InvalidArgument)
}

// testAddQuota: many writers take from one quota at once, each together with
// the entity that it pays for. All of it is given out, none twice, and no
// writer meets a conflict.
func testAddQuota(t *testing.T, f *fixture) {
	const takers, each, quota = 16, 10, 100
	q := f.stored()
	first := q.Revision
	var wg sync.WaitGroup
	var got, refused atomic.Int64
	for range takers {
		wg.Go(func() {
			for range each {
				take := entity.AddOp(ThingKind, q.ID, entity.Addition{Attr: "status.count", Delta: 1, Max: bound(quota)})
				create, err := entity.CreateOp(f.thing(func(o *Thing) { o.Spec.Color = "taken" }))
				if err == nil {
					_, err = f.Txn(t.Context(), entity.TxnRequest{Ops: []entity.Op{take, create}})
				}
				switch {
				case err == nil:
					got.Add(1)
				case errs.Is(err, errs.ResourceExhausted):
					refused.Add(1)
				default:
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if got.Load() != quota || refused.Load() != takers*each-quota {
		t.Errorf("%d got some of %d, %d were refused", got.Load(), quota, refused.Load())
	}
	now := f.get(q.ID)
	taken := f.list(entity.Query{Index: []entity.IndexMatch{{Attr: "spec.color", Op: entity.IndexEq, Value: []byte("taken")}}})
	if now.Status.Count != quota || len(taken) != quota {
		t.Errorf("the quota counts %d, %d were created", now.Status.Count, len(taken))
	}
	if next := f.stored(); next.Revision != first+quota+1 {
		t.Errorf("revision %d, want %d: one for each", next.Revision, first+quota+1)
	}
}
