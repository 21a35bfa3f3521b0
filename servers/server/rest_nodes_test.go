package server

import (
	"net/http"
	"strings"
	"testing"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/pkg/errs"
)

// TestNodesOverREST: keys with roles in all projects read nodes and their figures, and only
// administrators of the installation make such keys.
func TestNodesOverREST(t *testing.T) {
	e := newRestEnv(t)
	own := e.newTenant("own")
	if err := projects.Ensure(t.Context(), e.c.store, projects.Default); err != nil {
		t.Fatal(err)
	}
	admin := e.key("own", "admin")
	for _, path := range []string{"/nodes", "/nodes/none", "/nodes/none/metrics"} {
		e.must(http.MethodGet, path, admin, "", http.StatusForbidden)
	}
	c, err := e.dial(admin)
	if err != nil {
		t.Fatal(err)
	}
	all := &core.CreateKeyRequest{Project: "*", Name: "operator", Roles: []string{"viewer"}}
	if _, err := core.NewKeysClient(c).Create(t.Context(), all); !errs.Is(err, errs.PermissionDenied) {
		t.Errorf("an administrator of a project made one: %v", err)
	}
	got, err := core.NewKeysClient(e.root()).Create(t.Context(), all)
	if err != nil {
		t.Fatal(err)
	}
	list := e.must(http.MethodGet, "/nodes", got.Secret, "", http.StatusOK)
	names := listed(list, "nodes", "name")
	if len(names) == 0 {
		t.Fatalf("%v", list)
	}
	if n := e.must(http.MethodGet, "/nodes/"+names[0], got.Secret, "", http.StatusOK); n["name"] != names[0] || n["sandboxes"] == nil {
		t.Errorf("%v", n)
	}
	e.must(http.MethodGet, "/nodes/none", got.Secret, "", http.StatusNotFound)
	e.must(http.MethodGet, "/nodes/none/metrics", got.Secret, "", http.StatusNotFound)
	// Its role is that of a viewer, in all projects.
	e.must(http.MethodPost, "/sessions", got.Secret, `{"template": "none"}`, http.StatusForbidden)
	if ids := listed(e.must(http.MethodGet, "/sessions", got.Secret, "", http.StatusOK), "sessions", "id"); len(ids) != 1 || ids[0] != string(own.sandbox.ID) {
		t.Errorf("%v, want %s", ids, own.sandbox.ID)
	}
	text := e.browser().must("POST", "/ui/login", `{"key": "`+got.Secret+`"}`, http.StatusOK)
	if want := `"project":"default","roles":["viewer"]`; !strings.Contains(text, want) || !strings.Contains(text, `"installation":true`) {
		t.Errorf("%s", text)
	}
}
