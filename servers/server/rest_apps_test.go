package server

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/servers/rest"
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
