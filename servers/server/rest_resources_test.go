package server

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/disk"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/buildlog"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/servers/rest"
)

func init() {
	ofTheProject = append(ofTheProject,
		"GET /containers", "GET /snapshots",
		"POST /templates", "PUT /templates/{name}", "DELETE /templates/{name}", "GET /templates/{name}/logs", "PUT /templates/{name}/tags/{tag}",
		"DELETE /templates/{name}/tags/{tag}", "POST /templates/{name}/rollback",
		"PUT /templates/{name}/aliases/{alias}", "DELETE /templates/{name}/aliases/{alias}",
		"GET /pools", "GET /pools/{template}", "PUT /pools/{template}", "DELETE /pools/{template}",
		"POST /volumes", "GET /volumes", "GET /volumes/{name}", "DELETE /volumes/{name}", "POST /volumes/{name}/resize", "PUT /volumes/{name}/schedule", "DELETE /volumes/{name}/schedule", "POST /volumes/{name}/clones", "POST /volumes/{name}/salvages",
		"POST /volumes/{name}/snapshots", "GET /volumes/{name}/snapshots", "DELETE /volumes/{name}/snapshots/{snapshot}",
		"POST /addons", "GET /addons", "GET /addons/{addon}", "GET /addons/{addon}/wait", "DELETE /addons/{addon}", "POST /addons/{addon}/rotate",
		"PUT /addons/{addon}/apps/{app}", "DELETE /addons/{addon}/apps/{app}", "POST /addons/{addon}/backups",
		"DELETE /addons/{addon}/backups/{backup}", "POST /addons/{addon}/backups/{backup}/restore",
		"POST /webhooks", "GET /webhooks", "GET /webhooks/{name}", "PATCH /webhooks/{name}", "DELETE /webhooks/{name}", "POST /webhooks/{name}/rotate-secret",
		"POST /webhooks/{name}/test", "GET /webhooks/{name}/deliveries", "POST /webhooks/{name}/replay",
		"POST /keys", "GET /keys", "GET /keys/{name}", "DELETE /keys/{name}", "GET /audit", "GET /events", "GET /events/stream", "GET /policy", "GET /policy/report",
		"GET /apps", "PUT /apps/{app}/previews/{preview}", "GET /deployments", "GET /kinds", "GET /entities", "GET /nodes/summary",
	)
	maps.Copy(restBodies, map[string]string{
		"POST /keys": `{"name": "none"}`,

		"POST /addons":                   `{"name": "none", "engine": "valkey"}`,
		"PUT /addons/{addon}/apps/{app}": `{}`,
		"POST /addons/{addon}/backups":   `{}`,

		"PUT /apps/{app}/previews/{preview}":          `{"dockerfile": "FROM a", "stack": "none"}`, // refused, or else it makes the app
		"POST /apps/{app}/previews/{preview}/promote": `{}`,

		"POST /webhooks":               `{"name": "none", "url": "https://example.com"}`,
		"PATCH /webhooks/{name}":       `{"disabled": true}`,
		"POST /webhooks/{name}/replay": `{}`,

		"PUT /sessions/{id}/egress":     `{"mode": "none"}`,
		"PUT /sessions/{id}/idle":       `{}`,
		"POST /sessions/{id}/snapshots": `{}`,
		"POST /sessions/{id}/forks":     `{}`,
		"POST /snapshots/{id}/forks":    `{}`,

		"POST /templates":                  `{"name": "none", "image": "runtime/sandbox:base"}`,
		"PUT /templates/{name}":            `{"image": "runtime/sandbox:base"}`,
		"PUT /templates/{name}/tags/{tag}": `{"version": "1"}`,
		"POST /templates/{name}/rollback":  `{"version": "1"}`,

		"PUT /pools/{template}":          `{"min": 1}`,
		"POST /volumes":                  `{"name": "none", "size_bytes": 16777216, "file_system": "xfs"}`,
		"POST /volumes/{name}/resize":    `{"size_bytes": 16777216}`,
		"PUT /volumes/{name}/schedule":   `{"cron": "30 3 * * *", "keep": 7}`,
		"POST /volumes/{name}/clones":    `{"name": "none"}`,
		"POST /volumes/{name}/salvages":  `{"name": "none"}`,
		"POST /volumes/{name}/snapshots": `{"name": "none"}`,
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

// TestTemplatesOverREST: a template is built of a Dockerfile with files, gets
// another version, tags and a rollback, and is deleted.
func TestTemplatesOverREST(t *testing.T) {
	e := newRestEnv(t)
	own := e.newTenant("own")
	if err := e.c.templates.Ship(t.Context()); err != nil {
		t.Fatal(err)
	}
	key := e.key("own", "deployer")
	dockerfile := `"dockerfile": "FROM runtime/sandbox:base\nCOPY a /a\n", "files": [{"path": "a", "data": "YQ=="}]`
	v := e.must(http.MethodPost, "/templates", key, `{"name": "shop", "title": "Shop", `+dockerfile+`}`, http.StatusAccepted)
	if v["template"] != "shop" || v["number"] != 1.0 || v["state"] != "building" {
		t.Errorf("%v", v)
	}
	e.must(http.MethodPost, "/templates", key, `{"name": "shop", `+dockerfile+`}`, http.StatusConflict)
	e.must(http.MethodPost, "/templates", key, `{"name": "python", "image": "debian"}`, http.StatusConflict)
	e.must(http.MethodPut, "/templates/shop", key, `{`+dockerfile+`, "image": "debian"}`, http.StatusBadRequest)
	e.must(http.MethodPut, "/templates/shop", key, `{"dockerfile": "FROM x", "files": [{"path": "Dockerfile", "data": "YQ=="}]}`, http.StatusBadRequest)
	e.must(http.MethodPut, "/templates/shop", key, `{"dockerfile": "FROM x", "files": [{"path": "../a", "data": "YQ=="}]}`, http.StatusBadRequest)
	v = e.must(http.MethodPut, "/templates/shop", key, `{"steps": [{"kind": "from", "args": ["debian"]}, {"kind": "run", "args": ["true"]}]}`, http.StatusAccepted)
	if v["number"] != 2.0 {
		t.Errorf("%v", v)
	}
	e.must(http.MethodPost, "/templates/shop/rollback", key, `{}`, http.StatusConflict) // no version is ready
	versions, _, err := entity.List[sandbox.TemplateVersion](t.Context(), e.c.store, entity.Query{Project: own.projectID})
	if err != nil || len(versions) != 2 {
		t.Fatal(versions, err)
	}
	for _, v := range versions {
		v.Status.Phase, v.Status.Image = sandbox.TemplatePhaseReady, "img"
		if err := entity.UpdateStatus(t.Context(), e.c.store, v); err != nil {
			t.Fatal(err)
		}
	}
	selected := func(d map[string]any) any {
		t.Helper()
		s, ok := d["selected"].(map[string]any)
		if !ok {
			t.Fatalf("none is selected: %v", d)
		}
		return s["number"]
	}
	if d := e.must(http.MethodPut, "/templates/shop/tags/latest", key, `{"version": "2"}`, http.StatusOK); selected(d) != 2.0 || len(d["versions"].([]any)) != 2 || d["title"] != "Shop" {
		t.Errorf("%v", d)
	}
	if d := e.must(http.MethodPost, "/templates/shop/rollback", key, `{}`, http.StatusOK); selected(d) != 1.0 {
		t.Errorf("%v", d)
	}
	e.must(http.MethodPost, "/templates/shop/rollback", key, `{}`, http.StatusConflict)
	if d := e.must(http.MethodPut, "/templates/shop/tags/beta", key, `{"version": "2"}`, http.StatusOK); d["tags"].(map[string]any)["beta"] != 2.0 {
		t.Errorf("%v", d)
	}
	if d := e.must(http.MethodDelete, "/templates/shop/tags/beta", key, "", http.StatusOK); d["tags"].(map[string]any)["beta"] != nil {
		t.Errorf("%v", d)
	}
	if l := e.must(http.MethodGet, "/templates/shop/logs", key, "", http.StatusOK); l["version"] != 2.0 || l["state"] != "pending" {
		t.Errorf("%v", l)
	}
	builds, _, err := entity.List[app.Build](t.Context(), e.c.store, entity.Where(app.BuildAttrTemplateVersion, versions[0].ID))
	if err != nil || len(builds) != 1 {
		t.Fatal(builds, err)
	}
	w, err := e.c.m.buildLogs.Start(string(builds[0].ID))
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"one", "two", "three"} {
		w.Add(buildlog.Event{Kind: "log", Text: text})
	}
	w.Finish()
	path := fmt.Sprintf("/templates/shop:%d/logs", versions[0].Spec.Number)
	page := e.must(http.MethodGet, path+"?limit=2", key, "", http.StatusOK)
	if got := listed(page, "lines", "text"); !slices.Equal(got, []string{"one", "two"}) || page["more"] != true {
		t.Errorf("%v", page)
	}
	page = e.must(http.MethodGet, path+fmt.Sprintf("?after=%v", int64(page["next"].(float64))), key, "", http.StatusOK)
	if got := listed(page, "lines", "text"); !slices.Equal(got, []string{"three"}) || page["more"] != false {
		t.Errorf("%v", page)
	}
	e.must(http.MethodGet, "/templates/python/logs", key, "", http.StatusNotFound)
	if d := e.must(http.MethodPut, "/templates/shop/aliases/store", key, "", http.StatusOK); !slices.Equal(d["aliases"].([]any), []any{"store"}) {
		t.Errorf("%v", d)
	}
	if d := e.must(http.MethodGet, "/templates/store", key, "", http.StatusOK); d["name"] != "shop" {
		t.Errorf("%v", d)
	}
	e.must(http.MethodPut, "/templates/shop/aliases/python", key, "", http.StatusConflict)
	if d := e.must(http.MethodDelete, "/templates/shop/aliases/store", key, "", http.StatusOK); d["aliases"] != nil {
		t.Errorf("%v", d)
	}
	e.must(http.MethodGet, "/templates/store", key, "", http.StatusNotFound)
	e.must(http.MethodDelete, "/templates/shop:2", key, "", http.StatusNoContent)
	e.must(http.MethodDelete, "/templates/shop", key, "", http.StatusNoContent)
	e.must(http.MethodGet, "/templates/shop", key, "", http.StatusNotFound)
	e.must(http.MethodDelete, "/templates/python", key, "", http.StatusConflict)
}

// TestPoolsOverREST: the pool of a template is made, changed, shown and deleted.
func TestPoolsOverREST(t *testing.T) {
	e := newRestEnv(t)
	e.newTenant("own")
	e.newTenant("foreign")
	if err := e.c.templates.Ship(t.Context()); err != nil {
		t.Fatal(err)
	}
	key, foreign := e.key("own", "agent"), e.key("foreign", "admin")
	if p := e.must(http.MethodPut, "/pools/python", key, `{"min": 2, "max": 5}`, http.StatusOK); p["min"] != 2.0 || p["max"] != 5.0 {
		t.Errorf("%v", p)
	}
	if p := e.must(http.MethodPut, "/pools/python", key, `{"idle_seconds": 60}`, http.StatusOK); p["min"] != 2.0 || p["idle_seconds"] != 60.0 {
		t.Errorf("%v", p)
	}
	if p := e.must(http.MethodGet, "/pools/python", key, "", http.StatusOK); p["template"] != "python" || p["max"] != 5.0 {
		t.Errorf("%v", p)
	}
	if got := listed(e.must(http.MethodGet, "/pools", key, "", http.StatusOK), "pools", "template"); !slices.Equal(got, []string{"python"}) {
		t.Errorf("%v", got)
	}
	e.must(http.MethodPut, "/pools/nowhere", key, `{}`, http.StatusNotFound)
	e.must(http.MethodGet, "/pools/python", foreign, "", http.StatusNotFound)
	if got := listed(e.must(http.MethodGet, "/pools", foreign, "", http.StatusOK), "pools", "template"); len(got) != 0 {
		t.Errorf("%v", got)
	}
	e.must(http.MethodDelete, "/pools/python", key, "", http.StatusNoContent)
	e.must(http.MethodGet, "/pools/python", key, "", http.StatusNotFound)
}

// TestVolumesOverREST: volumes of the project are listed with their mounts and
// snapshots, and calls about them reach the disks of the project alone.
func TestVolumesOverREST(t *testing.T) {
	e := newRestEnv(t)
	own := e.newTenant("own")
	e.newTenant("foreign")
	key, foreign := e.key("own", "deployer"), e.key("foreign", "admin")
	create := func(o schema.Object) {
		t.Helper()
		o.GetMeta().Project = own.projectID
		if err := entity.Create(t.Context(), e.c.store, o); err != nil {
			t.Fatal(err)
		}
	}
	d := disk.NewDisk()
	d.Name, d.Spec.SizeBytes, d.Status.SizeBytes, d.Status.Phase = "data", disk.MinSize, disk.MinSize, disk.DiskPhaseReady
	taken, lost, most := time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC), int64(8192), int64(1<<30)
	d.Status.TakenOverAt, d.Status.LostBytes, d.Status.LostMostBytes, d.Status.LostReportedAt = &taken, &lost, &most, &taken
	create(d)
	snap := disk.NewDiskSnapshot()
	snap.Spec.Disk, snap.Spec.Name, snap.Spec.Key, snap.Status.Phase = d.GetID(), "before", string(d.ID)+"/before", disk.DiskPhaseReady
	create(snap)
	nodes, _, err := entity.List[core.Node](t.Context(), e.c.store, entity.Query{})
	if err != nil {
		t.Fatal(err)
	}
	m := disk.NewDiskMount()
	m.Spec.Disk, m.Spec.Sandbox, m.Spec.Node, m.Spec.Path = d.GetID(), own.sandbox.GetID(), nodes[0].GetID(), "/data"
	create(m)
	v := e.must(http.MethodGet, "/volumes/data", key, "", http.StatusOK)
	if v["state"] != "ready" || v["file_system"] != "ext4" || v["size_bytes"] != float64(disk.MinSize) || v["taken_over_at"] != "2026-05-04T12:00:00Z" || v["lost_bytes"] != 8192. || v["lost_most_bytes"] != float64(1<<30) || v["lost_reported_at"] != "2026-05-04T12:00:00Z" || !slices.Equal(listed(v, "mounts", "container"), []string{string(own.sandbox.ID)}) {
		t.Errorf("%v", v)
	}
	if got := listed(e.must(http.MethodGet, "/volumes", key, "", http.StatusOK), "volumes", "name"); !slices.Equal(got, []string{"data"}) {
		t.Errorf("%v", got)
	}
	if got := listed(e.must(http.MethodGet, "/volumes/data/snapshots", key, "", http.StatusOK), "snapshots", "name"); !slices.Equal(got, []string{"before"}) {
		t.Errorf("%v", got)
	}
	for body, want := range map[string]map[string]any{
		`{"every_seconds": 3600, "keep": 3}`:                                              {"every_seconds": 3600., "keep": 3.},
		`{"cron": "30 3 * * *", "time_zone": "Europe/Berlin", "keep_for_seconds": 86400}`: {"cron": "30 3 * * *", "time_zone": "Europe/Berlin", "keep": 1000., "keep_for_seconds": 86400.},
		`{"cron": "@daily", "keep": 7}`:                                                   {"cron": "@daily", "keep": 7.},
	} {
		e.must(http.MethodPut, "/volumes/data/schedule", key, body, http.StatusOK)
		if d := cmp.Diff(any(want), e.must(http.MethodGet, "/volumes/data", key, "", http.StatusOK)["schedule"]); d != "" {
			t.Errorf("after %s: %s", body, d)
		}
	}
	for range 2 { // a repeated call does nothing
		e.must(http.MethodDelete, "/volumes/data/schedule", key, "", http.StatusNoContent)
	}
	if v := e.must(http.MethodGet, "/volumes/data", key, "", http.StatusOK); v["schedule"] != nil {
		t.Errorf("%v", v)
	}
	for _, c := range []struct {
		method, path, body string
		status             int
	}{
		{"PUT", "/volumes/data/schedule", `{}`, http.StatusBadRequest},
		{"PUT", "/volumes/data/schedule", `{"every_seconds": 60, "cron": "@daily"}`, http.StatusBadRequest},
		{"PUT", "/volumes/data/schedule", `{"every_seconds": 60, "time_zone": "UTC"}`, http.StatusBadRequest},
		{"PUT", "/volumes/data/schedule", `{"cron": "61 * * * *"}`, http.StatusBadRequest},
		{"PUT", "/volumes/data/schedule", `{"cron": "@daily", "time_zone": "Mars"}`, http.StatusBadRequest},
		{"PUT", "/volumes/data/schedule", `{"every_seconds": 1}`, http.StatusUnprocessableEntity},
		{"PUT", "/volumes/data/schedule", `{"every_seconds": 60, "keep": 1001}`, http.StatusUnprocessableEntity},
		{"PUT", "/volumes/nowhere/schedule", `{"every_seconds": 60}`, http.StatusNotFound},
		{"DELETE", "/volumes/nowhere/schedule", "", http.StatusNotFound},
		{"POST", "/volumes/data/clones", `{"name": "copy", "at": "2020-01-01T00:00:00Z"}`, http.StatusNotFound},
		{"POST", "/volumes", `{"name": "data", "size_bytes": 16777216}`, http.StatusConflict},
		{"POST", "/volumes", `{"name": "more", "size_bytes": 16777217}`, http.StatusUnprocessableEntity},
		{"POST", "/volumes", `{"name": "more", "size_bytes": 4096}`, http.StatusUnprocessableEntity},
		{"POST", "/volumes/data/clones", `{"name": "data"}`, http.StatusConflict},
		{"POST", "/volumes/nowhere/clones", `{"name": "copy"}`, http.StatusNotFound},
		{"POST", "/volumes/nowhere/salvages", `{"name": "rescued"}`, http.StatusNotFound},
		{"POST", "/volumes/data/salvages", `{"name": "rescued", "node": "nowhere"}`, http.StatusNotFound},
		{"POST", "/volumes/data/salvages", `{"name": "rescued"}`, http.StatusConflict},
		{"POST", "/volumes/nowhere/resize", `{"size_bytes": 33554432}`, http.StatusNotFound},
		{"POST", "/volumes/data/snapshots", `{"name": "before"}`, http.StatusConflict},
		{"DELETE", "/volumes/nowhere", "", http.StatusNotFound},
		{"DELETE", "/volumes/data/snapshots/after", "", http.StatusNotFound},
		{"POST", "/sessions", `{"image": "debian", "volumes": [{"volume": "data", "path": "data"}]}`, http.StatusUnprocessableEntity},
	} {
		e.must(c.method, c.path, key, c.body, c.status)
	}
	for _, path := range []string{"/volumes/data", "/volumes/data/snapshots"} {
		e.must(http.MethodGet, path, foreign, "", http.StatusNotFound)
	}
	e.must(http.MethodDelete, "/volumes/data", foreign, "", http.StatusNotFound)
	e.must(http.MethodPut, "/volumes/data/schedule", foreign, `{"cron": "@daily"}`, http.StatusNotFound)
	e.must(http.MethodDelete, "/volumes/data/schedule", foreign, "", http.StatusNotFound)
}

// TestPortsNeedTheirProject: the proxy of ports is no operation of the document,
// and is refused to the same callers.
func TestPortsNeedTheirProject(t *testing.T) {
	e := newRestEnv(t)
	own := e.newTenant("own")
	e.newTenant("foreign")
	path := rest.Prefix + "/sessions/" + string(own.sandbox.ID) + "/ports/80"
	for key, want := range map[string]int{"": http.StatusUnauthorized, e.key("foreign", "admin"): http.StatusForbidden, e.key("own", "viewer"): http.StatusForbidden} {
		for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodDelete} {
			for _, p := range []string{path, path + "/", path + "/a/b"} {
				resp, text := e.do(method, p, key, "")
				if resp.StatusCode != want || resp.Header.Get("Content-Type") != "application/problem+json" {
					t.Errorf("%s %s: %d, %s", method, p, resp.StatusCode, text)
				}
			}
		}
	}
}

// TestKeysOverREST: a key is shown once, works, is listed without its secret, and
// is refused after its deletion. Only administrators make keys.
func TestKeysOverREST(t *testing.T) {
	e := newRestEnv(t)
	e.newTenant("own")
	e.newTenant("foreign")
	admin, agent, foreign := e.key("own", "admin"), e.key("own", "agent"), e.key("foreign", "admin")
	made := e.must(http.MethodPost, "/keys", admin, `{"name": "ci", "roles": ["viewer"], "ttl_seconds": 3600}`, http.StatusCreated)
	secret, _ := made["key"].(string)
	if len(secret) < 32 || made["name"] != "ci" || made["expires_at"] == nil || made["created_by"] != "key:own/k-admin" {
		t.Fatalf("%v", made)
	}
	e.must(http.MethodGet, "/sessions", secret, "", http.StatusOK)
	e.must(http.MethodPost, "/sessions", secret, `{}`, http.StatusForbidden)
	e.must(http.MethodPost, "/keys", admin, `{"name": "ci"}`, http.StatusConflict)
	e.must(http.MethodPost, "/keys", admin, `{"name": "x", "roles": ["owner"]}`, http.StatusUnprocessableEntity)
	e.must(http.MethodPost, "/keys", agent, `{"name": "x"}`, http.StatusForbidden)
	resp, text := e.do(http.MethodGet, rest.Prefix+"/keys", admin, "")
	if resp.StatusCode != http.StatusOK || strings.Contains(text, secret) || !strings.Contains(text, `"roles":["viewer"]`) || !strings.Contains(text, `"name":"ci"`) {
		t.Errorf("%d, %s", resp.StatusCode, text)
	}
	if got := listed(e.must(http.MethodGet, "/keys", foreign, "", http.StatusOK), "keys", "name"); slices.Contains(got, "ci") {
		t.Errorf("another project: %v", got)
	}
	e.must(http.MethodDelete, "/keys/ci", foreign, "", http.StatusNotFound)
	e.must(http.MethodDelete, "/keys/ci", agent, "", http.StatusForbidden)
	e.must(http.MethodDelete, "/keys/ci", admin, "", http.StatusNoContent)
	if resp, text := e.do(http.MethodGet, rest.Prefix+"/sessions", secret, ""); resp.StatusCode == http.StatusOK {
		t.Errorf("a deleted key: %d, %s", resp.StatusCode, text)
	}
}

// TestAuditOverREST: the calls of a key are listed by every filter and in pages,
// in its project only.
func TestAuditOverREST(t *testing.T) {
	e := newRestEnv(t)
	own := e.newTenant("own")
	e.newTenant("foreign")
	key, viewer, foreign := e.key("own", "agent"), e.key("own", "viewer"), e.key("foreign", "admin")
	before := time.Now().Add(-time.Minute).UTC().Format(time.RFC3339)
	for range 3 {
		e.must(http.MethodPost, "/sessions/"+string(own.sandbox.ID)+"/extend", key, `{}`, http.StatusConflict)
	}
	e.must(http.MethodDelete, "/snapshots/"+string(own.snapshot.ID), key, "", http.StatusNoContent)
	const extend, del = "sandbox.Sandboxes/Extend", "sandbox.Sandboxes/DeleteSnapshot"
	for query, want := range map[string][]string{
		"": {del, extend, extend, extend}, "&action=" + del: {del}, "&subject_kind=sandbox&subject=" + string(own.sandbox.ID): {extend, extend, extend},
		"&since=" + before: {del, extend, extend, extend}, "&until=" + before: nil, "&action=none": nil,
	} {
		got := e.must(http.MethodGet, "/audit?actor=key:own/k-agent"+query, viewer, "", http.StatusOK)
		if !slices.Equal(listed(got, "records", "action"), want) {
			t.Errorf("%s: %v", query, got)
		}
	}
	page := e.must(http.MethodGet, "/audit?actor=key:own/k-agent&limit=3", viewer, "", http.StatusOK)
	next, _ := page["next_cursor"].(string)
	if got := listed(page, "records", "outcome"); len(got) != 3 || got[0] != "ok" || got[1] != "failed_precondition" || next == "" {
		t.Errorf("%v", page)
	}
	page = e.must(http.MethodGet, "/audit?actor=key:own/k-agent&limit=3&cursor="+url.QueryEscape(next), viewer, "", http.StatusOK)
	if got := listed(page, "records", "action"); !slices.Equal(got, []string{extend}) || page["next_cursor"] != nil {
		t.Errorf("%v", page)
	}
	if got := e.must(http.MethodGet, "/audit?actor=key:own/k-agent", foreign, "", http.StatusOK); len(got["records"].([]any)) != 0 {
		t.Errorf("another project: %v", got)
	}
	e.must(http.MethodGet, "/audit?subject=x", viewer, "", http.StatusBadRequest)
	e.must(http.MethodGet, "/audit?since=yesterday", viewer, "", http.StatusUnprocessableEntity)
}

// TestRESTWebhooks: a webhook and its deliveries, of the caller's project only; its
// secret is shown once.
func TestRESTWebhooks(t *testing.T) {
	e := newRestEnv(t)
	e.newTenant("own")
	e.newTenant("foreign")
	deployer, other, agent := e.key("own", "deployer"), e.key("foreign", "deployer"), e.key("own", "agent")
	e.must(http.MethodPost, "/webhooks", agent, `{"name": "ci", "url": "https://example.com/hooks"}`, http.StatusForbidden)
	const path = "/webhooks/ci"
	made := e.must(http.MethodPost, "/webhooks", deployer, `{"name": "ci", "url": "https://example.com/hooks", "events": ["sandbox.*"]}`, http.StatusCreated)
	if s, _ := made["secret"].(string); !strings.HasPrefix(s, "whsec_") {
		t.Errorf("made %v", made)
	}
	e.must(http.MethodPost, "/webhooks", deployer, `{"name": "ci", "url": "https://example.com/hooks"}`, http.StatusConflict)
	for _, bad := range []string{`"ftp://example.com"`, `"https://"`, `"https://user:password@example.com"`, `"https://example.com", "events": ["sandbox.unknown"]`} {
		e.must(http.MethodPost, "/webhooks", deployer, `{"name": "bad", "url": `+bad+`}`, http.StatusBadRequest)
	}
	if got := e.must(http.MethodGet, path, deployer, "", http.StatusOK); got["secret"] != nil || got["url"] != "https://example.com/hooks" {
		t.Errorf("got %v", got)
	}
	e.must(http.MethodGet, path, other, "", http.StatusNotFound)
	e.must(http.MethodPost, path+"/test", other, "", http.StatusNotFound)
	if got := e.must(http.MethodPost, path+"/rotate-secret", deployer, "", http.StatusOK); got["secret"] == made["secret"] {
		t.Error("the secret did not change")
	}
	tested := e.must(http.MethodPost, path+"/test", deployer, "", http.StatusAccepted)["deliveries"].([]any)
	listed := e.must(http.MethodGet, path+"/deliveries", deployer, "", http.StatusOK)["deliveries"].([]any)
	if len(tested) != 1 || len(listed) != 1 || listed[0].(map[string]any)["payload"].(map[string]any)["type"] != "webhook.test" {
		t.Errorf("tested %v, listed %v", tested, listed)
	}
	id := listed[0].(map[string]any)["id"].(string)
	e.must(http.MethodPost, path+"/replay", deployer, fmt.Sprintf(`{"delivery": %q}`, id), http.StatusConflict) // it waits
	if got := e.must(http.MethodPatch, path, deployer, `{"disabled": true, "events": ["*"]}`, http.StatusOK); got["disabled"] != true {
		t.Errorf("changed: %v", got)
	}
	e.must(http.MethodPost, path+"/test", deployer, "", http.StatusConflict)
	if list := e.must(http.MethodGet, "/webhooks", deployer, "", http.StatusOK)["webhooks"].([]any); len(list) != 1 {
		t.Errorf("listed %v", list)
	}
	e.must(http.MethodDelete, path, deployer, "", http.StatusNoContent)
	e.must(http.MethodGet, path+"/deliveries", deployer, "", http.StatusNotFound)
}
