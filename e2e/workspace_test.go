package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"miren.dev/runtime/testsupport/need"
	"miren.dev/runtime/testsupport/wait"
)

// TestWorkspace runs the examples of docs/workspace.md with curl against a
// server, which does not start with a wrong environment. The server keeps warm
// sandboxes for the API, and a program ends with its caller.
func TestWorkspace(t *testing.T) {
	t.Parallel()
	need.Tools(t, "curl", "jq", "bash")
	s, err := newServer("workspace")
	if err != nil {
		t.Fatal(err)
	}
	s.env = []string{"SANDBOX_POOL_SIZE=many"}
	if err := s.start(); err == nil || !strings.Contains(err.Error(), `SANDBOX_POOL_SIZE is "many", not a number of sandboxes`) {
		t.Errorf("with a wrong environment: %v", err)
	}
	s.env = []string{"SANDBOX_ALLOW_NETWORK=false"}
	s.begin(t)
	key := strings.TrimSpace(s.r(t, "", "key", "create", "workspace"))
	doc, err := os.ReadFile("../docs/workspace.md")
	if err != nil {
		t.Fatal(err)
	}
	examples := codeBlocks(string(doc), "sh")
	if len(examples) < 2 {
		t.Fatalf("only %d examples", len(examples))
	}
	bash := func(script string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "bash", "-c", "set -euxo pipefail\n"+script)
		cmd.Dir = t.TempDir()
		cmd.Env = append(os.Environ(), fmt.Sprintf("SE=http://127.0.0.1:%d/workspace/se", s.api), "KEY=X-API-Key: "+key, "JSON=Content-Type: application/json")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, strings.ReplaceAll(string(out), key, "KEY"))
		}
	}
	bash(strings.Join(examples, "\n"))
	warm := regexp.MustCompile(`"warm": [2-9]`) // recent demand may be for more
	wait.For(t, "two sandboxes are warm", func() bool {
		pools := s.r(t, "", "pool", "list", "--json")
		return warm.MatchString(pools) && strings.Contains(pools, `"min": 2`)
	})

	bash(`curl -fsS -X POST $SE/session/a -H "$KEY" | jq -r .sandbox_id
code=0
curl -fsS --max-time 3 $SE/execute/a -H "$KEY" -H "$JSON" -d '{"command": "sleep 600"}' || code=$?
[ $code = 28 ] # curl's time was over`)
	wait.For(t, "the program of the caller that has gone is cancelled", func() bool {
		return strings.Contains(s.r(t, "", "execution", "list", "--json"), `"outcome": "cancelled"`)
	})
	shown := s.r(t, "", "sandbox", "show", "se-a", "--json")
	for _, want := range []string{`"cpu_millis": 2000`, `"memory_bytes": 134217728`, `"mode": "none"`} {
		if !strings.Contains(shown, want) {
			t.Errorf("the session does not have %s: %s", want, shown)
		}
	}
}
