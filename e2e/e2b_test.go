package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"miren.dev/runtime/testsupport/need"
)

// TestE2B runs E2B's published clients against the server, with the three
// variables of docs/e2b.md.
func TestE2B(t *testing.T) {
	t.Parallel()
	clients := e2bClients(t)
	for _, template := range []string{"base", "code-interpreter-v1"} { // makes the images
		shared.r(t, "", "sandbox", "run", "--template", template, "--wait", "10m", "--", "true")
	}
	keys := map[string]string{}
	for _, role := range []string{"agent", "deployer"} {
		keys[role] = strings.TrimSpace(shared.r(t, "", "key", "create", fmt.Sprintf("e2b-%s-%d", role, time.Now().UnixNano()), "--role", role))
	}
	for _, script := range []string{"core.mjs", "interpreter.mjs", "lifecycle.mjs", "smoke.mjs", "templates.mjs", "core.py", "interpreter.py", "lifecycle.py", "smoke.py", "templates.py", "volumes.py"} {
		t.Run(script, func(t *testing.T) {
			t.Parallel()
			key := keys["agent"]
			if strings.HasPrefix(script, "templates.") || strings.HasPrefix(script, "volumes.") {
				key = keys["deployer"]
			}
			program := "node"
			if strings.HasSuffix(script, ".py") {
				program = filepath.Join(clients, "venv/bin/python")
			}
			if script == "smoke.py" { // of older versions
				program = filepath.Join(clients, "venv-old/bin/python")
			}
			if out, err := shared.e2b(t, clients, program, script, key).CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// e2bClients returns the directory of E2B's clients.
func e2bClients(t *testing.T) string {
	t.Helper()
	need.Tools(t, "npm", "node", "python3")
	out, err := exec.CommandContext(t.Context(), "../hack/e2b-clients.sh").Output()
	if err != nil {
		need.Missing(t, "E2B's clients: ", err)
	}
	return strings.TrimSpace(string(out))
}

// e2b returns the command of a script of testdata/e2b with a key of the server. It
// ends after five minutes.
func (s *server) e2b(t *testing.T, clients, program, script, key string, args ...string) *exec.Cmd {
	t.Helper()
	// Node looks for packages beside the script.
	source, err := os.ReadFile(filepath.Join("testdata/e2b", script))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := filepath.Join(dir, script)
	if err := os.WriteFile(file, source, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(clients, "node_modules"), filepath.Join(dir, "node_modules")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, program, append([]string{file}, args...)...)
	cmd.Dir = dir
	url := fmt.Sprintf("http://127.0.0.1:%d", s.api)
	cmd.Env = append(os.Environ(), "PYTHONFAULTHANDLER=1", "E2B_API_URL="+url, "E2B_SANDBOX_URL="+url, "E2B_API_KEY="+key, fmt.Sprintf("E2B_DOMAIN=localhost:%d", s.port))
	return cmd
}

// TestE2BCommandsOutliveTheServer: commands go on while the server is killed, or
// stopped in order as for an upgrade, and clients follow them with the next one,
// without losing output that nobody read.
func TestE2BCommandsOutliveTheServer(t *testing.T) {
	t.Parallel()
	clients := e2bClients(t)
	s := own(t, "e2b-restart")
	s.r(t, "", "sandbox", "run", "--template", "base", "--wait", "10m", "--", "true")
	key := strings.TrimSpace(s.r(t, "", "key", "create", "e2b", "--role", "agent"))
	for _, end := range []struct {
		name string
		stop func(t *testing.T)
	}{
		{"killed", func(t *testing.T) { kill(t, s.pid(t, "server")) }},
		{"stopped", func(t *testing.T) { s.r(t, "", "server", "stop", "--keep-running") }},
		{"terminated", func(t *testing.T) { signal(t, s.pid(t, "server"), syscall.SIGTERM) }}, // as systemd does
	} {
		t.Run(end.name, func(t *testing.T) {
			begun, err := s.e2b(t, clients, "node", "restart.mjs", key, "begin").Output()
			if err != nil {
				t.Fatalf("%v, %s", err, begun)
			}
			end.stop(t)
			if err := s.start(); err != nil {
				t.Fatal(err)
			}
			args := append([]string{"continue"}, strings.Fields(string(begun))...)
			if out, err := s.e2b(t, clients, "node", "restart.mjs", key, args...).CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
