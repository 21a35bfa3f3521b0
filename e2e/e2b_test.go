package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/testsupport/need"
)

// TestE2B runs E2B's published clients against the server, with the three
// variables of docs/e2b.md.
func TestE2B(t *testing.T) {
	t.Parallel()
	need.Tools(t, "npm", "node", "python3")
	out, err := exec.CommandContext(t.Context(), "../hack/e2b-clients.sh").Output()
	if err != nil {
		need.Missing(t, "E2B's clients: ", err)
	}
	clients := strings.TrimSpace(string(out))
	for _, template := range []string{"base", "code-interpreter-v1"} { // makes the images
		shared.r(t, "", "sandbox", "run", "--template", template, "--wait", "10m", "--", "true")
	}
	keys := map[string]string{}
	for _, role := range []string{"agent", "deployer"} {
		keys[role] = strings.TrimSpace(shared.r(t, "", "key", "create", fmt.Sprintf("e2b-%s-%d", role, time.Now().UnixNano()), "--role", role))
	}
	url := fmt.Sprintf("http://127.0.0.1:%d", shared.api)
	for _, script := range []string{"core.mjs", "interpreter.mjs", "lifecycle.mjs", "smoke.mjs", "templates.mjs", "core.py", "interpreter.py", "lifecycle.py", "smoke.py", "templates.py", "volumes.py"} {
		t.Run(script, func(t *testing.T) {
			t.Parallel()
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
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, program, file)
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), "E2B_API_URL="+url, "E2B_SANDBOX_URL="+url, "E2B_API_KEY="+key, fmt.Sprintf("E2B_DOMAIN=localhost:%d", shared.port))
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
