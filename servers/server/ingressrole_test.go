package server

import (
	"context"
	"log/slog"
	"path/filepath"
	"testing"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/ingress"
	"miren.dev/runtime/api/server"
	"miren.dev/runtime/api/store"
	"miren.dev/runtime/entity/remote"
	"miren.dev/runtime/pkg/errs"
	ingressserver "miren.dev/runtime/servers/ingress"
	"miren.dev/runtime/testsupport/wait"
)

// TestIngressNeedsItsRoleOnly: with this role the ingress reads everything that
// it serves from.
func TestIngressNeedsItsRoleOnly(t *testing.T) {
	e := newFrontEnv(t)
	cl := e.f.rpc.Local(ingressIdentity)
	t.Cleanup(cl.Close)
	dir := t.TempDir()
	admin := filepath.Join(dir, "admin.sock")
	srv, err := ingressserver.New(ingressserver.Config{
		Addrs: []string{"127.0.0.1:0"}, Reader: remote.New(cl), TableFile: filepath.Join(dir, "table"), AdminSocket: admin,
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- srv.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	var st ingress.Status
	wait.For(t, "the ingress to list the store", func() bool {
		got, err := ingress.Client{Socket: admin}.Status(ctx)
		if err == nil {
			st = got
		}
		return err == nil && st.Synced
	})
	if st.Error != "" {
		t.Error(st.Error)
	}
	if _, err := server.NewServerClient(cl).Status(t.Context()); !errs.Is(err, errs.PermissionDenied) {
		t.Errorf("another method that only reads: %v", err)
	}
	entities := store.NewEntitiesClient(cl)
	for _, kind := range []string{app.KindAppVersion, core.KindClientCertificate, core.KindNode, ""} {
		watches := []*store.WatchRequest{{Kind: kind}, {Kinds: []string{app.KindApp, kind}}, {Kind: app.KindApp, Kinds: []string{kind}}}
		if kind != "" { // no request but a watch concerns every kind
			watches = append(watches, &store.WatchRequest{Kind: kind, Kinds: []string{app.KindApp}})
			if _, err := entities.List(ctx, &store.ListRequest{Kind: kind}); !errs.Is(err, errs.PermissionDenied) {
				t.Errorf("list kind %q: %v", kind, err)
			}
			if _, err := entities.Get(ctx, &store.GetRequest{Kind: kind, ID: "x"}); !errs.Is(err, errs.PermissionDenied) {
				t.Errorf("get kind %q: %v", kind, err)
			}
		}
		for _, req := range watches {
			w, err := entities.Watch(ctx, req)
			if err == nil {
				_, err = w.Recv()
				w.Close()
			}
			if !errs.Is(err, errs.PermissionDenied) {
				t.Errorf("watch kind %q of %v: %v", req.Kind, req.Kinds, err)
			}
		}
	}
}
