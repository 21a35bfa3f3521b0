package pgstore_test

import (
	"fmt"
	"testing"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/pgstore"
	"miren.dev/runtime/entity/storetest"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/pgtest"
)

// TestNewIndexCoversOldEntities: an attribute that gets an index, or becomes unique, covers the
// entities that were there before.
func TestNewIndexCoversOldEntities(t *testing.T) {
	old := *storetest.ThingKind // the program knows no color, no serial, no reference and no order
	old.Indexes = nil
	old.Extract = func(r *schema.Record) (schema.Extracted, error) {
		_, err := storetest.ThingKind.Extract(r)
		return schema.Extracted{}, err
	}
	now := *storetest.ThingKind
	now.Attrs = []schema.Attr{{Path: "spec.color", Type: "string", Indexed: true}, {Path: "spec.serial", Type: "string", Unique: true}, {Path: "spec.needs", Type: "ref thing"}}
	url := pgtest.URL(t)
	open := func(k *schema.Kind) *pgstore.Store {
		return pgtest.Open(t, pgstore.Config{URL: url, Kinds: []*schema.Kind{storetest.ProjectKind, k}})
	}
	s := open(&old)
	proj := newProject(t, s)
	target := create(t, s, proj, func(o *thing) { o.Name = "target" })
	const n = 1100 // more entities than a page
	ops := []entity.Op{}
	for i := range n {
		o := newThing(proj)
		o.Spec.Color, o.Spec.Serial, o.Spec.Needs = [...]string{"red", "blue"}[i%2], fmt.Sprint(i), target.ID
		op, err := entity.CreateOp(o)
		if err != nil {
			t.Fatal(err)
		}
		if ops = append(ops, op); len(ops) == 550 {
			if _, err := s.Txn(t.Context(), entity.TxnRequest{Ops: ops}); err != nil {
				t.Fatal(err)
			}
			ops = ops[:0]
		}
	}
	blue := entity.Query{Index: []entity.IndexMatch{{Attr: "spec.color", Op: entity.IndexEq, Value: []byte("blue")}}}
	count := func() int {
		list, _, err := entity.List[thing](t.Context(), s, blue)
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	if got := count(); got != 0 {
		t.Fatalf("%d found without an index", got)
	}
	s.Close()
	for range 2 {
		s = open(&now)
		if got := count(); got != n/2 {
			t.Fatalf("%d found by the new index, want %d", got, n/2)
		}
		queue := entity.Query{Kind: "thing", Order: &entity.Order{Index: "queue", Equal: [][]byte{[]byte("red")}}}
		if page, err := s.List(t.Context(), queue); err != nil || len(page.Records) != n/2+1 { // and the target of the reference
			t.Errorf("%d found by the new order: %v", len(page.Records), err)
		}
		taken := newThing(proj)
		taken.Spec.Serial = "77"
		if err := entity.Create(t.Context(), s, taken); !errs.Is(err, errs.AlreadyExists) {
			t.Errorf("value of an old entity: %v", err)
		}
		if err := entity.Delete(t.Context(), s, target); !errs.Is(err, errs.FailedPrecondition) {
			t.Errorf("deletion of what old entities need: %v", err)
		}
		if o, err := entity.ByName[thing](t.Context(), s, proj, "target"); err != nil || o.ID != target.ID {
			t.Errorf("by name: %v, %v", o, err)
		}
		s.Close()
	}
}
