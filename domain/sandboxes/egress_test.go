package sandboxes

import (
	"testing"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/secrets"
	"miren.dev/runtime/pkg/errs"
)

// TestSecretsAreInjectedForTheirHosts: a policy that injects a secret for another host than its own is refused, when a
// sandbox is made and later.
func TestSecretsAreInjectedForTheirHosts(t *testing.T) {
	s, _ := setup(t)
	s.Secrets = &secrets.Service{Store: s.Store, Sealer: s.Sealer}
	if _, err := s.Secrets.Set(t.Context(), "", "key", "value", []string{"api.example"}); err != nil {
		t.Fatal(err)
	}
	policy := func(secret, host string) sandbox.Egress {
		return sandbox.Egress{Mode: sandbox.EgressModeAll, Inject: []sandbox.Injection{{Secret: secret, Host: host}}}
	}
	own := policy("key", "api.example")
	sb, err := s.Create(t.Context(), "", CreateRequest{Image: "debian", Egress: &own})
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"evil.example", "*.example"} {
		p := policy("key", host)
		if _, err := s.Create(t.Context(), "", CreateRequest{Image: "debian", Egress: &p}); !errs.Is(err, errs.PermissionDenied) {
			t.Errorf("create for %s: %v", host, err)
		}
		if _, err := s.SetEgress(t.Context(), sb.GetID(), p); !errs.Is(err, errs.PermissionDenied) {
			t.Errorf("change for %s: %v", host, err)
		}
	}
	if _, err := s.SetEgress(t.Context(), sb.GetID(), policy("other", "api.example")); !errs.Is(err, errs.NotFound) {
		t.Errorf("a secret that does not exist: %v", err)
	}
	if _, err := s.SetEgress(t.Context(), sb.GetID(), own); err != nil {
		t.Error(err)
	}
}
