package catalog_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"testing"

	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/catalog"
	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/lsvd/store/storesim"
	"miren.dev/runtime/lsvd/store/storetest"
	"miren.dev/runtime/pkg/errs"
)

func create(t *testing.T, st store.Store, name string) lsvd.ID {
	t.Helper()
	id, err := catalog.Create(t.Context(), st, name, 1<<20, nil)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func find(t *testing.T, st store.Store, name string) *catalog.Volume {
	t.Helper()
	v, err := catalog.Find(t.Context(), st, name)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestNamesAreUniqueInStore(t *testing.T) {
	ctx, st := t.Context(), &storesim.Mem{}
	id := create(t, st, "b")
	create(t, st, "a")
	if _, err := catalog.Create(ctx, st, "b", 1<<20, nil); !errs.Is(err, errs.AlreadyExists) {
		t.Errorf("a second b: %v", err)
	}
	bare := lsvd.NewID()
	if err := lsvd.Create(ctx, st, bare, 1<<20, nil); err != nil {
		t.Fatal(err)
	}
	list, err := catalog.List(ctx, st)
	if err != nil || len(list) != 3 || list[0].Name != "a" || list[1].Name != "b" || list[2].ID != bare || list[2].Label() != bare.String() {
		t.Fatalf("list: %+v %v", list, err)
	}
	if v := find(t, st, id.String()); v.Name != "b" || v.ID != id {
		t.Errorf("by ID: %+v", v)
	}
	if _, err := catalog.Find(ctx, st, "c"); !errs.Is(err, errs.NotFound) {
		t.Errorf("c: %v", err)
	}
	for _, bad := range []string{"", "-x", "a/b", "a b", "é", id.String(), string(bytes.Repeat([]byte("x"), 64))} {
		if err := catalog.CheckName(bad); !errs.Is(err, errs.InvalidArgument) {
			t.Errorf("name %q: %v", bad, err)
		}
	}
	// A crash in the middle of a deletion leaves a name that is free.
	if err := lsvd.Delete(ctx, st, id); err != nil {
		t.Fatal(err)
	}
	if _, err := catalog.Find(ctx, st, "b"); !errs.Is(err, errs.NotFound) {
		t.Errorf("a name without volume: %v", err)
	}
	again := create(t, st, "b")
	if v := find(t, st, "b"); v.ID != again {
		t.Errorf("%+v", v)
	}
	if err := catalog.Delete(ctx, st, find(t, st, "b"), false); err != nil {
		t.Fatal(err)
	}
	if _, err := catalog.Find(ctx, st, "b"); !errs.Is(err, errs.NotFound) {
		t.Errorf("after delete: %v", err)
	}
	// A damaged name is not a free one.
	if _, err := st.Create(ctx, "names/x", []byte("LSVDNAME nonsense that has some length")); err != nil {
		t.Fatal(err)
	}
	if _, err := catalog.Find(ctx, st, "x"); !errs.Is(err, errs.Corrupt) {
		t.Errorf("a damaged name: %v", err)
	}
	if _, err := catalog.Create(ctx, st, "x", 1<<20, nil); !errs.Is(err, errs.Corrupt) {
		t.Errorf("over a damaged name: %v", err)
	}
}

// TestRequestsAmongOthers finds, makes and deletes volumes by name and ID, alone and
// among 1,000 others, with the same number of requests.
func TestRequestsAmongOthers(t *testing.T) {
	steps := func(st *storetest.Counter) (all []map[string]int) {
		id := create(t, st, "x")
		all = append(all, st.Take())
		for _, by := range []string{"x", id.String()} {
			if v := find(t, st, by); v.Name != "x" || v.ID != id {
				t.Errorf("by %s: %+v", by, v)
			}
			all = append(all, st.Take())
		}
		if err := catalog.Delete(t.Context(), st, find(t, st, id.String()), false); err != nil {
			t.Fatal(err)
		}
		return append(all, st.Take())
	}
	empty, full := &storesim.Mem{}, &storesim.Mem{}
	for i := range 1000 {
		create(t, full, fmt.Sprint("other", i))
	}
	alone, among := steps(&storetest.Counter{Store: empty}), steps(&storetest.Counter{Store: full})
	if !reflect.DeepEqual(alone, among) {
		t.Errorf("alone %v, among others %v", alone, among)
	}
	for i := range empty.List(t.Context(), "") {
		t.Errorf("%s is left", i.Key)
	}
}

// TestOneCreates has many create one name: one does, and the others leave nothing.
func TestOneCreates(t *testing.T) {
	st := &storesim.Mem{}
	var wg sync.WaitGroup
	done := make(chan error, 8)
	for range cap(done) {
		wg.Go(func() {
			_, err := catalog.Create(t.Context(), st, "x", 1<<20, nil)
			done <- err
		})
	}
	wg.Wait()
	close(done)
	created := 0
	for err := range done {
		if err == nil {
			created++
		} else if !errs.Is(err, errs.AlreadyExists) {
			t.Error(err)
		}
	}
	list, err := catalog.List(t.Context(), st)
	if err != nil || created != 1 || len(list) != 1 || list[0].Name != "x" {
		t.Errorf("%d created: %+v %v", created, list, err)
	}
}

// TestFailedCreateLeavesNothing leaves nothing of a volume that could not be made.
func TestFailedCreateLeavesNothing(t *testing.T) {
	st := &storesim.Mem{}
	broken := errors.New("broken")
	if _, err := catalog.Make(t.Context(), st, "x", func(lsvd.ID) error { return fmt.Errorf("make: %w", broken) }); !errors.Is(err, broken) {
		t.Error(err)
	}
	if list, err := catalog.List(t.Context(), st); err != nil || len(list) != 0 {
		t.Errorf("%+v %v", list, err)
	}
}

func TestOwnerIsOfCurrentClaim(t *testing.T) {
	ctx, st := context.Background(), &storesim.Mem{}
	id := create(t, st, "x")
	if o := catalog.OwnerOf(ctx, st, find(t, st, "x")); o != nil {
		t.Errorf("of a volume that was never open: %+v", o)
	}
	for pid := range 3 {
		if err := catalog.SetOwner(ctx, st, id, catalog.Owner{Host: "h", PID: pid, Claim: "c"}); err != nil {
			t.Fatal(err)
		}
	}
	v := find(t, st, "x")
	v.Clean, v.Owner = false, "c"
	if o := catalog.OwnerOf(ctx, st, v); o == nil || o.PID != 2 || o.Host != "h" {
		t.Errorf("%+v", o)
	}
	v.Owner = "another claim"
	if o := catalog.OwnerOf(ctx, st, v); o != nil {
		t.Errorf("of an earlier claim: %+v", o)
	}
}

func FuzzName(f *testing.F) {
	st := &storesim.Mem{}
	if _, err := catalog.Create(context.Background(), st, "x", 1<<20, nil); err != nil {
		f.Fatal(err)
	}
	b, _, err := st.Get(context.Background(), "names/x")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, data []byte) {
		st := &storesim.Mem{}
		if _, err := st.Create(t.Context(), "names/x", data); err != nil {
			t.Fatal(err)
		}
		if v, err := catalog.Find(t.Context(), st, "x"); err == nil {
			t.Errorf("a volume that does not exist: %+v", v)
		}
	})
}
