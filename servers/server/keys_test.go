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

// TestDisabledUserLosesAccessAtOnce: its keys and certificates are refused, and calls
// under way end. Its calls have its name.
func TestDisabledUserLosesAccessAtOnce(t *testing.T) {
	eachStore(t, func(t *testing.T, e *frontEnv) {
		e.newTenant("shop")
		people, admin := core.NewUsersClient(e.root()), core.NewKeysClient(e.root())
		if _, err := people.Create(t.Context(), &core.CreateUserRequest{Name: "alice", Roles: []string{"agent@shop", "admin@shop"}}); err != nil {
			t.Fatal(err)
		}
		if _, err := admin.Create(t.Context(), &core.CreateKeyRequest{Project: "shop", Name: "x", User: "alice", Roles: []string{"deployer"}}); !errs.Is(err, errs.PermissionDenied) {
			t.Errorf("a role that the user may not have: %v", err)
		}
		resp, err := admin.Create(t.Context(), &core.CreateKeyRequest{Project: "shop", Name: "laptop", User: "alice", Roles: []string{"agent", "admin"}})
		if err != nil {
			t.Fatal(err)
		}
		id, err := e.f.keys.Authenticate(t.Context(), resp.Secret)
		if err != nil || id.Name != "alice" || len(id.Roles) != 2 {
			t.Fatal(id, err)
		}
		cl := e.f.rpc.Local(id)
		t.Cleanup(cl.Close)
		if _, err := core.NewKeysClient(cl).Create(t.Context(), &core.CreateKeyRequest{Project: "shop", Name: "y", User: "bob"}); !errs.Is(err, errs.PermissionDenied) {
			t.Errorf("a key of another user, made by an administrator of the project: %v", err)
		}
		w, err := store.NewEntitiesClient(cl).Watch(t.Context(), &store.WatchRequest{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { w.Close() })
		if _, err := w.Recv(); err != nil {
			t.Fatal(err)
		}
		disabled := true
		if _, err := people.Set(t.Context(), &core.SetUserRequest{Name: "alice", Disabled: &disabled}); err != nil {
			t.Fatal(err)
		}
		if err := ended(w); !errs.Is(err, errs.Unauthenticated) {
			t.Errorf("the watch of a disabled user: %v", err)
		}
		if _, err := e.f.keys.Authenticate(t.Context(), resp.Secret); err == nil {
			t.Error("its key is accepted")
		}
		if err := e.f.refuse(rpc.Identity{Name: "alice", How: "certificate", Serial: "a1"}); !errs.Is(err, errs.Unauthenticated) {
			t.Errorf("its certificate: %v", err)
		}
		disabled = false
		if _, err := people.Set(t.Context(), &core.SetUserRequest{Name: "alice", Disabled: &disabled, Roles: []string{"agent@shop"}}); err != nil {
			t.Fatal(err)
		}
		if id, err := e.f.keys.Authenticate(t.Context(), resp.Secret); err != nil || len(id.Roles) != 1 {
			t.Errorf("enabled with one role less: %v, %v", id, err)
		}
	})
}
