package server

import (
	"testing"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/store"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
)

// TestDeletedKeyLosesAccessAtOnce: calls under way end, and a client with its
// identity gets no connection any more. Other keys stay.
func TestDeletedKeyLosesAccessAtOnce(t *testing.T) {
	eachStore(t, testDeletedKeyLosesAccessAtOnce)
}

func testDeletedKeyLosesAccessAtOnce(t *testing.T, e *frontEnv) {
	e.newTenant("shop")
	admin := core.NewKeysClient(e.root())
	hold := func(name, role string) *rpc.Client {
		t.Helper()
		resp, err := admin.Create(t.Context(), &core.CreateKeyRequest{Project: "shop", Name: name, Roles: []string{role}})
		if err != nil {
			t.Fatal(err)
		}
		id, err := e.f.keys.Authenticate(t.Context(), resp.Secret)
		if err != nil {
			t.Fatal(err)
		}
		cl := e.f.rpc.Local(id)
		t.Cleanup(cl.Close)
		return cl
	}
	a, b := hold("a", "agent"), hold("b", "agent")
	w, err := store.NewEntitiesClient(a).Watch(t.Context(), &store.WatchRequest{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	if _, err := w.Recv(); err != nil {
		t.Fatal(err)
	}
	if err := admin.Delete(t.Context(), &core.KeyRequest{Project: "shop", Name: "a"}); err != nil {
		t.Fatal(err)
	}
	if err := ended(w); !errs.Is(err, errs.Unauthenticated) {
		t.Errorf("the watch of a deleted key: %v", err)
	}
	if _, err := store.NewEntitiesClient(a).Kinds(t.Context()); !errs.Is(err, errs.Unauthenticated) {
		t.Errorf("a call with a deleted key: %v", err)
	}
	if _, err := store.NewEntitiesClient(b).Kinds(t.Context()); err != nil {
		t.Errorf("another key: %v", err)
	}
	// An administrator of the project makes keys in it and nowhere else; an agent makes none.
	own := core.NewKeysClient(hold("boss", "admin"))
	if _, err := own.Create(t.Context(), &core.CreateKeyRequest{Project: "shop", Name: "c"}); err != nil {
		t.Error(err)
	}
	if _, err := own.Create(t.Context(), &core.CreateKeyRequest{Name: "c"}); !errs.Is(err, errs.PermissionDenied) {
		t.Errorf("a key of another project: %v", err)
	}
	if _, err := core.NewKeysClient(b).Create(t.Context(), &core.CreateKeyRequest{Project: "shop", Name: "d"}); !errs.Is(err, errs.PermissionDenied) {
		t.Errorf("a key made by an agent: %v", err)
	}
}
