package server

import (
	"net/http"
	"strings"
	"testing"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
)

// TestEveryE2BOperationNeedsItsProject calls each operation of E2B's control
// plane without a key, and those on a sandbox with one of another project and
// with one that may only read.
func TestEveryE2BOperationNeedsItsProject(t *testing.T) {
	e := newRestEnv(t)
	own, _ := e.newTenant("own"), e.newTenant("foreign")
	live := sandbox.NewSandbox()
	live.Project, live.Spec.Template.Image, live.Status.Phase = own.projectID, "img", sandbox.SandboxPhaseRunning
	if err := entity.Create(t.Context(), e.c.store, live); err != nil {
		t.Fatal(err)
	}
	public := strings.Replace(string(live.ID), "-", "", 1)
	foreign, viewer := e.key("foreign", "admin"), e.key("own", "viewer")
	for _, name := range e.f.e2b.Operations() {
		method, path, _ := strings.Cut(name, " ")
		path = pathParameters.ReplaceAllString(strings.ReplaceAll(path, "{id}", public), "1")
		if resp, text := e.do(method, path, "", "{}"); resp.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s without a key: %d, %s", name, resp.StatusCode, text)
		}
		if !strings.Contains(name, "/sandboxes/{id}") {
			continue
		}
		if resp, text := e.do(method, path, foreign, "{}"); resp.StatusCode != http.StatusForbidden && resp.StatusCode != http.StatusNotFound &&
			!(resp.StatusCode == http.StatusBadRequest && strings.Contains(text, "timeout is missing")) {
			t.Errorf("%s of another project: %d, %s", name, resp.StatusCode, text)
		}
		if _, text := e.do(method, path, viewer, "{}"); strings.Contains(text, "AccessToken") {
			t.Errorf("%s gives a token to a viewer: %s", name, text)
		}
	}
}
