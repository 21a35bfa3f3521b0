package server

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/domain/templates"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/testsupport/oidctest"
	"miren.dev/runtime/testsupport/wait"
)

// newMCPEnv is the server's real HTTP API on a database of its own.
func newMCPEnv(t *testing.T, change ...func(*config.Config)) *restEnv {
	t.Helper()
	cfg := &config.Config{}
	cfg.Store.KeepRevisions = 100_000
	store, err := openStore(t.Context(), cfg, "sqlite://"+t.TempDir()+"/store.db", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	e := newRestEnvOn(t, newFrontEnvOn(t, store, change...))
	t.Cleanup(func() {
		if err := e.f.mcp.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// withKey adds a credential to each request.
type withKey string

func (k withKey) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(k))
	return http.DefaultTransport.RoundTrip(r)
}

// mcp connects a client with a key; each URI of which it is told is sent to told.
func (e *restEnv) mcp(key string, told chan<- string) *sdk.ClientSession {
	e.t.Helper()
	c := sdk.NewClient(&sdk.Implementation{Name: "test"}, &sdk.ClientOptions{
		ResourceUpdatedHandler: func(_ context.Context, req *sdk.ResourceUpdatedNotificationRequest) {
			if told != nil {
				told <- req.Params.URI
			}
		},
	})
	cs, err := c.Connect(e.t.Context(), &sdk.StreamableClientTransport{Endpoint: e.url + "/mcp", HTTPClient: &http.Client{Transport: withKey(key)}}, nil)
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { _ = cs.Close() })
	return cs
}

// running makes a sandbox that runs.
func (e *restEnv) running(x *tenant, name string) *sandbox.Sandbox {
	e.t.Helper()
	sb := sandbox.NewSandbox()
	sb.Project, sb.Name, sb.Spec.Template.Image = x.projectID, name, "img"
	sb.Status.Phase = sandbox.SandboxPhaseScheduled
	if err := entity.Create(e.t.Context(), e.c.store, sb); err != nil {
		e.t.Fatal(err)
	}
	return sb
}

// TestMCPSessionsOfTokens: the session of a caller with a token of OpenID Connect is of no use to
// others who learn its id, such as jobs of another repository, or keys of another project.
func TestMCPSessionsOfTokens(t *testing.T) {
	const audience = "https://runtime.example.com"
	p := oidctest.New(t)
	file := filepath.Join(t.TempDir(), "trust.yaml")
	rules := ""
	for _, name := range []string{"own", "foreign"} {
		rules += fmt.Sprintf("- issuer: %s\n  audience: %s\n  claims: {repository: acme/%s}\n  project: %s\n  roles: [agent]\n", p.URL, audience, name, name)
	}
	if err := os.WriteFile(file, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	e := newMCPEnv(t, func(c *config.Config) { c.API.TrustFile = file })
	e.newTenant("own")
	e.newTenant("foreign")
	token := func(repository string) string {
		return p.Token(t, audience, time.Minute, map[string]any{"sub": "job", "repository": repository})
	}
	call := func(credential, session string) int {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, e.url+"/mcp", strings.NewReader(`{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}`))
		if err != nil {
			t.Fatal(err)
		}
		for name, value := range map[string]string{"Content-Type": "application/json", "Accept": "application/json, text/event-stream", "Mcp-Session-Id": session} {
			r.Header.Set(name, value)
		}
		resp, err := withKey(credential).RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	session := e.mcp(token("acme/own"), nil).ID()
	if got := call(token("acme/own"), session); got != http.StatusOK {
		t.Errorf("the next token of the job: %d", got)
	}
	for who, credential := range map[string]string{"a token of another project": token("acme/foreign"), "a key of another project": e.key("foreign", "agent")} {
		if got := call(credential, session); got != http.StatusForbidden {
			t.Errorf("%s uses the session: %d", who, got)
		}
	}
}

// TestMCPCompletion: arguments of prompts and resource templates are completed,
// with what the project of the key has and its role permits.
func TestMCPCompletion(t *testing.T) {
	e := newMCPEnv(t)
	own, foreign := e.newTenant("own"), e.newTenant("foreign")
	box := e.running(own, "box-a")
	e.running(own, "box-b")
	e.running(foreign, "box-foreign")
	if err := projects.Ensure(t.Context(), e.c.store, templates.System); err != nil {
		t.Fatal(err)
	}
	for x, names := range map[string][]string{templates.System: {"base", "code-a", "code-b"}, "own": {"code-own"}, "foreign": {"code-foreign"}} {
		pid, err := projects.Find(t.Context(), e.c.store, x)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			tm := sandbox.NewTemplate()
			tm.Project, tm.Name = pid, name
			if err := entity.Create(t.Context(), e.c.store, tm); err != nil {
				t.Fatal(err)
			}
		}
	}
	agent := e.mcp(e.key("own", "agent"), nil)
	prompt := func(name string) *sdk.CompleteReference {
		return &sdk.CompleteReference{Type: "ref/prompt", Name: name}
	}
	template := func(uri string) *sdk.CompleteReference { return &sdk.CompleteReference{Type: "ref/resource", URI: uri} }
	const sandboxURI, fileURI = "sandboxes:///{sandbox}", "sandboxes:///{sandbox}/files{+path}"
	for _, c := range []struct {
		name            string
		ref             *sdk.CompleteReference
		argument, typed string
		want            []string
	}{
		{"a language", prompt("solve_with_code"), "language", "py", []string{"python"}},
		{"no language", prompt("solve_with_code"), "language", "no such", nil},
		{"what can be anything", prompt("solve_with_code"), "task", "", nil},
		{"a template", prompt("analyze_data"), "template", "code-", []string{"code-a", "code-b", "code-own"}},
		{"a sandbox of a prompt", prompt("solve_with_code"), "sandbox", "", []string{"box-a", "box-b"}},
		{"a sandbox", template(sandboxURI), "sandbox", "box", []string{"box-a", "box-b"}},
		{"a sandbox by its name", template(fileURI), "sandbox", "box-b", []string{"box-b"}},
		{"a sandbox by its id", template(sandboxURI), "sandbox", string(box.ID), []string{string(box.ID)}},
		{"an argument of another template", template(sandboxURI), "path", "/", nil},
		{"another argument", prompt("analyze_data"), "language", "", nil},
		{"an unknown prompt", prompt("none"), "language", "", nil},
		{"an unknown template", template("test://{sandbox}"), "sandbox", "", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			res, err := agent.Complete(t.Context(), &sdk.CompleteParams{Ref: c.ref, Argument: sdk.CompleteParamsArgument{Name: c.argument, Value: c.typed}})
			if err != nil {
				t.Fatal(err)
			}
			if got := res.Completion; !slices.Equal(got.Values, c.want) || got.HasMore || got.Total != len(c.want) {
				t.Errorf("%+v, want %v", got, c.want)
			}
		})
	}
	for range 101 {
		e.running(own, "")
	}
	res, err := agent.Complete(t.Context(), &sdk.CompleteParams{Ref: template(sandboxURI), Argument: sdk.CompleteParamsArgument{Name: "sandbox"}})
	if err != nil || len(res.Completion.Values) != 100 || !res.Completion.HasMore || res.Completion.Total != 103 {
		t.Errorf("many sandboxes: %+v, %v", res, err)
	}
	// A path is one of a sandbox that runs; this one never does.
	res, err = agent.Complete(t.Context(), &sdk.CompleteParams{
		Ref: template(fileURI), Argument: sdk.CompleteParamsArgument{Name: "path", Value: "/"}, Context: &sdk.CompleteContext{Arguments: map[string]string{"sandbox": "box-a"}},
	})
	if err != nil || len(res.Completion.Values) != 0 {
		t.Errorf("a path of a sandbox that does not run: %+v, %v", res, err)
	}
	_, err = agent.Complete(t.Context(), &sdk.CompleteParams{
		Ref: template(fileURI), Argument: sdk.CompleteParamsArgument{Name: "path", Value: "/"}, Context: &sdk.CompleteContext{Arguments: map[string]string{"sandbox": "box-foreign"}},
	})
	if err == nil || !strings.Contains(err.Error(), "does not exist") {
		t.Errorf("a path of another project: %v", err)
	}
}

// TestMCPSubscriptions: a client is told of changes of what it subscribed to, and
// of nothing else.
func TestMCPSubscriptions(t *testing.T) {
	e := newMCPEnv(t)
	own, foreign := e.newTenant("own"), e.newTenant("foreign")
	a, b, other := e.running(own, "box-a"), e.running(own, "box-b"), e.running(foreign, "box-foreign")
	told := make(chan string, 100)
	agent := e.mcp(e.key("own", "viewer"), told)
	const list = "sandboxes:///"
	byID, byName := list+string(a.ID), list+"box-b"
	for _, uri := range []string{byID, byName, list + string(other.ID), list + "box-foreign", list + "later", "test://other"} {
		if err := agent.Subscribe(t.Context(), &sdk.SubscribeParams{URI: uri}); err != nil {
			t.Fatalf("%s: %v", uri, err)
		}
	}
	change := func(sb *sandbox.Sandbox, phase sandbox.SandboxPhase) {
		t.Helper()
		if _, err := entity.ModifyStatus(t.Context(), e.c.store, sb.ID, func(sb *sandbox.Sandbox) error {
			sb.Status.Phase = phase
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	next := func(what, want string) {
		t.Helper()
		if uri := wait.Receive(t, what, told); uri != want {
			t.Errorf("%s: told of %s, want %s", what, uri, want)
		}
	}
	change(other, sandbox.SandboxPhaseCreating)
	change(a, sandbox.SandboxPhaseCreating)
	next("a change of the sandbox with an id", byID)
	change(b, sandbox.SandboxPhaseCreating)
	next("a change of the sandbox with a name", byName)
	e.running(own, "later")
	next("a sandbox that is made later", list+"later")
	if err := agent.Unsubscribe(t.Context(), &sdk.UnsubscribeParams{URI: byID}); err != nil {
		t.Fatal(err)
	}
	if err := agent.Subscribe(t.Context(), &sdk.SubscribeParams{URI: list}); err != nil {
		t.Fatal(err)
	}
	change(a, sandbox.SandboxPhaseStopped)
	next("a change of the list", list)
	for i := range 32 {
		err := agent.Subscribe(t.Context(), &sdk.SubscribeParams{URI: "test://other/" + string(rune('a'+i))})
		if (err == nil) != (i < 26) { // six are there
			t.Errorf("subscription %d: %v", i+7, err)
		}
	}
	if len(told) > 0 {
		t.Errorf("told of %s", <-told)
	}
}
