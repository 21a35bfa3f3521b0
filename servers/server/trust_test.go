package server

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/server"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/testsupport/oidctest"
)

// TestLoginByToken: a job of CI logs in by the token of its system, and exchanges it for a key
// that lasts an hour, with the roles of the rule and no others.
func TestLoginByToken(t *testing.T) {
	const audience = "https://runtime.example.com"
	p := oidctest.New(t)
	file := filepath.Join(t.TempDir(), "trust.yaml")
	rule := fmt.Sprintf("- issuer: %s\n  audience: %s\n  claims: {repository: acme/shop}\n  project: shop\n  roles: [viewer]\n", p.URL, audience)
	if err := os.WriteFile(file, []byte(rule), 0o600); err != nil {
		t.Fatal(err)
	}
	e := newRestEnv(t, func(c *config.Config) { c.API.TrustFile = file })
	e.follow()
	e.newTenant("shop")
	token := p.Token(t, audience, time.Minute, map[string]any{"sub": "repo:acme/shop", "repository": "acme/shop"})
	c, err := e.dial(token)
	if err != nil {
		t.Fatal(err)
	}
	who, err := server.NewServerClient(c).Caller(t.Context())
	if err != nil || who.Name != "token:repo:acme/shop" || who.How != rpc.HowToken || who.Project != "shop" || len(who.Roles) != 1 {
		t.Fatalf("%+v, %v", who, err)
	}
	if _, err := core.NewKeysClient(c).Create(t.Context(), &core.CreateKeyRequest{Project: "shop", Name: "more"}); !errs.Is(err, errs.PermissionDenied) {
		t.Errorf("a call for which the rule gives no role: %v", err)
	}
	got, err := core.NewKeysClient(c).Exchange(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	k, err := entity.Decode[core.APIKey](&got.Key)
	if err != nil {
		t.Fatal(err)
	}
	if left := time.Until(*k.Spec.ExpiresAt); left <= 0 || left > time.Hour || k.Spec.CreatedBy != who.Name || k.Lease == "" || k.Spec.Roles[0] != "viewer@shop" {
		t.Errorf("the key %+v, lease %q, ends in %s", k.Spec, k.Lease, left)
	}
	byKey, err := e.dial(got.Secret)
	if err != nil {
		t.Fatal(err)
	}
	if who, err = server.NewServerClient(byKey).Caller(t.Context()); err != nil || who.Project != "shop" || who.How != rpc.HowKey {
		t.Errorf("%+v, %v", who, err)
	}
	if _, err := core.NewKeysClient(byKey).Exchange(t.Context()); !errs.Is(err, errs.FailedPrecondition) {
		t.Errorf("a key is exchanged: %v", err)
	}
	if resp, body := e.do(http.MethodGet, "/api/v1/apps", token, ""); resp.StatusCode != http.StatusOK {
		t.Errorf("REST by token: %d %s", resp.StatusCode, body)
	}
	fork := p.Token(t, audience, time.Minute, map[string]any{"sub": "repo:mallory/shop", "repository": "mallory/shop"})
	if _, err := e.dial(fork); !errs.Is(err, errs.Unauthenticated) || !strings.Contains(err.Error(), "its claim repository is mallory/shop") {
		t.Errorf("a fork: %v", err)
	}
}
