package server

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/disk"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/api/webhook"
	"miren.dev/runtime/domain/apps"
	"miren.dev/runtime/domain/keys"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/servers/rest"
	"miren.dev/runtime/testsupport/wait"
)

// TestAppsOverREST: an app with the version that serves, what it has of it, its
// deployments; and none of another project.
func TestAppsOverREST(t *testing.T) {
	e := newRestEnv(t)
	own, foreign := e.newTenant("own"), e.newTenant("foreign")
	ctx, store := t.Context(), e.c.store
	create := func(o schema.Object) {
		t.Helper()
		o.GetMeta().Project = own.projectID
		if err := entity.Create(ctx, store, o); err != nil {
			t.Fatal(err)
		}
	}
	v := app.NewAppVersion()
	v.Spec.App, v.Spec.Number, v.Spec.Image = own.app.GetID(), 3, "img@sha256:00"
	v.Spec.Services = make([]app.Service, 1)
	v.Spec.Services[0].SetDefaults()
	v.Spec.Services[0].Name, v.Spec.Services[0].Replicas = "web", 2
	create(v)
	pool := sandbox.NewSandboxPool()
	pool.Spec.App, pool.Spec.AppVersion, pool.Spec.Service, pool.Spec.Replicas = own.app.GetID(), v.GetID(), "web", 2
	pool.Spec.Template.Image, pool.Status.Ready = "img", 1
	create(pool)
	r := app.NewRoute()
	r.Spec.Host, r.Spec.Key, r.Spec.App = "own.example", "own.example/", own.app.GetID()
	create(r)
	r = app.NewRoute()
	r.Spec.Host, r.Spec.Key, r.Spec.App, r.Spec.Preview = "try.example", "try.example/", own.app.GetID(), "try"
	create(r)
	if err := entity.Retry(ctx, func() error {
		a, err := entity.Get[app.App](ctx, store, own.app.GetID())
		if err != nil {
			return err
		}
		a.Status.Activate(v.GetID())
		a.Status.SetPreview(app.TrafficShare{Version: v.GetID(), Weight: 100, Host: "try.example", Preview: "try"})
		a.Status.LastDeployment = own.deploy.GetID()
		return entity.UpdateStatus(ctx, store, a)
	}); err != nil {
		t.Fatal(err)
	}
	key := e.key("own", "viewer")
	list := e.must(http.MethodGet, "/apps", key, "", http.StatusOK)["apps"].([]any)
	if len(list) != 1 {
		t.Fatalf("%v", list)
	}
	for name, want := range map[string]any{"name": own.app.Name, "version": 3.0, "ready": 1.0, "wanted": 2.0} {
		if got := list[0].(map[string]any)[name]; got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	shares, err := json.Marshal(list[0].(map[string]any)["traffic"])
	if want := `[{"version":3,"weight":100},{"host":"try.example","preview":"try","version":3,"weight":0}]`; err != nil || string(shares) != want {
		t.Errorf("traffic %s, %v", shares, err)
	}
	one := e.must(http.MethodGet, "/apps/"+own.app.Name, key, "", http.StatusOK)
	if hosts := one["hosts"].([]any); len(hosts) != 1 || hosts[0] != "own.example" || len(one["services"].([]any)) != 1 {
		t.Errorf("%v", one)
	}
	if got := listed(one, "versions", "id"); !slices.Equal(got, []string{string(v.ID), string(own.version.ID)}) {
		t.Errorf("versions %v, want the newest first", got)
	}
	e.must(http.MethodGet, "/apps/"+foreign.app.Name, key, "", http.StatusNotFound)
	for query, want := range map[string]int{"": 1, "?app=" + own.app.Name: 1, "?phase=failed": 0, "?phase=succeeded": 1} {
		if got := listed(e.must(http.MethodGet, "/deployments"+query, key, "", http.StatusOK), "deployments", "app"); len(got) != want || want == 1 && got[0] != own.app.Name {
			t.Errorf("%s: %v", query, got)
		}
	}
	if got := e.must(http.MethodGet, "/deployments/"+string(own.deploy.ID), key, "", http.StatusOK); got["phase"] != "succeeded" || got["app"] != own.app.Name {
		t.Errorf("%v", got)
	}
	// The stream of a deployment that has ended ends too.
	resp, text := e.do(http.MethodGet, rest.Prefix+"/deployments/"+string(own.deploy.ID)+"/stream", key, "")
	if resp.StatusCode != http.StatusOK || !strings.Contains(text, "event: end") {
		t.Errorf("%d, %s", resp.StatusCode, text)
	}
	if got := e.must(http.MethodGet, "/nodes/summary", key, "", http.StatusOK); got["nodes"] != 2.0 || got["ready"] != 0.0 {
		t.Errorf("%v", got)
	}
}

// TestAppPreviewsOverREST: they are made of files and of images, listed, promoted and deleted by the rules of the CLI.
func TestAppPreviewsOverREST(t *testing.T) {
	e := newRestEnv(t)
	own := e.newTenant("own")
	ctx, store, key, viewer := t.Context(), e.c.store, e.key("own", "deployer"), e.key("own", "viewer")
	previews := "/apps/" + own.app.Name + "/previews"
	if got := e.must(http.MethodGet, previews, viewer, "", http.StatusOK); len(got["previews"].([]any)) != 0 {
		t.Errorf("%v", got)
	}
	for body, want := range map[string]int{
		`{}`: http.StatusBadRequest, `{"image": "a b"}`: http.StatusUnprocessableEntity, `{"image": "a", "ttl_seconds": 1}`: http.StatusUnprocessableEntity,
		`{"image": "a", "dockerfile": "FROM b"}`: http.StatusBadRequest, `{"image": "a", "stack": "go"}`: http.StatusBadRequest,
		`{"dockerfile": "FROM a", "stack": "none"}`: http.StatusBadRequest, `{"dockerfile": "FROM a", "files": [{"path": "../a", "data": "YQ=="}]}`: http.StatusBadRequest,
		`{"files": [{"path": "index.html", "data": "no base64"}]}`: http.StatusUnprocessableEntity,
	} {
		e.must(http.MethodPut, previews+"/try", key, body, want)
	}
	e.must(http.MethodPut, previews+"/Try", key, `{"image": "a"}`, http.StatusUnprocessableEntity)

	// A deployment of files. It holds the app until its end.
	got := e.must(http.MethodPut, previews+"/try", key, `{"files": [{"path": "index.html", "data": "b25l"}, {"path": "empty", "data": ""}], "ttl_seconds": 3600, "host": "try.example", "message": "look"}`, http.StatusAccepted)
	if got["preview"] != "try" || got["kind"] != "deploy" || got["app"] != own.app.Name || got["message"] != "look" {
		t.Errorf("the deployment is %v", got)
	}
	d, err := entity.Get[app.Deployment](ctx, store, id.Deployment(got["id"].(string)))
	if err != nil {
		t.Fatal(err)
	}
	if p := d.Spec.Preview; p == nil || *p != (app.PreviewRequest{Name: "try", Host: "try.example", TTL: time.Hour}) {
		t.Errorf("its preview is %+v", p)
	}
	e.must(http.MethodPut, previews+"/other", key, `{"image": "a"}`, http.StatusConflict)
	e.must(http.MethodDelete, previews+"/try", key, "", http.StatusConflict)
	release := func() {
		t.Helper()
		l, err := apps.LeaseOf(ctx, store, own.app.GetID())
		if err != nil {
			t.Fatal(err)
		}
		if err := store.Revoke(ctx, l.Lease); err != nil {
			t.Fatal(err)
		}
	}
	release()

	// As its controller leaves it.
	expires := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	d.Status.Phase, d.Status.Version, d.Status.URL = app.DeploymentPhaseSucceeded, own.version.GetID(), "http://try.example/"
	if err := entity.UpdateStatus(ctx, store, d); err != nil {
		t.Fatal(err)
	}
	if err := entity.Retry(ctx, func() error {
		a, err := entity.Get[app.App](ctx, store, own.app.GetID())
		if err != nil {
			return err
		}
		a.Status.SetPreview(app.TrafficShare{Version: own.version.GetID(), Host: "try.example", Preview: "try", ExpiresAt: &expires})
		return entity.UpdateStatus(ctx, store, a)
	}); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"name": "try", "app": own.app.Name, "version": float64(own.version.Spec.Number), "host": "try.example", "url": "http://try.example/", "expires_at": expires.Format(time.RFC3339),
	}
	if list := e.must(http.MethodGet, previews, viewer, "", http.StatusOK)["previews"].([]any); len(list) != 1 || !reflect.DeepEqual(list[0], want) {
		t.Errorf("previews %v, want %v", list, want)
	}

	e.must(http.MethodPost, previews+"/none/promote", key, `{}`, http.StatusNotFound)
	got = e.must(http.MethodPost, previews+"/try/promote", key, `{"message": "good"}`, http.StatusAccepted)
	if got["kind"] != "promote" || got["message"] != "good" {
		t.Errorf("the deployment is %v", got)
	}
	e.must(http.MethodPost, previews+"/try/promote", key, `{}`, http.StatusConflict)
	release()
	e.must(http.MethodDelete, previews+"/try", key, "", http.StatusNoContent)
	e.must(http.MethodDelete, previews+"/try", key, "", http.StatusNotFound)
	if got := e.must(http.MethodGet, previews, viewer, "", http.StatusOK); len(got["previews"].([]any)) != 0 {
		t.Errorf("%v", got)
	}

	// As with r deploy, the first deployment makes the app.
	if got := e.must(http.MethodPut, "/apps/fresh/previews/try", key, `{"image": "runtime/sandbox:base"}`, http.StatusAccepted); got["app"] != "fresh" || got["preview"] != "try" {
		t.Errorf("the deployment is %v", got)
	}
}

// TestEntitiesAreThoseOfTheProject: lists, single ones and changes; not those of
// another project, and none that belong to no project.
func TestEntitiesAreThoseOfTheProject(t *testing.T) {
	e := newRestEnv(t)
	own, foreign := e.newTenant("own"), e.newTenant("foreign")
	key := e.key("own", "viewer")
	page := e.must(http.MethodGet, "/entities?kind=sandbox", key, "", http.StatusOK)
	if ids := listed(page, "entities", "id"); len(ids) != 1 || ids[0] != string(own.sandbox.ID) {
		t.Errorf("%v", ids)
	}
	e.must(http.MethodGet, "/entities/sandbox/"+string(own.sandbox.ID), key, "", http.StatusOK)
	for _, path := range []string{"/entities/sandbox/" + string(foreign.sandbox.ID), "/entities?kind=node", "/entities/stream?kind=node", "/entities/stream?kind=sandbox&kind=node"} {
		e.must(http.MethodGet, path, key, "", http.StatusForbidden)
	}
	e.must(http.MethodGet, "/entities?kind=nothing", key, "", http.StatusNotFound)
	if kinds := listed(e.must(http.MethodGet, "/kinds", key, "", http.StatusOK), "kinds", "name"); !slices.Contains(kinds, "sandbox") {
		t.Errorf("%v", kinds)
	}
	// A key that is stored is not shown.
	if _, text := e.do(http.MethodGet, rest.Prefix+"/entities?kind="+core.KindAPIKey, key, ""); !strings.Contains(text, `"[secret]"`) {
		t.Errorf("%s", text)
	}

	// Changes after the list, of the project alone.
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, e.url+rest.Prefix+"/entities/stream?kind=sandbox", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-API-Key", key)
	req.Header.Set("Last-Event-ID", page["position"].(string))
	for _, x := range []*tenant{foreign, own} {
		sb := sandbox.NewSandbox()
		sb.Project, sb.Name, sb.Spec.Template.Image = x.projectID, "new-"+x.project, "img"
		if err := entity.Create(t.Context(), e.c.store, sb); err != nil {
			t.Fatal(err)
		}
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if line := lines.Text(); strings.HasPrefix(line, "data: ") {
			if strings.Contains(line, "new-foreign") || !strings.Contains(line, "new-own") {
				t.Errorf("%s", line)
			}
			break
		}
	}
}

// TestNamesAreThoseOfTheDefaultProject: a key with roles in all projects opens by a name what its
// other calls change: what the project default has of it, and nothing of another project.
func TestNamesAreThoseOfTheDefaultProject(t *testing.T) {
	e := newRestEnv(t)
	other := e.newTenant("other")
	if err := projects.Ensure(t.Context(), e.c.store, projects.Default); err != nil {
		t.Fatal(err)
	}
	key, viewer := e.key("*", rpc.RoleAdmin), e.key("other", "viewer")
	d := disk.NewDisk()
	d.Name, d.Spec.SizeBytes = "data", 1<<30
	w := webhook.NewWebhook()
	secret, err := e.c.sealer.Seal("s")
	if err != nil {
		t.Fatal(err)
	}
	w.Name, w.Spec.URL, w.Spec.Secret = "ci", "https://example.com/", secret
	for _, o := range []schema.Object{d, w} {
		o.GetMeta().Project = other.projectID
		if err := entity.Create(t.Context(), e.c.store, o); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{"/apps/" + other.app.Name, "/volumes/data", "/volumes/data/snapshots", "/webhooks/ci", "/webhooks/ci/deliveries"} {
		e.must(http.MethodGet, path, key, "", http.StatusNotFound)
		e.must(http.MethodGet, path, viewer, "", http.StatusOK)
	}
}

// changes follows the changes of kinds with a key from a position on, and returns the names of changed entities.
func (e *restEnv) changes(kinds, key, position string) <-chan string {
	e.t.Helper()
	req, err := http.NewRequestWithContext(e.t.Context(), http.MethodGet, e.url+rest.Prefix+"/entities/stream?"+kinds, nil)
	if err != nil {
		e.t.Fatal(err)
	}
	req.Header.Set("X-API-Key", key)
	req.Header.Set("Last-Event-ID", position)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { resp.Body.Close() })
	names := make(chan string, 10)
	go func() {
		for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
			var c struct{ Entity struct{ Name string } }
			if text, ok := strings.CutPrefix(lines.Text(), "data: "); ok && json.Unmarshal([]byte(text), &c) == nil && c.Entity.Name != "" {
				names <- c.Entity.Name
			}
		}
	}()
	return names
}

// TestChangesOfNodes: a key with roles in all projects follows entities of no project too, and of the others those of its
// project alone.
func TestChangesOfNodes(t *testing.T) {
	e := newRestEnv(t)
	own, foreign := e.newTenant(projects.Default), e.newTenant("foreign")
	key := e.key(keys.AllProjects, "viewer")
	position := e.must(http.MethodGet, "/entities?kind=node", key, "", http.StatusOK)["position"].(string)
	names := e.changes("kind=sandbox&kind=node", key, position)
	nodes := e.changes("kind=node", key, position)
	n := core.NewNode()
	n.Name, n.Spec.Arch, n.Spec.CPUMillis, n.Spec.MemoryBytes = "another", "amd64", 1000, 1<<30
	theirs, ours := sandbox.NewSandbox(), sandbox.NewSandbox()
	theirs.Project, theirs.Name, theirs.Spec.Template.Image = foreign.projectID, "theirs", "img"
	ours.Project, ours.Name, ours.Spec.Template.Image = own.projectID, "own", "img"
	for _, o := range []schema.Object{theirs, n, ours} {
		if err := entity.Create(t.Context(), e.c.store, o); err != nil {
			t.Fatal(err)
		}
	}
	if first, second := wait.Receive(t, "a change", names), wait.Receive(t, "the next", names); first != "another" || second != "own" {
		t.Errorf("changes of %q and %q", first, second)
	}
	if name := wait.Receive(t, "a change of a node", nodes); name != "another" {
		t.Errorf("a change of %q", name)
	}
}

// TestProjectOfARequest: a request of a key with roles in all projects is about the project that it names, in lists and by
// name. A key of one project names no other.
func TestProjectOfARequest(t *testing.T) {
	e := newRestEnv(t)
	own, foreign := e.newTenant("own"), e.newTenant("foreign")
	e.newTenant(projects.Default)
	all, bound := e.key(keys.AllProjects, "admin"), e.key("own", "viewer")
	in := func(path, key, project string) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, e.url+rest.Prefix+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-API-Key", key)
		req.Header.Set("X-Project", project)
		resp, text := e.send(req)
		return resp.StatusCode, text
	}
	for _, key := range []string{all, bound} {
		for _, path := range []string{"/containers", "/entities?kind=sandbox"} {
			if code, text := in(path, key, "own"); code != http.StatusOK || !strings.Contains(text, string(own.sandbox.ID)) || strings.Contains(text, string(foreign.sandbox.ID)) {
				t.Errorf("%s of own: %d %s", path, code, text)
			}
		}
	}
	for path, want := range map[string]int{"/apps/" + own.app.Name: http.StatusOK, "/apps/" + foreign.app.Name: http.StatusNotFound, "/nodes": http.StatusForbidden, "/entities/sandbox/" + string(foreign.sandbox.ID): http.StatusForbidden} {
		if code, text := in(path, all, "own"); code != want {
			t.Errorf("%s in own: %d %s, want %d", path, code, text, want)
		}
	}
	for project, want := range map[string]int{"foreign": http.StatusForbidden, "no@name": http.StatusBadRequest} {
		if code, text := in("/containers", bound, project); code != want {
			t.Errorf("a key of own in %s: %d %s", project, code, text)
		}
	}
}

// TestTerminalNeedsItsProject: it is refused before the connection becomes a
// WebSocket, without a key, to a viewer, to another project, and to a page of
// another origin.
func TestTerminalNeedsItsProject(t *testing.T) {
	e := newRestEnv(t)
	own := e.newTenant("own")
	e.newTenant("foreign")
	url := "ws" + strings.TrimPrefix(e.url, "http") + rest.Prefix + "/containers/" + string(own.sandbox.ID) + "/terminal"
	for _, c := range []struct {
		name, key, origin string
		status            int
	}{
		{"no key", "", "", http.StatusUnauthorized}, {"a viewer", e.key("own", "viewer"), "", http.StatusForbidden},
		{"another project", e.key("foreign", "admin"), "", http.StatusForbidden}, {"another origin", e.key("own", "admin"), "https://example.com", http.StatusForbidden},
	} {
		h := http.Header{}
		if c.key != "" {
			h.Set("X-API-Key", c.key)
		}
		if c.origin != "" {
			h.Set("Origin", c.origin)
		}
		conn, resp, err := websocket.Dial(t.Context(), url, &websocket.DialOptions{HTTPHeader: h})
		if err == nil {
			_ = conn.CloseNow()
			t.Errorf("%s: a terminal", c.name)
		} else if resp == nil || resp.StatusCode != c.status {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
