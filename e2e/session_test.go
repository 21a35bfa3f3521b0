package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"miren.dev/runtime/testsupport/need"
)

// TestSessionCommands runs the examples of "Sessions" in docs/cli.md.
func TestSessionCommands(t *testing.T) {
	t.Parallel()
	need.Tools(t, "bash")
	s := own(t, "session")
	dir := t.TempDir()
	out := s.script(t, dir, documented(t, "../docs/cli.md", "r session create"))
	for _, want := range []string{"42\n", "alone\n", "box", "deleted sb-"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in the output:\n%s", want, out)
		}
	}
	if doc, err := os.ReadFile(filepath.Join(dir, "openapi.json")); err != nil || !strings.Contains(string(doc), `"openapi": "3.1.0"`) {
		t.Errorf("the document: %.100s, %v", doc, err)
	}
	if res := s.try(t, "", "session", "execute", "--ephemeral", "-l", "sh", "exit 3"); res.Code != 3 {
		t.Errorf("a program that fails: %s", res)
	}
}

// documented returns the example of a document, in bash, that has some text.
func documented(t *testing.T, file, has string) string {
	t.Helper()
	doc, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range codeBlocks(string(doc), "sh") {
		if strings.Contains(block, has) {
			return block
		}
	}
	t.Fatalf("%s has no example with %q", file, has)
	return ""
}

// script runs a script with r in its path and the server's environment, and
// returns its output.
func (s *server) script(t *testing.T, dir, script string, env ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "bash", "-c", "set -euo pipefail\n"+script)
	cmd.Dir = dir
	cmd.Env = append(append(s.command(t.Context(), "").Env, "PATH="+bin+":"+os.Getenv("PATH")), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return string(out)
}
