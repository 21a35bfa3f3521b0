package remote_test

import (
	"net"
	"path/filepath"
	"testing"

	"miren.dev/runtime/api/store"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/pgstore"
	"miren.dev/runtime/entity/remote"
	"miren.dev/runtime/entity/storetest"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/pgtest"
)

// serve returns a client of st over a unix socket.
func serve(t *testing.T, st entity.Store, kinds []*schema.Kind) *remote.Store {
	t.Helper()
	srv, err := rpc.NewServer(rpc.ServerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	store.RegisterEntities(srv, remote.NewServer(st, kinds))
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	t.Cleanup(func() {
		srv.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	cl, err := rpc.Dial(t.Context(), l.Addr().String(), rpc.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return remote.New(cl)
}

func TestConformance(t *testing.T) {
	storetest.Run(t, func(t *testing.T) entity.Store {
		kinds := storetest.Kinds()
		return serve(t, pgtest.Open(t, pgstore.Config{URL: pgtest.URL(t), Kinds: kinds, MaxCascade: storetest.MaxCascade}), kinds)
	})
}
