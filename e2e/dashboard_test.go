package e2e

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/testsupport/need"
	"miren.dev/runtime/testsupport/oidctest"
)

// screenshots is where the tests of the dashboard write pictures of the pages.
var screenshots = flag.String("screenshots", "", "directory for pictures of the dashboard, such as ../docs/images; default: none")

// TestDashboard uses the dashboard of a server in a headless Chromium: login,
// overview, apps with their metrics, a search in the log and a deployment that it follows, sandboxes with terminal and
// files, executions, disks, audit, entities; as administrator, as viewer, and in an
// empty project; at the widths of a desktop and of a phone, light and dark. It
// checks every page with axe-core. The server also sends logs, metrics and traces to a
// collector of OpenTelemetry, and logs to ClickHouse.
func TestDashboard(t *testing.T) {
	sinks := startSinks(t)
	provider, rules, secret := oidctest.New(t), filepath.Join(t.TempDir(), "trust.yaml"), filepath.Join(t.TempDir(), "secret")
	write(t, secret, provider.Secret+"\n")
	write(t, rules, "[]\n")
	provider.LogsIn(map[string]any{"sub": "ann", "groups": []string{"operators"}})
	s, url := withAPI(t, "dashboard", append(sinks.flags(), "--api-trust-file", rules, "--dashboard-oidc-issuer", provider.URL, "--dashboard-oidc-client-id", provider.ID,
		"--dashboard-oidc-secret-file", secret, "--metrics-interval", "1s")...)
	write(t, rules, fmt.Sprintf("- {issuer: %q, audience: %q, claims: {groups: operators}, project: \"*\", roles: [admin]}\n", provider.URL, provider.ID))
	admin := strings.TrimSpace(s.r(t, "", "key", "create", "boss", "--role", "admin"))
	viewer := strings.TrimSpace(s.r(t, "", "key", "create", "look", "--role", "viewer"))
	project := filepath.Join(t.TempDir(), "project.yml")
	write(t, project, "kind: project\nname: empty\n")
	s.r(t, "", "entity", "put", project)
	empty := strings.TrimSpace(s.r(t, "", "key", "create", "none", "--role", "viewer", "--project", "empty"))
	dir := copyExample(t, "static-site")
	s.r(t, dir, "app", "deploy", "--app", "shop")
	for range 20 {
		s.answers(t, "shop", "/", "")
	}
	// The image of executions is made before a page waits for one: that takes minutes the first time.
	s.r(t, "", "run", "-l", "sh", "true")
	testMetricsGuide(t, s)
	sinks.have(t, "shop", "web", "serving")
	browse(t, "basics.mjs", url, "KEY="+admin, "LOGGED=serving")
	// The rules changed while the server ran.
	env := s.command(t.Context(), "").Env
	browse(t, "oidc.mjs", url, append(env, "ISSUER="+provider.URL, "R="+filepath.Join(bin, "r"))...)
	browse(t, "pages.mjs", url, append(env, "KEY="+admin, "VIEWER_KEY="+viewer, "EMPTY_KEY="+empty, "R="+filepath.Join(bin, "r"), "APP="+dir)...)
}

// browse runs a script of testdata/dashboard, which uses the dashboard at url.
func browse(t *testing.T, script, url string, env ...string) {
	t.Helper()
	need.Tools(t, "node")
	cmd := exec.CommandContext(t.Context(), "../hack/dashboard-clients.sh")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	modules, err := cmd.Output()
	if err != nil {
		need.Missing(t, "hack/dashboard-clients.sh: ", err, stderr.String())
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	cmd = exec.CommandContext(ctx, "node", script)
	cmd.Dir = filepath.Join("testdata", "dashboard")
	cmd.Env = append(append(os.Environ(), "MODULES="+strings.TrimSpace(string(modules)), "URL="+url), env...)
	if *screenshots != "" {
		out, err := filepath.Abs(*screenshots)
		if err != nil {
			t.Fatal(err)
		}
		cmd.Env = append(cmd.Env, fmt.Sprint("SCREENSHOTS=", out))
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
}
