package storesim_test

import (
	"testing"

	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/lsvd/store/storesim"
	"miren.dev/runtime/lsvd/store/storetest"
	"miren.dev/runtime/pkg/errs"
)

func TestMemConforms(t *testing.T) {
	storetest.Run(t, func(*testing.T) store.Store { return &storesim.Mem{} })
}

func TestFaultWithoutFaults(t *testing.T) {
	storetest.Run(t, func(*testing.T) store.Store { return &storesim.Fault{Store: &storesim.Mem{}} })
}

func TestInjectedFaultsHappen(t *testing.T) {
	ctx := t.Context()
	var next storesim.Action
	f := &storesim.Fault{Store: &storesim.Mem{}, Hook: func(storesim.Op, string) storesim.Action {
		a := next
		next = storesim.Action{}
		return a
	}}
	next.After = storesim.Unreachable()
	if _, err := f.Create(ctx, "a", []byte("12")); !errs.Is(err, errs.Unavailable) {
		t.Fatal(err)
	}
	data, v, err := f.Get(ctx, "a")
	if err != nil || string(data) != "12" {
		t.Fatalf("a time-out after success lost the object: %q %v", data, err)
	}
	if _, err := f.Replace(ctx, "a", []byte("34"), v); err != nil {
		t.Fatal(err)
	}
	for want, a := range map[string]storesim.Action{"12": {Stale: true}, "3": {Truncate: true}, "24": {Flip: 1}} {
		next = a
		if data, _, err := f.Get(ctx, "a"); err != nil || string(data) != want {
			t.Errorf("%+v: %q %v, want %q", a, data, err, want)
		}
	}
	// Somebody else is faster, and an object comes while a list is slow.
	_, v, err = f.Get(ctx, "a")
	if err != nil {
		t.Fatal(err)
	}
	next.Race = func() { f.Store.Replace(ctx, "a", []byte("56"), v) }
	if _, err := f.Replace(ctx, "a", []byte("78"), v); !errs.Is(err, errs.Conflict) {
		t.Errorf("lost race: %v", err)
	}
	next.Slow = func() { f.Store.Create(ctx, "b", nil) }
	for i, err := range f.List(ctx, "") {
		if err != nil || i.Key != "a" {
			t.Errorf("%v %v", i, err)
		}
	}
	if _, _, err := f.Get(ctx, "b"); err != nil {
		t.Error(err)
	}
}
