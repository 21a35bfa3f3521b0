package api

import (
	"context"
	"net"
	"testing"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/pkg/rpc/upgrade"
	"miren.dev/runtime/testsupport/wait"
)

// TestRPCConnectionsOfAKey: those of one key are bounded, and one that ends makes
// room. Another key has its own.
func TestRPCConnectionsOfAKey(t *testing.T) {
	srv, err := rpc.NewServer(rpc.ServerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.Close)
	e := newEnv(t, func(s *Server) { s.MountRPC(srv.Adopt) })
	base, err := upgrade.ParseURL(e.url)
	if err != nil {
		t.Fatal(err)
	}
	dial := func(key string) (*rpc.Client, error) {
		c, err := rpc.DialBy(t.Context(), e.url, func(ctx context.Context) (net.Conn, error) { return upgrade.Dial(ctx, base, nil, key) }, rpc.ClientOptions{RetryFor: -1})
		if err == nil {
			t.Cleanup(c.Close)
		}
		return c, err
	}
	var first *rpc.Client
	for range maxRPCPerKey {
		c, err := dial("a")
		if err != nil {
			t.Fatal(err)
		}
		first = c
	}
	if _, err := dial("a"); !errs.Is(err, errs.ResourceExhausted) {
		t.Errorf("one more: %v", err)
	}
	if _, err := dial("b"); err != nil {
		t.Errorf("another key: %v", err)
	}
	first.Close()
	wait.For(t, "the connection that ended makes room", func() bool { _, err := dial("a"); return err == nil })
}
