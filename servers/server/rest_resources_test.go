package server

import (
	"encoding/json"
	"maps"
	"net/http"
	"strings"
	"testing"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/servers/rest"
)

func init() {
	ofTheProject = append(ofTheProject, "GET /containers", "GET /snapshots")
	maps.Copy(restBodies, map[string]string{
		"PUT /sessions/{id}/idle":       `{}`,
		"POST /sessions/{id}/snapshots": `{}`,
		"POST /sessions/{id}/forks":     `{}`,
		"POST /snapshots/{id}/forks":    `{}`,
	})
}

// must makes a request and decodes its answer, which must have the status.
func (e *restEnv) must(method, path, key, body string, status int) map[string]any {
	e.t.Helper()
	resp, text := e.do(method, rest.Prefix+path, key, body)
	if resp.StatusCode != status {
		e.t.Fatalf("%s %s: %d, %s", method, path, resp.StatusCode, text)
	}
	var out map[string]any
	if text != "" {
		if err := json.Unmarshal([]byte(text), &out); err != nil {
			e.t.Fatalf("%s %s: %v: %s", method, path, err, text)
		}
	}
	return out
}

// listed returns a field of every element of a list in an answer.
func listed(answer map[string]any, list, field string) []string {
	var out []string
	for _, x := range answer[list].([]any) {
		s, _ := x.(map[string]any)[field].(string)
		out = append(out, s)
	}
	return out
}

// TestContainersAreAllSandboxes: those of apps and executions too, which are no
// sessions, and none of another project.
func TestContainersAreAllSandboxes(t *testing.T) {
	e := newRestEnv(t)
	own := e.newTenant("own")
	e.newTenant("foreign")
	key := e.key("own", "viewer")
	of := sandbox.NewSandbox()
	of.Project, of.Spec.App, of.Spec.Template.Image, of.Status.Phase = own.projectID, own.app.GetID(), "img", sandbox.SandboxPhaseRunning
	if err := entity.Create(t.Context(), e.c.store, of); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ query, want string }{
		{"", string(own.sandbox.ID) + " " + string(of.ID)}, {"?purpose=app", string(of.ID)}, {"?purpose=session", string(own.sandbox.ID)},
		{"?state=running", string(of.ID)}, {"?purpose=pool", ""}, {"?label=a=b", ""},
	} {
		got := listed(e.must(http.MethodGet, "/containers"+c.query, key, "", http.StatusOK), "containers", "id")
		if len(got) != len(strings.Fields(c.want)) {
			t.Errorf("%s: %v, want %s", c.query, got, c.want)
		}
		for _, id := range got {
			if !strings.Contains(c.want, id) {
				t.Errorf("%s: %v, want %s", c.query, got, c.want)
			}
		}
	}
	if got := e.must(http.MethodGet, "/containers/"+string(of.ID), key, "", http.StatusOK); got["purpose"] != "app" || got["state"] != "running" || got["app"] != string(own.app.ID) {
		t.Errorf("%v", got)
	}
	if got := listed(e.must(http.MethodGet, "/sessions", key, "", http.StatusOK), "sessions", "id"); len(got) != 1 || got[0] != string(own.sandbox.ID) {
		t.Errorf("sessions: %v", got)
	}
}

// TestSnapshotsOfTheProject: listed by session and label, shown, and deleted.
func TestSnapshotsOfTheProject(t *testing.T) {
	e := newRestEnv(t)
	own, foreign := e.newTenant("own"), e.newTenant("foreign")
	key := e.key("own", "agent")
	path := "/snapshots/" + string(own.snapshot.ID)
	for query, want := range map[string]int{
		"": 1, "?session=" + string(own.sandbox.ID): 1, "?session=" + string(foreign.sandbox.ID): 0, "?label=a=b": 0, "?name=x": 0,
	} {
		if got := listed(e.must(http.MethodGet, "/snapshots"+query, key, "", http.StatusOK), "snapshots", "id"); len(got) != want || want == 1 && got[0] != string(own.snapshot.ID) {
			t.Errorf("%s: %v", query, got)
		}
	}
	if got := e.must(http.MethodGet, path, key, "", http.StatusOK); got["session"] != string(own.sandbox.ID) || got["state"] != "ready" {
		t.Errorf("%v", got)
	}
	e.must(http.MethodDelete, path, key, "", http.StatusNoContent)
	e.must(http.MethodGet, path, key, "", http.StatusNotFound)
}
