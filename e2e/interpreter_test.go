package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/testsupport/wait"
)

// TestInterpreter executes code in a claimed sandbox, by the commands of
// docs/interpreter.md, and over a pause.
func TestInterpreter(t *testing.T) {
	t.Parallel()
	const template = "code-interpreter-v1"
	shared.r(t, "", "sandbox", "run", "--template", template, "--wait", "10m", "--", "true") // makes the image
	shared.r(t, "", "pool", "set", template, "--min", "1", "--max", "1")
	var sb struct {
		ID   string `json:"id"`
		Spec struct {
			Origin string `json:"origin"`
		} `json:"spec"`
	}
	wait.NoError(t, "a warm sandbox is claimed", func() error {
		out := shared.r(t, "", "sandbox", "run", "--template", template, "--detach", "--json", "--ttl", "10m", "-e", "CLAIMED=yes", "--secret", "HUSH=secret")
		if err := json.Unmarshal([]byte(out), &sb); err != nil {
			t.Fatal(err)
		}
		if sb.Spec.Origin != "pool" {
			shared.r(t, "", "sandbox", "delete", sb.ID)
			return fmt.Errorf("it was made by way of %s; %s", sb.Spec.Origin, shared.r(t, "", "pool", "list"))
		}
		return nil
	}, wait.Within(time.Minute), wait.Every(2*time.Second))
	code := func(args ...string) string {
		t.Helper()
		return shared.r(t, "", append([]string{"sandbox", "code", sb.ID}, args...)...)
	}
	if out := code("import os; x = 41; os.environ['CLAIMED'], os.environ['HUSH']"); out != "('yes', 'secret')\n" {
		t.Errorf("the environment of the claim: %q", out)
	}
	contains(t, "pause", shared.r(t, "", "sandbox", "pause", sb.ID), "paused")
	if out := code("x + 1"); out != "42\n" { // it wakes the sandbox
		t.Errorf("after a pause: %q", out)
	}
	if out := code("-l", "js", "const answer = 42; await Promise.resolve(answer)") + code("-l", "js", "answer"); out != "42\n42\n" {
		t.Errorf("JavaScript: %q", out)
	}
	if out := code("-l", "sh", "cd /tmp; pwd"); out != "/tmp\n" {
		t.Errorf("shell: %q", out)
	}
	contains(t, "events", code("--json", `import pandas; pandas.DataFrame({"a": [1, 2]})`), "text/html", "vnd.runtime.data+json", `"outcome":"completed"`)
	cmd := shared.command(t.Context(), "", "sandbox", "code", sb.ID, "--timeout", "300ms", "while True: pass")
	if out, _ := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != 124 || !strings.Contains(string(out), "KeyboardInterrupt") {
		t.Errorf("timeout: exit code %d, %s", cmd.ProcessState.ExitCode(), out)
	}
	made := strings.TrimSpace(shared.r(t, "", "sandbox", "context", "create", sb.ID, "-l", "python"))
	contains(t, "context list", shared.r(t, "", "sandbox", "context", "list", sb.ID), made, "javascript")
	cmd = shared.command(t.Context(), "", "sandbox", "code", sb.ID, "--context", made, "x")
	if out, _ := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != 1 || !strings.Contains(string(out), "NameError") {
		t.Errorf("another context: exit code %d, %s", cmd.ProcessState.ExitCode(), out)
	}
	shared.r(t, "", "sandbox", "context", "interrupt", sb.ID, made)
	shared.r(t, "", "sandbox", "context", "restart", sb.ID, made)
	shared.r(t, "", "sandbox", "context", "delete", sb.ID, made)
	shared.r(t, "", "sandbox", "delete", sb.ID)
	contains(t, "pool delete", shared.r(t, "", "pool", "delete", template), "deleted")
	// A language without contexts, and a sandbox without an interpreter.
	plain := strings.TrimSpace(shared.r(t, "", "sandbox", "run", "--template", "cpp", "--detach", "--quiet", "--ttl", "10m"))
	if out := shared.r(t, "", "sandbox", "code", plain, "-l", "cpp", "#include <cstdio>\nint main() { puts(\"compiled\"); }"); out != "compiled\n" {
		t.Errorf("C++: %q", out)
	}
	cmd = shared.command(t.Context(), "", "sandbox", "code", plain, "1+1")
	if out, _ := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != 1 || !strings.Contains(string(out), template) {
		t.Errorf("without an interpreter: exit code %d, %s", cmd.ProcessState.ExitCode(), out)
	}
	shared.r(t, "", "sandbox", "delete", plain)
}
