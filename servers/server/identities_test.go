package server

import (
	"context"
	"testing"
	"time"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/server"
	"miren.dev/runtime/api/store"
	"miren.dev/runtime/domain/identities"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/remote"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/testsupport/wait"
)

// issue creates a certificate as an administrator does.
func (e *frontEnv) issue(admin *rpc.Client, name string, roles ...string) *server.IssueIdentityResponse {
	e.t.Helper()
	resp, err := server.NewServerClient(admin).IssueIdentity(e.t.Context(), &server.IssueIdentityRequest{Name: name, Roles: roles})
	if err != nil {
		e.t.Fatal(err)
	}
	return resp
}

// root is a client with the rights of a caller over the unix socket.
func (e *frontEnv) root() *rpc.Client {
	cl := e.f.rpc.Local(rpc.Identity{Name: "root", Roles: []string{rpc.RoleAdmin}, How: "socket"})
	e.t.Cleanup(cl.Close)
	return cl
}

func (e *frontEnv) holder(resp *server.IssueIdentityResponse) *rpc.Client {
	return e.dial([]byte(resp.Certificate), []byte(resp.Key))
}

// ended returns the error with which a watch ends.
func ended(w rpc.ClientStream[rpc.None, store.EventBatch]) error {
	for {
		if _, err := w.Recv(); err != nil {
			return err
		}
	}
}

// watching opens a watch.
func watching(t *testing.T, cl *rpc.Client) rpc.ClientStream[rpc.None, store.EventBatch] {
	t.Helper()
	w, err := store.NewEntitiesClient(cl).Watch(t.Context(), &store.WatchRequest{Kind: core.KindNode})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	if _, err := w.Recv(); err != nil {
		t.Fatal(err)
	}
	return w
}

// TestRevokedCertificateLosesAccessAtOnce: when RevokeIdentity has returned, calls
// under way have ended and new ones are refused. Other certificates of the
// identity stay, and a new one works after all were revoked.
func TestRevokedCertificateLosesAccessAtOnce(t *testing.T) {
	e := newFrontEnv(t)
	admin := e.root()
	first, second := e.issue(admin, "alice", "viewer"), e.issue(admin, "alice", "viewer")
	a, b := e.holder(first), e.holder(second)
	wa, wb := watching(t, a), watching(t, b)
	if _, err := server.NewServerClient(admin).RevokeIdentity(t.Context(), &server.RevokeIdentityRequest{Certificate: first.Serial}); err != nil {
		t.Fatal(err)
	}
	if err := ended(wa); !errs.Is(err, errs.Unauthenticated) {
		t.Errorf("the watch of a revoked certificate: %v", err)
	}
	if _, err := store.NewEntitiesClient(a).Kinds(t.Context()); !errs.Is(err, errs.Unauthenticated) {
		t.Errorf("a call with a revoked certificate: %v", err)
	}
	if _, err := store.NewEntitiesClient(b).Kinds(t.Context()); err != nil {
		t.Errorf("another certificate: %v", err)
	}
	if _, err := server.NewServerClient(admin).RevokeIdentity(t.Context(), &server.RevokeIdentityRequest{Certificate: "alice"}); err != nil {
		t.Fatal(err)
	}
	if err := ended(wb); !errs.Is(err, errs.Unauthenticated) {
		t.Errorf("the watch of a revoked identity: %v", err)
	}
	if _, err := store.NewEntitiesClient(e.holder(e.issue(admin, "alice", "viewer"))).Kinds(t.Context()); err != nil {
		t.Errorf("a certificate that was issued afterwards: %v", err)
	}
	// Certificates from before they were recorded work until their identity is revoked.
	old, err := e.f.ca.IssueClient("bob", []string{"viewer"}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	bob := e.dial(old.Certificate, old.Key)
	wold := watching(t, bob)
	if _, err := server.NewServerClient(admin).RevokeIdentity(t.Context(), &server.RevokeIdentityRequest{Certificate: "bob"}); err != nil {
		t.Fatal(err)
	}
	if err := ended(wold); !errs.Is(err, errs.Unauthenticated) {
		t.Errorf("the watch of a certificate that is not recorded: %v", err)
	}
}

// follow makes the server read its store and follow it, until the test ends.
func (e *frontEnv) follow() {
	e.t.Helper()
	ctx, cancel := context.WithCancel(e.t.Context())
	done := make(chan error, 1)
	go func() { done <- e.c.informers.Run(ctx) }()
	e.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			e.t.Error(err)
		}
	})
	if err := e.c.informers.WaitSynced(ctx); err != nil {
		e.t.Fatal(err)
	}
}

// TestRevocationArrivesByWatch: of another server of the same store.
func TestRevocationArrivesByWatch(t *testing.T) {
	e := newFrontEnv(t)
	e.follow()
	issued := e.issue(e.root(), "alice", "viewer")
	w := watching(t, e.holder(issued))
	elsewhere := &identities.Service{Store: e.c.store}
	if _, err := elsewhere.Revoke(t.Context(), "alice", "root"); err != nil {
		t.Fatal(err)
	}
	if err := ended(w); !errs.Is(err, errs.Unauthenticated) {
		t.Errorf("the watch of a revoked certificate: %v", err)
	}
	wait.For(t, "the certificate to be refused", func() bool {
		_, err := store.NewEntitiesClient(e.holder(issued)).Kinds(t.Context())
		return errs.Is(err, errs.Unauthenticated)
	})
}

// TestRevocationOutlivesItsEntity: the entity of a revoked certificate can neither
// be deleted nor changed before the certificate expires.
func TestRevocationOutlivesItsEntity(t *testing.T) {
	e := newFrontEnv(t)
	admin := e.root()
	st := remote.New(admin)
	svc := &identities.Service{Store: e.c.store}
	find := func(serial string) *core.ClientCertificate {
		t.Helper()
		all, _, err := entity.List[core.ClientCertificate](t.Context(), st, entity.Query{})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range all {
			if c.Spec.Serial == serial {
				return c
			}
		}
		t.Fatalf("no certificate %q in %v", serial, all)
		return nil
	}
	issued := e.issue(admin, "alice", "viewer")
	if _, err := svc.Record(t.Context(), identities.Issued{Identity: "alice", Serial: "e1", By: "root", ExpiresAt: time.Now().Add(-time.Hour)}); err != nil {
		t.Fatal(err)
	}
	valid := e.issue(admin, "bob", "viewer")
	if _, err := server.NewServerClient(admin).RevokeIdentity(t.Context(), &server.RevokeIdentityRequest{Certificate: "alice"}); err != nil {
		t.Fatal(err)
	}
	for _, serial := range []string{issued.Serial, ""} { // "": every certificate of alice that is not recorded
		c := find(serial)
		if err := entity.Delete(t.Context(), st, c); !errs.Is(err, errs.FailedPrecondition) || errs.HintOf(err) == "" {
			t.Errorf("delete %q: %v", serial, err)
		}
		c.Spec.RevokedAt = nil
		if err := entity.UpdateSpec(t.Context(), st, c); !errs.Is(err, errs.FailedPrecondition) {
			t.Errorf("change %q: %v", serial, err)
		}
		if find(serial).Spec.RevokedAt == nil {
			t.Errorf("%q is not revoked any more", serial)
		}
	}
	for _, serial := range []string{"e1", valid.Serial} { // expired; not revoked
		if err := entity.Delete(t.Context(), st, find(serial)); err != nil {
			t.Errorf("delete %q: %v", serial, err)
		}
	}
}
