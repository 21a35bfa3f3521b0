package pgstore_test

import (
	"testing"
	"time"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/pgstore"
	"miren.dev/runtime/entity/storetest"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/pgtest"
	"miren.dev/runtime/testsupport/wait"
)

// TestHeldLeases: leases that cannot end, since other entities need theirs, do
// not keep further leases from ending.
func TestHeldLeases(t *testing.T) {
	const held, free = 120, 20
	url := pgtest.URL(t)
	open := func(expire time.Duration) *pgstore.Store {
		return pgtest.Open(t, pgstore.Config{URL: url, Kinds: storetest.Kinds(), ExpireInterval: expire})
	}
	s := open(time.Hour)
	proj := newProject(t, s)
	lease := func() schema.LeaseID {
		l, err := s.Grant(t.Context(), time.Second)
		if err != nil {
			t.Fatal(err)
		}
		return l.ID
	}
	var keep []schema.ID
	var ops []entity.Op
	for range held {
		o, holder := newThing(proj), newThing(proj)
		o.ID, o.Lease = schema.NewID("thing"), lease()
		holder.Spec.Needs = o.ID
		for _, o := range []*thing{o, holder} {
			op, err := entity.CreateOp(o)
			if err != nil {
				t.Fatal(err)
			}
			ops = append(ops, op)
		}
		keep = append(keep, o.ID)
	}
	if _, err := s.Txn(t.Context(), entity.TxnRequest{Ops: ops}); err != nil {
		t.Fatal(err)
	}
	var gone []schema.ID
	for range free {
		gone = append(gone, create(t, s, proj, func(o *thing) { o.Lease = lease() }).ID)
	}
	open(20 * time.Millisecond)
	wait.For(t, "the others to end", func() bool {
		for _, id := range gone {
			if _, err := s.Get(t.Context(), "thing", id); !errs.Is(err, errs.NotFound) {
				return false
			}
		}
		return true
	})
	for _, id := range keep {
		if _, err := s.Get(t.Context(), "thing", id); err != nil {
			t.Fatalf("what is needed: %v", err)
		}
	}
}
