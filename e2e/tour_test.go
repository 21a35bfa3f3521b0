package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/testsupport/wait"
)

// contains fails the test unless out holds every word.
func contains(t *testing.T, what, out string, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(out, w) {
			t.Errorf("%s lacks %q:\n%s", what, w, out)
		}
	}
}

// tourLogs reads what an app printed, in sandboxes that are gone too.
func tourLogs(t *testing.T, s *server, name string) {
	type line struct {
		TS      time.Time `json:"ts"`
		App     string    `json:"app"`
		Sandbox string    `json:"sandbox"`
		Service string    `json:"service"`
		Stream  string    `json:"stream"`
		Message string    `json:"message"`
	}
	wait.NoError(t, "lines of sandboxes that are gone", func() error {
		present := s.r(t, "", "sandbox", "list")
		d := json.NewDecoder(strings.NewReader(s.r(t, "", "logs", name, "--since", "1h", "--grep", "listen.ng", "--json")))
		printed, gone := map[string]int{}, 0
		for d.More() {
			var l line
			if err := d.Decode(&l); err != nil {
				return err
			}
			if l.App != name || l.Service != "web" || l.Stream == "" || l.TS.IsZero() || !strings.Contains(l.Message, "listening") {
				return fmt.Errorf("%+v", l)
			}
			printed[l.Sandbox]++
			if !strings.Contains(present, l.Sandbox) {
				gone++
			}
		}
		for id, n := range printed {
			if n != 1 {
				return fmt.Errorf("%s comes %d times", id, n)
			}
		}
		if gone == 0 {
			return fmt.Errorf("%d lines, all of sandboxes that exist", len(printed))
		}
		return nil
	}, wait.Within(converge))
	if out := s.r(t, "", "logs", name, "--limit", "1", "--service", "web"); strings.Count(out, "\n") != 1 {
		t.Errorf("logs --limit 1: %q", out)
	}
	if out := s.r(t, "", "logs", name, "--until", "1h"); out != "" {
		t.Errorf("logs --until 1h: %q", out)
	}
	guide, err := os.ReadFile("../docs/logs.md")
	if err != nil {
		t.Fatal(err)
	}
	commands := regexp.MustCompile(`(?m)^\$ r logs shop([^#\n]*)`).FindAllStringSubmatch(string(guide), -1)
	if len(commands) < 8 {
		t.Errorf("the guide has %d commands", len(commands))
	}
	for _, c := range commands {
		args := strings.Fields(strings.ReplaceAll(c[1], "'", ""))
		if len(args) > 0 && args[0] == "-f" { // it does not end; TestHistoryGoesOnWithoutGapOrDuplicate follows
			continue
		}
		out := s.r(t, "", append([]string{"logs", name}, args...)...)
		if !strings.Contains(c[1], "--until") && !strings.Contains(c[1], "--level") && !strings.Contains(out, "listening") {
			t.Errorf("r logs%s: %q", c[1], out)
		}
	}
}

// TestTour runs the commands of docs/cli.md that the other tests do not.
func TestTour(t *testing.T) {
	t.Parallel()
	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	s := own(t, "tour", "--ingress-tcp-ports", strconv.Itoa(port), "--rpc-address", "127.0.0.1:0", "--ingress-oidc-networks", "127.0.0.0/8")
	name, dir := "tour", copyExample(t, "go-http")

	t.Run("app", func(t *testing.T) {
		contains(t, "deploy --plan", s.r(t, dir, "deploy", "--plan", "--app", name), "go")
		contains(t, "app plan", s.r(t, dir, "app", "plan"), "go.mod", "go build .")
		s.r(t, dir, "deploy", "--app", name, "--message", "first")
		contains(t, "app list", s.r(t, "", "app", "list"), name)
		s.script(t, "", documented(t, "../docs/cli.md", "r sandbox list --filter"))
		contains(t, "app show", s.r(t, "", "app", "show", name), name, "v1")
		contains(t, "app status", s.r(t, "", "app", "status", name), "ready")
		contains(t, "app history", s.r(t, "", "app", "history", name), "succeeded", "first")
		contains(t, "app sbom", s.r(t, "", "app", "sbom", "--app", name), "golang", "stdlib")
		s.script(t, t.TempDir(), strings.ReplaceAll(documented(t, "../docs/apps.md", "r app sbom"), "shop", name))
		wait.NoError(t, "the log of the app", func() error {
			if out := s.r(t, "", "app", "logs", name); !strings.Contains(out, "listening") {
				return fmt.Errorf("app logs: %s", out)
			}
			return nil
		}, wait.Within(converge))
		contains(t, "app exec", s.r(t, "", "app", "exec", name, "--", "sh", "-c", "echo $RUNTIME_APP"), name)
		if out := s.script(t, "", "echo 'echo in $RUNTIME_APP' | r console "+name); out != "in "+name+"\n" {
			t.Errorf("console: %q", out)
		}
		contains(t, "open", s.r(t, "", "open", name), "http://"+name)
		if out := s.r(t, "", "status", name, "--jq", ".app.name"); out != name+"\n" {
			t.Errorf("status --jq: %q", out)
		}
		contains(t, "app scale", s.r(t, "", "app", "scale", "--app", name, "web=2"), "web", "2", "scale")
		wait.NoError(t, "two sandboxes", func() error {
			if out := s.r(t, "", "app", "list"); !strings.Contains(out, "2/2") {
				return fmt.Errorf("app list: %s", out)
			}
			return nil
		}, wait.Within(converge))
		contains(t, "scale", s.r(t, "", "scale", "--app", name, "web=default"), "source")
		s.r(t, "", "app", "restart", name)
		s.answers(t, name, "/", "v1")
		tourLogs(t, s, name)

		empty := t.TempDir()
		write(t, filepath.Join(empty, "index.html"), "hello")
		s.r(t, empty, "app", "init", "--name", "fresh")
		if b, err := os.ReadFile(filepath.Join(empty, ".runtime", "app.toml")); err != nil || !strings.Contains(string(b), "fresh") {
			t.Errorf("app init wrote %q, %v", b, err)
		}
	})

	t.Run("route", func(t *testing.T) {
		s.r(t, "", "route", "set", "shop.example.com", "--app", name)
		contains(t, "route list", s.r(t, "", "route", "list"), "shop.example.com")
		ask := func(want int) {
			t.Helper()
			wait.NoError(t, fmt.Sprintf("the route answers %d", want), func() error {
				req, err := http.NewRequest(http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/", s.port), nil)
				if err != nil {
					return err
				}
				req.Host = "shop.example.com"
				resp, err := client.Do(req)
				if err != nil {
					return err
				}
				defer resp.Body.Close()
				if resp.StatusCode != want {
					return fmt.Errorf("answers %s, want %d", resp.Status, want)
				}
				return nil
			}, wait.Within(converge))
		}
		ask(http.StatusOK)
		s.r(t, "", "route", "delete", "shop.example.com")
		ask(http.StatusNotFound)
	})

	t.Run("route of a port", func(t *testing.T) { testTCPRoute(t, s, name, port) })

	t.Run("settings of routes", func(t *testing.T) { testRoutesGuide(t, s, name) })

	t.Run("build", func(t *testing.T) {
		var builds []struct {
			ID string `json:"id"`
		}
		s.json(t, &builds, "build", "list")
		if len(builds) != 1 {
			t.Fatalf("%d builds", len(builds))
		}
		contains(t, "build logs", s.r(t, "", "build", "logs", builds[0].ID), "go build")
	})

	t.Run("sandbox", func(t *testing.T) {
		id := s.run(t, "--", "sh", "-c", "echo started; sleep 600")
		s.r(t, "", "sandbox", "exec", id, "--", "true")
		contains(t, "sandbox list", s.r(t, "", "sandbox", "list"), id)
		contains(t, "sandbox show", s.r(t, "", "sandbox", "show", id), id)
		wait.NoError(t, "the log of the sandbox", func() error {
			if out := s.r(t, "", "sandbox", "logs", id); !strings.Contains(out, "started") {
				return fmt.Errorf("sandbox logs: %s", out)
			}
			return nil
		}, wait.Within(converge))
		s.r(t, "", "sandbox", "delete", id)
		if res := s.try(t, "", "sandbox", "show", id); res.Code != 1 {
			t.Errorf("a deleted sandbox: %s", res)
		}
	})

	t.Run("entity", func(t *testing.T) {
		contains(t, "entity kinds", s.r(t, "", "entity", "kinds"), "sandbox_pool", "deployment")
		file := filepath.Join(t.TempDir(), "project.yaml")
		write(t, file, "kind: project\nname: second\nspec:\n  display_name: The second\n")
		s.r(t, "", "entity", "put", file)
		contains(t, "entity get", s.r(t, "", "entity", "get", "project", "second", "--json"), "The second")
		res := s.try(t, "", "entity", "list", "projcet")
		if res.Code == 0 || !strings.Contains(res.Stderr, "project") {
			t.Errorf("a mistyped kind: %s", res)
		}
		write(t, file, "kind: project\nname: third\nspec:\n  display_nmae: x\n")
		if res := s.try(t, "", "entity", "put", file); res.Code == 0 || !strings.Contains(res.Stderr, "display_name") {
			t.Errorf("a mistyped key: %s", res)
		}
		s.r(t, "", "entity", "delete", "project", "second")
	})

	t.Run("node", func(t *testing.T) {
		var nodes []struct {
			Name string `json:"name"`
		}
		s.json(t, &nodes, "node", "list")
		if len(nodes) != 1 {
			t.Fatalf("%d nodes", len(nodes))
		}
		s.r(t, "", "node", "cordon", nodes[0].Name)
		id := s.run(t, "--", "true")
		wait.NoError(t, "the sandbox waits for a node", func() error {
			if out := s.r(t, "", "sandbox", "show", id, "--json"); !strings.Contains(out, "cordoned") {
				return fmt.Errorf("%s", out)
			}
			return nil
		}, wait.Within(converge))
		s.r(t, "", "node", "uncordon", nodes[0].Name)
		s.ended(t, id)
		s.r(t, "", "sandbox", "delete", id)
	})

	t.Run("configuration", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "server.yaml")
		write(t, file, s.r(t, "", "config", "generate"))
		s.r(t, "", "config", "validate", file)
		write(t, file, "ingress:\n  http_adress: x\n")
		if res := s.try(t, "", "config", "validate", file); res.Code == 0 || !strings.Contains(res.Stderr, "http_address") {
			t.Errorf("a mistyped key: %s", res)
		}
	})

	t.Run("auth", func(t *testing.T) {
		s.r(t, "", "auth", "generate", "--name", "eve", "--role", "viewer")
		cfg := filepath.Join(s.state+"-home", ".config", "runtime", "clientconfig.yaml")
		b, err := os.ReadFile(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if st, err := os.Stat(cfg); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("clientconfig.yaml: %v, %v", st.Mode(), err)
		}
		cluster := regexp.MustCompile(`(?m)^clusters:\n\s+([\w.:-]+):`).FindSubmatch(b)
		if cluster == nil {
			t.Fatalf("no cluster in %s", b)
		}
		remote := func(args ...string) result {
			return s.try(t, "", append(args, "--cluster", string(cluster[1]), "--state-dir", "")...)
		}
		if res := remote("app", "list"); res.Code != 0 || !strings.Contains(res.Stdout, name) {
			t.Errorf("a viewer lists the apps: %s", res)
		}
		if res := remote("app", "restart", name); res.Code != 1 || !strings.Contains(res.Stderr, "may not") {
			t.Errorf("a viewer restarts an app: %s", res)
		}
	})

	t.Run("rest", func(t *testing.T) {
		var v map[string]any
		if err := json.Unmarshal([]byte(s.r(t, "", "version", "--json")), &v); err != nil || len(v) == 0 {
			t.Errorf("version --json: %v", err)
		}
		contains(t, "completion", s.r(t, "", "completion", "bash"), "complete")
		contains(t, "doctor", s.try(t, "", "doctor").Stdout, "containerd")
		contains(t, "server status", s.r(t, "", "server", "status"), "ready")
		var graph struct {
			Synced      bool
			Revision    int64
			Controllers []struct {
				Name string
				Runs int64
			}
		}
		s.json(t, &graph, "debug", "controllers")
		runs := map[string]int64{}
		for _, c := range graph.Controllers {
			runs[c.Name] = c.Runs
		}
		if !graph.Synced || graph.Revision == 0 || runs["sandbox"] == 0 || runs["deployment"] == 0 || runs["pool"] == 0 {
			t.Errorf("debug controllers: %+v", graph)
		}
		contains(t, "debug controllers", s.r(t, "", "debug", "controllers"), "sandbox.spec.node")
	})

	t.Run("keep running", func(t *testing.T) {
		s.r(t, "", "server", "stop", "--keep-running")
		s.answers(t, name, "/", "v1")
		if res := s.try(t, "", "app", "list"); res.Code != 1 || !strings.Contains(res.Stderr, "server start") {
			t.Errorf("without a server: %s", res)
		}
		if err := s.start(); err != nil {
			t.Fatal(err)
		}
		s.answers(t, name, "/", "v1")
	})

	t.Run("everything again", func(t *testing.T) {
		sb := s.sandbox(t, name)
		s.r(t, "", "server", "stop")
		if err := s.start(); err != nil {
			t.Fatal(err)
		}
		wait.NoError(t, "the app answers", func() error {
			if code, body, err := s.get(name, "/"); err != nil || code != http.StatusOK {
				return fmt.Errorf("answers %d %q %v", code, body, err)
			}
			return nil
		}, wait.Within(converge+10*time.Second))
		contains(t, "the sandbox of before", s.r(t, "", "entity", "get", "sandbox", sb, "--json"), `"node"`, "was stopped")
	})
}
