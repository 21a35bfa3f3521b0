package server

import (
	"context"
	"log/slog"
	"path/filepath"
	"testing"

	"miren.dev/runtime/api/ingress"
	"miren.dev/runtime/api/server"
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
}
