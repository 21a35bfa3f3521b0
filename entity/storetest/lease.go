package storetest

import (
	"testing"
	"time"

	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/wait"
)

func (f *fixture) grant(ttl time.Duration) schema.LeaseID {
	f.t.Helper()
	l, err := f.Grant(f.t.Context(), ttl)
	if err != nil {
		f.t.Fatal(err)
	}
	if l.ID == "" || l.TTL != ttl || l.ExpiresAt.IsZero() {
		f.t.Fatalf("granted %+v", l)
	}
	return l.ID
}

func testLeaseLapse(t *testing.T, f *fixture) {
	w := f.follow(entity.WatchQuery{Kinds: []string{"thing"}})
	w.next()
	id := f.grant(3 * time.Second) // time in which the writes come to an end
	a := f.stored(func(o *Thing) { o.Lease = id })
	child := f.stored(func(o *Thing) { o.Spec.Owner = a.ID })
	other := f.stored()
	for range 3 {
		if e := w.change(); e.Type != entity.EventPut {
			t.Fatalf("event: %+v", e)
		}
	}
	gone := map[schema.ID]bool{}
	for range 2 {
		e := w.change()
		if e.Type != entity.EventDelete {
			t.Fatalf("event: %+v", e)
		}
		gone[e.Record.ID] = true
	}
	if !gone[a.ID] || !gone[child.ID] {
		t.Errorf("deleted: %v", gone)
	}
	f.absent(a.ID, child.ID)
	f.get(other.ID)
	_, err := f.KeepAlive(t.Context(), id)
	f.fails(err, errs.NotFound)
	f.fails(entity.Create(t.Context(), f, f.thing(func(o *Thing) { o.Lease = id })), errs.FailedPrecondition, "attr", "meta.lease")
}

func testLeaseKeepAlive(t *testing.T, f *fixture) {
	const ttl = 4 * time.Second // longer than a renewal takes on a busy machine
	id := f.grant(ttl)
	o := f.stored(func(o *Thing) { o.Lease = id })
	before := o.Revision
	var first, last time.Time
	wait.For(f.t, "live on past its first end", func() bool {
		l, err := f.KeepAlive(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if l.ExpiresAt.Before(last) || l.ID != id || l.TTL != ttl {
			t.Fatalf("renewed: %+v, before %v", l, last)
		}
		if last = l.ExpiresAt; first.IsZero() {
			first = last
		}
		// The lease was renewed one ttl before its end, by the store's clock.
		return last.Add(-ttl).After(first.Add(ttl / 3))
	})
	f.get(o.ID)
	if next := f.stored(); next.Revision != before+1 {
		t.Errorf("renewals took revisions: %d after %d", next.Revision, before)
	}
	wait.For(f.t, "lapse without renewals", func() bool {
		_, err := f.Get(t.Context(), "thing", o.ID)
		return errs.Is(err, errs.NotFound)
	})
}

func testLeaseRevoke(t *testing.T, f *fixture) {
	id := f.grant(time.Hour)
	a := f.stored(func(o *Thing) { o.Lease = id })
	b := f.stored(func(o *Thing) { o.Lease = id })
	if err := f.Revoke(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	f.absent(a.ID, b.ID)
	_, err := f.KeepAlive(t.Context(), id)
	f.fails(err, errs.NotFound)
	f.fails(f.Revoke(t.Context(), id), errs.NotFound)
	empty := f.grant(time.Hour)
	if err := f.Revoke(t.Context(), empty); err != nil {
		t.Errorf("revoke a lease without entities: %v", err)
	}
	f.fails(f.Revoke(t.Context(), "nonsense"), errs.NotFound)
	_, err = f.KeepAlive(t.Context(), "")
	f.fails(err, errs.NotFound)
	_, err = f.Grant(t.Context(), -time.Second)
	f.fails(err, errs.InvalidArgument)
}

func testLeaseConditions(t *testing.T, f *fixture) {
	one, two := f.grant(time.Hour), f.grant(time.Hour)
	f.fails(entity.Create(t.Context(), f, f.thing(func(o *Thing) { o.Lease = "lease-nobody" })), errs.FailedPrecondition, "attr", "meta.lease")
	// An entity can change its lease, or become durable.
	a := f.stored(func(o *Thing) { o.Lease = one })
	b := f.stored(func(o *Thing) { o.Lease = one })
	a.Lease, b.Lease = two, ""
	for _, o := range []*Thing{a, b} {
		if err := entity.UpdateSpec(t.Context(), f, o); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Revoke(t.Context(), one); err != nil {
		t.Fatal(err)
	}
	f.get(a.ID)
	f.get(b.ID)
	// Entities that others need stay, and so does the lease.
	holder := f.stored(func(o *Thing) { o.Spec.Needs = a.ID })
	f.fails(f.Revoke(t.Context(), two), errs.FailedPrecondition, "id", string(a.ID))
	if _, err := f.KeepAlive(t.Context(), two); err != nil {
		t.Errorf("lease after a refused revocation: %v", err)
	}
	if err := entity.Delete(t.Context(), f, holder); err != nil {
		t.Fatal(err)
	}
	if err := f.Revoke(t.Context(), two); err != nil {
		t.Fatal(err)
	}
	f.absent(a.ID)
	f.get(b.ID)
}
