package secrets

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"miren.dev/runtime/api"
	"miren.dev/runtime/api/secret"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/egress"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/pgtest"
)

// newService returns a service and the ids of two projects.
func newService(t *testing.T) (*Service, map[string]schema.ID) {
	t.Helper()
	ctx := t.Context()
	s := &Service{Store: pgtest.Store(t, api.Kinds()...), Sealer: schema.NewSealer(filepath.Join(t.TempDir(), "key"))}
	ids := map[string]schema.ID{}
	for _, name := range []string{projects.Default, "other"} {
		if err := projects.Ensure(ctx, s.Store, name); err != nil {
			t.Fatal(err)
		}
		id, err := projects.Find(ctx, s.Store, name)
		if err != nil {
			t.Fatal(err)
		}
		ids[name] = id
	}
	return s, ids
}

// TestSecrets: a value is replaced and deleted for its readers at once, is in no
// record, and belongs to its project.
func TestSecrets(t *testing.T) {
	ctx := t.Context()
	s, ids := newService(t)
	ref := Reference(ids[projects.Default], "key")
	for _, v := range []string{"first-value", "second-value"} {
		sec, err := s.Set(ctx, "", "key", v, []string{"API.example."})
		if err != nil {
			t.Fatal(err)
		}
		rec, err := s.Store.Get(ctx, secret.KindSecret, sec.ID)
		if err != nil || strings.Contains(fmt.Sprintf("%+v %+v", rec, sec), v) {
			t.Errorf("the record has the value, or %v", err)
		}
		if got, err := s.Value(ctx, ref, "api.example"); err != nil || got != v {
			t.Errorf("%q, %v, want %q", got, err, v)
		}
	}
	if list, _, err := entity.List[secret.Secret](ctx, s.Store, entity.Query{}); err != nil || len(list) != 1 {
		t.Errorf("%d secrets, %v", len(list), err)
	}
	if _, err := s.Value(ctx, Reference(ids["other"], "key"), "api.example"); !errs.Is(err, errs.NotFound) {
		t.Errorf("by another project: %v", err)
	}
	for _, v := range []string{"", "two\nlines", strings.Repeat("x", secret.MaxValue+1)} {
		if _, err := s.Set(ctx, "", "key", v, []string{"api.example"}); !errs.Is(err, errs.InvalidArgument) || v != "" && strings.Contains(err.Error(), v) {
			t.Errorf("%.10q: %v", v, err)
		}
	}
	if err := s.Delete(ctx, "", "key"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Value(ctx, ref, "api.example"); !errs.Is(err, errs.NotFound) {
		t.Errorf("after the deletion: %v", err)
	}
	if err := s.Delete(ctx, "", "key"); !errs.Is(err, errs.NotFound) {
		t.Errorf("a second deletion: %v", err)
	}
}

// TestSecretsAreForTheirHosts: a value goes to its hosts only, and a change of the hosts needs a value.
func TestSecretsAreForTheirHosts(t *testing.T) {
	ctx := t.Context()
	s, ids := newService(t)
	project := ids[projects.Default]
	for _, hosts := range [][]string{nil, {"192.0.2.1"}, {"192.0.2.0/24"}, {"*"}, {"https://api.example"}, make([]string, secret.MaxHosts+1)} {
		if _, err := s.Set(ctx, "", "key", "value", hosts); !errs.Is(err, errs.InvalidArgument) {
			t.Errorf("for %.80q: %v", hosts, err)
		}
	}
	if _, err := s.Set(ctx, "", "key", "", []string{"evil.example"}); !errs.Is(err, errs.InvalidArgument) {
		t.Errorf("hosts without a value: %v", err)
	}
	if _, err := s.Set(ctx, "", "key", "value", []string{"api.example", "*.example.org"}); err != nil {
		t.Fatal(err)
	}
	for host, want := range map[string]bool{
		"api.example": true, "a.example.org": true, "a.b.example.org": true, "*.example.org": true, "*.b.example.org": true,
		"example.org": false, "www.api.example": false, "*.api.example": false, "evil.example": false, "aexample.org": false,
		"*.org": false, "192.0.2.1": false,
	} {
		rule, err := egress.ParseRule(host)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Permit(ctx, project, "key", rule); errs.Is(err, errs.PermissionDenied) == want || err != nil && want {
			t.Errorf("Permit for %s: %v", host, err)
		}
		if got, err := s.Value(ctx, Reference(project, "key"), host); (got == "value") != want || (err == nil) != want {
			t.Errorf("Value for %s: %q, %v", host, got, err)
		}
	}
	if _, err := s.Set(ctx, "", "key", "another", []string{"evil.example"}); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Value(ctx, Reference(project, "key"), "api.example"); !errs.Is(err, errs.PermissionDenied) {
		t.Errorf("for a host of the value before: %q, %v", got, err)
	}
}
