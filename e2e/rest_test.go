package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/testsupport/need"
)

// TestREST runs the examples of docs/rest.md with curl against a server. Then it
// has the OpenAPI document validated, and a property-based tester look for
// answers that the document does not have, and for those of status 500 and above.
func TestREST(t *testing.T) {
	t.Parallel()
	need.Tools(t, "curl", "jq", "bash")
	s, url := withAPI(t, "rest")
	key := strings.TrimSpace(s.r(t, "", "key", "create", "rest"))
	builder := strings.TrimSpace(s.r(t, "", "key", "create", "builder", "--role", "deployer"))
	admin := strings.TrimSpace(s.r(t, "", "key", "create", "boss", "--role", "admin"))
	doc, err := os.ReadFile("../docs/rest.md")
	if err != nil {
		t.Fatal(err)
	}
	examples := codeBlocks(string(doc), "sh")
	if len(examples) < 7 {
		t.Fatalf("only %d examples", len(examples))
	}
	cmd := exec.CommandContext(t.Context(), "bash", "-c", "set -euxo pipefail\n"+strings.Join(examples, "\n"))
	cmd.Env = append(os.Environ(), "API="+url+"/api/v1", "KEY=X-API-Key: "+key, "BUILDER_KEY="+builder, "ADMIN_KEY="+admin, "JSON=Content-Type: application/json")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, strings.NewReplacer(key, "KEY", builder, "KEY", admin, "KEY").Replace(string(out)))
	}
	tools := pythonTools(t, "rest")
	document := filepath.Join(t.TempDir(), "openapi.json")
	status, text, err := fetch(url + "/api/v1/openapi.json")
	if err != nil || status != http.StatusOK {
		t.Fatal(status, err)
	}
	write(t, document, text)
	tool := func(name string, args ...string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, filepath.Join(tools, name), args...)
		cmd.Dir = t.TempDir() // for its own files
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", name, err, strings.ReplaceAll(string(out), key, "KEY"))
		}
	}
	tool("openapi-spec-validator", document)
	// The two operations that make sandboxes are left out: each call may wait for minutes.
	// So are the streams of events and of entities, which do not end.
	// Both headers that may have the key are stated: the tester would make up the
	// other one, with bytes that no header may have, and the HTTP library ends the
	// connection of such a request.
	tool("schemathesis", "run", document, "--url", url+"/api/v1", "--header", "X-API-Key: "+key, "--header", "Authorization: Bearer "+key, "--phases", "examples,fuzzing", "--max-examples", "3",
		"--seed", "1", "--request-timeout", "90", "--no-shrink", "--no-color",
		"--checks", "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,ignored_auth",
		"--exclude-operation-id", "create-session", "--exclude-operation-id", "submit-execution", "--exclude-operation-id", "stream-events",
		"--exclude-operation-id", "stream-entities")
	audit := s.r(t, "", "audit", "list", "--actor", "key:default/rest", "--limit", "1000", "--json")
	for _, action := range []string{"sandbox.Sandboxes/Run", "sandbox.Sandboxes/Exec", "sandbox.Files/Write", "execution.Executions/Submit"} {
		if !strings.Contains(audit, action) {
			t.Errorf("the audit log does not have %s", action)
		}
	}
	if made := s.r(t, "", "audit", "list", "--action", "core.Keys/Create", "--json"); strings.Contains(audit+made, key[4:]) || strings.Contains(made, admin[4:]) {
		t.Error("the audit log has a key")
	}
	log, err := os.ReadFile(filepath.Join(s.state, "logs", "server.log"))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(log), key[4:]) {
		t.Error("the log of the server has the key")
	}
}

// pythonTools returns the directory of the programs that hack/rest-clients.sh installs
// for a list of testdata.
func pythonTools(t *testing.T, list string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "../hack/rest-clients.sh", list)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		need.Missing(t, "hack/rest-clients.sh: ", err, stderr.String())
	}
	return strings.TrimSpace(string(out))
}

// fetch returns status and body of a URL.
func fetch(url string) (int, string, error) {
	resp, err := http.Get(url)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), err
}

// withAPI starts a server of its own for a test, which serves the HTTP API at url.
func withAPI(t *testing.T, name string, flags ...string) (s *server, url string) {
	t.Helper()
	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", port)
	return own(t, name, append(flags, "--api-address", address)...), "http://" + address
}

// codeBlocks returns the code blocks of a language in a text in Markdown.
func codeBlocks(text, language string) []string {
	var blocks []string
	for {
		_, rest, ok := strings.Cut(text, "\n```"+language+"\n")
		if !ok {
			return blocks
		}
		block, rest, _ := strings.Cut(rest, "\n```")
		blocks, text = append(blocks, block), rest
	}
}
