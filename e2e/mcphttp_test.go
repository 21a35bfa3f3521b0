package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/testsupport/wait"
)

// TestMCPOverHTTP uses a server's /mcp with API keys.
func TestMCPOverHTTP(t *testing.T) {
	t.Parallel()
	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	target := fmt.Sprintf("http://127.0.0.1:%d/mcp", port)
	s := own(t, "mcp", "--api-address", fmt.Sprintf("127.0.0.1:%d", port))
	key := strings.TrimSpace(s.r(t, "", "key", "create", "agent"))
	viewer := strings.TrimSpace(s.r(t, "", "key", "create", "viewer", "--role", "viewer"))
	connect := func(key string) *mcpClient { return startMCP(t, append(os.Environ(), "MCP_KEY="+key), target) }
	c := connect(key)
	var sb mcpSandbox
	c.call(&sb, "create_sandbox", map[string]any{"language": "shell"})
	var run mcpRun
	if c.call(&run, "run_code", map[string]any{"sandbox": sb.ID, "language": "shell", "code": "echo hello"}); run.Stdout != "hello\n" {
		t.Errorf("run_code: %+v", run)
	}
	id, ch := c.begin("call", map[string]any{"name": "run_command", "args": map[string]any{"sandbox": sb.ID, "command": "sleep 3000"}, "progress": true})
	if a := <-ch; a.Progress == nil {
		t.Errorf("no progress: %+v", a)
	}
	c.must(nil, "cancel", map[string]any{"call": id})
	wait.NoError(t, "the cancelled command has ended", func() error {
		if c.call(&sb, "describe_sandbox", map[string]any{"sandbox": sb.ID}); sb.State != "ready" {
			return fmt.Errorf("%+v", sb)
		}
		return nil
	}, wait.Within(converge))

	// Another key sees what its role permits, and uses no session but its own.
	v := connect(viewer)
	var all struct{ Sandboxes []mcpSandbox }
	if v.call(&all, "list_sandboxes", nil); len(all.Sandboxes) != 1 || all.Sandboxes[0].ID != sb.ID || all.Sandboxes[0].Session {
		t.Errorf("the list of the viewer: %+v", all)
	}
	refusedMCP(t, v, sb.ID, "list_sandboxes", "describe_sandbox", "list_snapshots")
	v.must(nil, "close", nil)
	file := filepath.Join(t.TempDir(), "project.yml")
	write(t, file, "kind: project\nname: second\n")
	s.r(t, "", "entity", "put", file)
	other := connect(strings.TrimSpace(s.r(t, "", "key", "create", "agent", "--project", "second")))
	if other.call(&all, "list_sandboxes", map[string]any{"all": true}); len(all.Sandboxes) != 0 {
		t.Errorf("the list of another project: %+v", all)
	}
	refusedMCP(t, other, sb.ID, "list_sandboxes", "list_snapshots", "create_sandbox", "run_code")
	other.must(nil, "close", nil)
	post := func(key, session string) int {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, target, strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", "application/json, text/event-stream")
		req.Header.Set("Mcp-Session-Id", session)
		if key != "" {
			req.Header.Set("Authorization", "Bearer "+key)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	var about struct{ Session string }
	c.must(&about, "session", nil)
	for _, k := range []struct {
		key  string
		want int
	}{{key, http.StatusOK}, {viewer, http.StatusForbidden}, {"", http.StatusUnauthorized}, {"wrong", http.StatusUnauthorized}} {
		if got := post(k.key, about.Session); got != k.want {
			t.Errorf("a request in another session with key %.8q: status %d, want %d", k.key, got, k.want)
		}
	}

	// By WebSocket a session is that of its connection.
	ws := startMCP(t, append(os.Environ(), "MCP_KEY="+key), fmt.Sprintf("ws://127.0.0.1:%d/mcp/ws", port))
	var wsb mcpSandbox
	ws.call(&wsb, "create_sandbox", map[string]any{"language": "shell"})
	if ws.call(&run, "run_code", map[string]any{"sandbox": wsb.ID, "language": "shell", "code": "echo hello"}); run.Stdout != "hello\n" {
		t.Errorf("run_code by WebSocket: %+v", run)
	}
	ws.must(nil, "close", nil)
	gone := func(id string) {
		t.Helper()
		wait.NoError(t, "the sandbox of the session is deleted", func() error {
			if res := s.try(t, "", "sandbox", "show", id); res.Code == 0 {
				return fmt.Errorf("%s", res)
			}
			return nil
		}, wait.Within(converge))
	}
	gone(wsb.ID)

	t.Run("conformance", func(t *testing.T) { conformMCP(t, port, key) })

	// The client that ends the session ends its sandboxes.
	c.must(nil, "close", nil)
	gone(sb.ID)
}

// conformMCP runs the conformance suite of the protocol, which sends no key: a
// proxy adds it. Scenarios that fail are those of testdata/mcp/conformance.yml.
func conformMCP(t *testing.T, port int, key string) {
	to := &url.URL{Scheme: "http", Host: fmt.Sprintf("127.0.0.1:%d", port)}
	proxy := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(to)
		r.Out.Host = r.In.Host
		r.Out.Header.Set("Authorization", "Bearer "+key)
	}})
	defer proxy.Close()
	modules := mcpModules(t)
	expected, err := filepath.Abs("testdata/mcp/conformance.yml")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, mcpNode(t, modules), filepath.Join(modules, "node_modules", "@modelcontextprotocol", "conformance", "dist", "index.js"),
		"server", "--url", proxy.URL+"/mcp", "--suite", "all", "--expected-failures", expected)
	cmd.Dir = t.TempDir()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// refusedMCP calls every tool with a sandbox that the caller must not use.
func refusedMCP(t *testing.T, c *mcpClient, sandbox string, permitted ...string) {
	t.Helper()
	args := map[string]map[string]any{
		"run_code":         {"language": "shell", "code": "true"},
		"run_command":      {"command": "true"},
		"run_cell":         {"code": "1"},
		"start_process":    {"command": "true"},
		"read_process":     {"process": "x"},
		"stop_process":     {"process": "x"},
		"install_packages": {"language": "shell", "packages": []string{"jq"}},
		"write_file":       {"path": "x", "content": "x"},
		"read_file":        {"path": "/etc/passwd"},
		"remove_file":      {"path": "x"},
		"set_network":      {"network": "all"},
		"delete_snapshot":  {"snapshot": "snap-0000000000000000"},
	}
	var list struct {
		Tools []struct {
			Name        string
			InputSchema struct{ Properties map[string]json.RawMessage }
		}
	}
	c.must(&list, "tools", nil)
	for _, tool := range list.Tools {
		given := maps.Clone(args[tool.Name])
		if given == nil {
			given = map[string]any{}
		}
		if tool.InputSchema.Properties["sandbox"] != nil && tool.Name != "run_code" {
			given["sandbox"] = sandbox
		}
		if slices.Contains(permitted, tool.Name) {
			continue
		}
		res := c.try(tool.Name, given)
		if !res.IsError || strings.Contains(res.text(), "validating") {
			t.Errorf("%s: %+v", tool.Name, res)
		}
	}
}
