package server

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/execution"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/servers/rest"
	"miren.dev/runtime/servers/workspace"
)

// restEnv is the server's real HTTP API.
type restEnv struct {
	*frontEnv
	url string
}

func newRestEnv(t *testing.T, change ...func(*config.Config)) *restEnv {
	t.Helper()
	return newRestEnvOn(t, newFrontEnv(t, change...))
}

func newRestEnvOn(t *testing.T, e *frontEnv) *restEnv {
	t.Helper()
	srv := httptest.NewServer(e.f.api)
	t.Cleanup(srv.Close)
	return &restEnv{e, srv.URL}
}

// key makes a key of a project.
func (e *restEnv) key(project, role string) string {
	e.t.Helper()
	resp, err := core.NewKeysClient(e.root()).Create(e.t.Context(), &core.CreateKeyRequest{Project: project, Name: "k-" + role, Roles: []string{role}})
	if err != nil {
		e.t.Fatal(err)
	}
	return resp.Secret
}

// do makes a request with a key, "" for none.
func (e *restEnv) do(method, path, key, body string) (*http.Response, string) {
	e.t.Helper()
	req, err := http.NewRequestWithContext(e.t.Context(), method, e.url+path, strings.NewReader(body))
	if err != nil {
		e.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if key != "" {
		req.Header.Set("X-API-Key", key)
	}
	return e.send(req)
}

// send sends a request.
func (e *restEnv) send(req *http.Request) (*http.Response, string) {
	e.t.Helper()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		e.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		e.t.Fatal(err)
	}
	return resp, string(b)
}

// operations returns the operations of the served OpenAPI document, by method
// and path.
func (e *restEnv) operations() []string {
	e.t.Helper()
	resp, text := e.do(http.MethodGet, rest.Prefix+"/openapi.json", "", "")
	var doc struct {
		OpenAPI string
		Paths   map[string]map[string]any
	}
	if err := json.Unmarshal([]byte(text), &doc); err != nil || resp.StatusCode != http.StatusOK || doc.OpenAPI != "3.1.0" {
		e.t.Fatalf("%d, %v: %.200s", resp.StatusCode, err, text)
	}
	var all []string
	for path, item := range doc.Paths {
		for method := range item {
			all = append(all, strings.ToUpper(method)+" "+path)
		}
	}
	return all
}

// ofTheProject are the operations whose request names no entity: they concern
// the project of the key.
var ofTheProject = []string{
	"POST /sessions", "GET /sessions", "POST /executions", "GET /executions", "GET /templates", "GET /templates/{name}",
}

// pathParameters are the parts of a path, other than the id, that a request states.
var pathParameters = regexp.MustCompile(`\{[a-z]+\}`)

// idsIn returns the ids of a tenant that the path of an operation may have.
func idsIn(path string, x *tenant, e *execution.Execution) []string {
	switch {
	case strings.HasPrefix(path, "/executions/"):
		return []string{string(e.ID)}
	case strings.HasPrefix(path, "/snapshots/"):
		return []string{string(x.snapshot.ID)}
	case strings.HasPrefix(path, "/containers/"), strings.HasPrefix(path, "/entities/"):
		return []string{string(x.sandbox.ID)}
	case strings.HasPrefix(path, "/deployments/"):
		return []string{string(x.deploy.ID)}
	}
	return []string{string(x.sandbox.ID), string(e.ID)}
}

// restBodies are valid bodies of the operations that need one.
var restBodies = map[string]string{
	"POST /sessions":               `{"template": "none"}`,
	"POST /sessions/{id}/extend":   `{}`,
	"POST /sessions/{id}/commands": `{"command": ["true"]}`,
	"POST /sessions/{id}/execute":  `{"command": ["true"]}`,
	"POST /executions":             `{"command": ["true"]}`,
}

// TestEveryRESTOperationNeedsItsProject calls each operation of the OpenAPI
// document without a key, with a wrong one, and with one of another project.
func TestEveryRESTOperationNeedsItsProject(t *testing.T) {
	e := newRestEnv(t)
	own, foreign := e.newTenant("own"), e.newTenant("foreign")
	x := execution.NewExecution()
	x.Project, x.Spec.Objects, x.Status.NotBefore = own.projectID, "o", own.sandbox.CreatedAt
	if err := entity.Create(t.Context(), e.c.store, x); err != nil {
		t.Fatal(err)
	}
	key, viewer := e.key("foreign", "admin"), e.key("own", "viewer")
	ops := e.operations()
	if len(ops) < 20 {
		t.Fatalf("only %d operations", len(ops))
	}
	for _, name := range ops {
		method, path, _ := strings.Cut(name, " ")
		for _, id := range idsIn(path, own, x) {
			url := strings.NewReplacer("{id}", id, "{app}", own.app.Name, "{addon}", own.app.Name, "{preview}", "try", "{kind}", sandbox.KindSandbox).Replace(path)
			url = rest.Prefix + pathParameters.ReplaceAllString(url, "1")
			if strings.Contains(path, "/files") {
				url += "?path=a"
			}
			if path == "/events/stream" {
				url += "?type=none" // or else it goes on
			}
			if strings.HasPrefix(path, "/entities") {
				url += "?kind=sandbox"
			}
			if path == "/entities/stream" {
				continue // TestEntitiesAreThoseOfTheProject: it does not end
			}
			for _, k := range []string{"", "e2b_00"} {
				resp, text := e.do(method, url, k, restBodies[name])
				// The keys of this server are read by no watch, so it cannot say that one is unknown.
				if want := resp.StatusCode == http.StatusUnauthorized || k != "" && resp.StatusCode == http.StatusServiceUnavailable; !want ||
					resp.Header.Get("Content-Type") != "application/problem+json" {
					t.Errorf("%s with the key %q: %d, %s", name, k, resp.StatusCode, text)
				}
			}
			resp, text := e.do(method, url, key, restBodies[name])
			if slices.Contains(ofTheProject, name) {
				shown := slices.ContainsFunc([]string{string(own.sandbox.ID), string(x.ID), string(own.snapshot.ID)}, func(id string) bool { return strings.Contains(text, id) })
				if shown && name != "GET /audit" || resp.StatusCode == http.StatusUnauthorized { // the audit has ids that the caller sent
					t.Errorf("%s: %d, %s", name, resp.StatusCode, text)
				}
				if method != http.MethodGet {
					if resp, text := e.do(method, url, viewer, restBodies[name]); resp.StatusCode != http.StatusForbidden {
						t.Errorf("%s by a viewer: %d, %s", name, resp.StatusCode, text)
					}
				}
				continue
			}
			// An ephemeral session cannot do what only a persistent one can, whosever it is.
			conflict := resp.StatusCode == http.StatusConflict && id == string(x.ID) && strings.Contains(text, "is ephemeral")
			if resp.StatusCode != http.StatusForbidden && resp.StatusCode != http.StatusNotFound && !conflict {
				t.Errorf("%s of another project: %d, %s", name, resp.StatusCode, text)
			}
			if method != http.MethodGet {
				if resp, text := e.do(method, url, viewer, restBodies[name]); resp.StatusCode != http.StatusForbidden && !(resp.StatusCode == http.StatusConflict && conflict) {
					t.Errorf("%s by a viewer: %d, %s", name, resp.StatusCode, text)
				}
			}
		}
	}
	if resp, text := e.do(http.MethodGet, rest.Prefix+"/sessions/"+string(own.sandbox.ID), viewer, ""); resp.StatusCode != http.StatusOK {
		t.Errorf("a viewer of the project: %d, %s", resp.StatusCode, text)
	}
	if resp, text := e.do(http.MethodGet, rest.Prefix+"/sessions", key, ""); resp.StatusCode != http.StatusOK || !strings.Contains(text, string(foreign.sandbox.ID)) {
		t.Errorf("the sessions of the key's project: %d, %s", resp.StatusCode, text)
	}
}

// TestRESTProblems: bad input is refused with a problem that says what to do.
func TestRESTProblems(t *testing.T) {
	e := newRestEnv(t)
	e.newTenant("own")
	key := e.key("own", "agent")
	for _, c := range []struct {
		method, path, body string
		status             int
		want               string
	}{
		{"POST", "/sessions", `{"template": 1}`, 422, `"location":"body.template"`},
		{"POST", "/sessions", `{"templat": "python"}`, 422, "templat"},
		{"POST", "/sessions", `{`, 400, "invalid_argument"},
		{"POST", "/sessions", `{"mode": "ephemeral"}`, 400, "execute belongs"},
		{"POST", "/sessions", `{"mode": "ephemeral", "execute": {"code": "1"}, "ttl_seconds": 1}`, 400, "belong to persistent"},
		{"POST", "/sessions", `{"mode": "ephemeral", "execute": {"code": "1"}, "volumes": [{"volume": "a", "path": "/a"}]}`, 400, "belong to persistent"},
		{"POST", "/sessions", `{"template": "nowhere"}`, 404, "not_found"},
		{"POST", "/executions", `{}`, 400, "either code or command"},
		{"GET", "/sessions/sb-zzzzzzzz", "", 404, "not_found"},
		{"POST", "/sessions?wait=301", `{"template": "nowhere"}`, 422, "query.wait"},
		{"GET", "/sessions/x", "", 422, "path.id"},
		{"GET", "/sessions?limit=0", "", 422, "query.limit"},
		{"GET", "/sessions?label=x", "", 400, "KEY=VALUE"},
		{"GET", "/sessions?cursor=x", "", 400, "cursor"},
		{"GET", "/executions/exec-zzzzzzzz", "", 404, "not_found"},
		{"GET", "/templates/nowhere", "", 404, "not_found"},
	} {
		resp, text := e.do(c.method, rest.Prefix+c.path, key, c.body)
		var p rest.Problem
		if err := json.Unmarshal([]byte(text), &p); err != nil || resp.StatusCode != c.status || p.Status != c.status || !strings.Contains(text, c.want) ||
			p.Detail == "" || resp.Header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s %s %s: %d, %s", c.method, c.path, c.body, resp.StatusCode, text)
		}
	}
	for _, body := range []string{`{"env_secret": {"A": ["hush"]}}`, `{"env_secret": ["hush"]}`, `{"env_secret": {"A": "hush"}`, `{"env_secret": {"A": "hush"}, "templat": 1}`} {
		if resp, text := e.do("POST", rest.Prefix+"/sessions", key, body); resp.StatusCode/100 != 4 || strings.Contains(text, "hush") {
			t.Errorf("the answer to %s has the secret, or is none of an error: %d, %s", body, resp.StatusCode, text)
		}
	}
	if resp, _ := e.do("GET", rest.Prefix+"/sessions", "", ""); resp.Header.Get("WWW-Authenticate") == "" {
		t.Error("no WWW-Authenticate")
	}
}

// TestEveryFaceHasTheRateLimit: each face of the listener answers the request
// that is too much with the same problem.
func TestEveryFaceHasTheRateLimit(t *testing.T) {
	e := newRestEnv(t, func(c *config.Config) { c.API.Rate, c.API.Burst = 1, 1 })
	e.newTenant("own")
	for face, path := range map[string]string{"viewer": rest.Prefix + "/templates", "agent": "/sandboxes", "admin": "/mcp"} {
		key := e.key("own", face)
		if resp, text := e.do(http.MethodGet, path, key, ""); resp.StatusCode == http.StatusTooManyRequests {
			t.Errorf("%s: the first request: %s", path, text)
		}
		resp, text := e.do(http.MethodGet, path, key, "")
		if resp.StatusCode != http.StatusTooManyRequests || resp.Header.Get("Retry-After") != "1" ||
			resp.Header.Get("Content-Type") != "application/problem+json" || !strings.Contains(text, `"class":"resource_exhausted"`) {
			t.Errorf("%s: %d, %v, %s", path, resp.StatusCode, resp.Header, text)
		}
	}
}

// TestWorkspaceNeedsItsProject: a session belongs to the project of its key, and
// problems are those of REST.
func TestWorkspaceNeedsItsProject(t *testing.T) {
	e := newRestEnv(t)
	own, foreign := e.newTenant("own"), e.newTenant("foreign")
	for _, n := range []*tenant{own, foreign} {
		sb := sandbox.NewSandbox()
		sb.Project, sb.Name, sb.Spec.Template.Image = n.projectID, "se-a", "image"
		sb.Labels = map[string]string{"runtime/workspace": "se", "runtime/workspace-session": "a"}
		if err := entity.Create(t.Context(), e.c.store, sb); err != nil {
			t.Fatal(err)
		}
	}
	agent, viewer := e.key("own", "agent"), e.key("own", "viewer")
	for _, c := range []struct {
		method, path, key, body string
		status                  int
		want                    string
	}{
		{"GET", "/list", "", "", 401, "unauthenticated"},
		{"GET", "/list", agent, "", 200, `"session_id":"a"`},
		{"GET", "/nowhere", agent, "", 404, "there is no such call"},
		{"GET", "/session/a", agent, "", 404, "there is no such call"},
		{"POST", "/session/a%20b", agent, "", 400, "is no id of a session"},
		{"POST", "/session/a", viewer, "", 403, "permission_denied"},
		{"POST", "/execute/a", viewer, `{"command": "true"}`, 403, "permission_denied"},
		{"POST", "/execute/a", agent, `{"command": 1}`, 400, "command is missing"},
		{"POST", "/execute_code/a", agent, `{}`, 400, "code is missing"},
		{"POST", "/execute_code/a", agent, `{`, 400, "invalid_argument"},
		{"POST", "/execute_code/a", agent, `{"code": "1", "timeout": 301}`, 400, "up to 300"},
		{"POST", "/execute_code/b", agent, `{"code": "1"}`, 404, `there is no session \"b\"`},
		{"POST", "/upload/a", agent, `x`, 400, "is no name of a file"},
		{"GET", "/download/b/x", agent, "", 404, "not_found"},
		{"DELETE", "/session/a", viewer, "", 403, "permission_denied"},
		{"DELETE", "/session/a", agent, "", 204, ""},
		{"DELETE", "/session/a", agent, "", 404, "not_found"}, // that of the other project stays
		{"GET", "/list", agent, "", 200, `"sessions":[]`},
	} {
		resp, text := e.do(c.method, workspace.Prefix+c.path, c.key, c.body)
		if resp.StatusCode != c.status || !strings.Contains(text, c.want) ||
			c.status >= 400 && resp.Header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s %s %s: %d, %s", c.method, c.path, c.body, resp.StatusCode, text)
		}
	}
	if resp, text := e.do("GET", workspace.Prefix+"/list", e.key("foreign", "agent"), ""); resp.StatusCode != 200 || strings.Count(text, "session_id") != 1 {
		t.Errorf("the other project: %s", text)
	}
}

// TestProblemsOfStreams: a stream that cannot begin is a problem, whatever the
// client accepts.
func TestProblemsOfStreams(t *testing.T) {
	e := newRestEnv(t)
	own := e.newTenant("own")
	key := e.key("own", "agent")
	for _, path := range []string{
		"GET /executions/exec-zzzzzzzz/stream", "GET /sessions/sb-zzzzzzzz/commands/1/stream", "POST /sessions/sb-zzzzzzzz/execute",
		"GET /sessions/" + string(own.sandbox.ID) + "/commands/x/stream", "GET /executions/exec-zzzzzzzz/stream?encoding=x",
	} {
		method, path, _ := strings.Cut(path, " ")
		req, err := http.NewRequestWithContext(t.Context(), method, e.url+rest.Prefix+path, strings.NewReader(restBodies["POST /sessions/{id}/execute"]))
		if err != nil {
			t.Fatal(err)
		}
		for name, value := range map[string]string{"X-API-Key": key, "Accept": "text/event-stream", "Content-Type": "application/json", "Last-Event-ID": "1-2"} {
			req.Header.Set(name, value)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusNotFound && resp.StatusCode != http.StatusUnprocessableEntity ||
			resp.Header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s: %d, %v", path, resp.StatusCode, resp.Header)
		}
	}
}
