package server

import (
	"context"
	"net"
	"net/http"
	"testing"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/server"
	"miren.dev/runtime/api/store"
	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/pkg/rpc/upgrade"
)

// dial opens RPC through the HTTP API with a key.
func (e *restEnv) dial(key string) (*rpc.Client, error) {
	e.t.Helper()
	base, err := upgrade.ParseURL(e.url)
	if err != nil {
		e.t.Fatal(err)
	}
	c, err := rpc.DialBy(e.t.Context(), e.url, func(ctx context.Context) (net.Conn, error) {
		return upgrade.Dial(ctx, base, nil, key)
	}, rpc.ClientOptions{RetryFor: -1})
	if err == nil {
		e.t.Cleanup(c.Close)
	}
	return c, err
}

// TestRPCByKey: a connection through the HTTP API has the roles of its key, and
// ends with it.
func TestRPCByKey(t *testing.T) {
	e := newRestEnv(t)
	e.follow()
	e.newTenant("shop")
	key := e.key("shop", "agent")
	c, err := e.dial(key)
	if err != nil {
		t.Fatal(err)
	}
	who, err := server.NewServerClient(c).Caller(t.Context())
	if err != nil || who.Name != "key:shop/k-agent" || who.How != rpc.HowKey || who.Project != "shop" || len(who.Roles) != 1 {
		t.Fatalf("%+v, %v", who, err)
	}
	if _, err := core.NewKeysClient(c).Create(t.Context(), &core.CreateKeyRequest{Project: "shop", Name: "more"}); !errs.Is(err, errs.PermissionDenied) {
		t.Errorf("a call for which the key has no role: %v", err)
	}
	w, err := store.NewEntitiesClient(c).Watch(t.Context(), &store.WatchRequest{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	if _, err := w.Recv(); err != nil {
		t.Fatal(err)
	}
	if err := core.NewKeysClient(e.root()).Delete(t.Context(), &core.KeyRequest{Project: "shop", Name: "k-agent"}); err != nil {
		t.Fatal(err)
	}
	if err := ended(w); !errs.Is(err, errs.Unauthenticated) {
		t.Errorf("the watch of a deleted key: %v", err)
	}
	if _, err := server.NewServerClient(c).Caller(t.Context()); !errs.Is(err, errs.Unauthenticated) {
		t.Errorf("a call with a deleted key: %v", err)
	}
	for _, k := range []string{key, "", "e2b_0"} {
		if _, err := e.dial(k); !errs.Is(err, errs.Unauthenticated) {
			t.Errorf("a key that is not valid: %v", err)
		}
	}
	if resp, text := e.do(http.MethodGet, upgrade.Path, e.key("shop", "viewer"), ""); resp.StatusCode != http.StatusBadRequest {
		t.Errorf("a request that does not switch protocols: %d %s", resp.StatusCode, text)
	}
}

// TestRPCByKeyIsLimited: the rate limit of the HTTP API holds for new connections.
func TestRPCByKeyIsLimited(t *testing.T) {
	e := newRestEnv(t, func(c *config.Config) { c.API.Rate, c.API.Burst = 1, 1 })
	e.newTenant("shop")
	key := e.key("shop", "agent")
	for range 20 {
		if _, err := e.dial(key); err != nil {
			if !errs.Is(err, errs.ResourceExhausted) {
				t.Error(err)
			}
			return
		}
	}
	t.Error("20 connections at once, of one per second")
}
