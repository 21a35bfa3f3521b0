package e2e

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"miren.dev/runtime/testsupport/need"
	"miren.dev/runtime/testsupport/wait"
)

// TestWorkspace runs the examples of docs/workspace.md with curl against a
// server. The limits of its environment hold in a session, and it keeps warm
// sandboxes.
func TestWorkspace(t *testing.T) {
	need.Tools(t, "curl", "jq", "bash")
	s, url := withAPI(t, "workspace")
	key := strings.TrimSpace(s.r(t, "", "key", "create", "workspace"))
	doc, err := os.ReadFile("../docs/workspace.md")
	if err != nil {
		t.Fatal(err)
	}
	examples := codeBlocks(string(doc), "sh")
	if len(examples) < 2 {
		t.Fatalf("only %d examples", len(examples))
	}
	cmd := exec.CommandContext(t.Context(), "bash", "-c", "set -euxo pipefail\n"+strings.Join(examples, "\n"))
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "SE="+url+"/workspace/se", "KEY=X-API-Key: "+key, "JSON=Content-Type: application/json")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, strings.ReplaceAll(string(out), key, "KEY"))
	}
	wait.For(t, "two sandboxes are warm", func() bool {
		return strings.Contains(s.r(t, "", "pool", "list", "--json"), `"warm": 2`)
	})
}
