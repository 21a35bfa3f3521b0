package cli_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"miren.dev/runtime/cli/exit"
)

func TestSessions(t *testing.T) {
	newFake(t)
	sid := strings.TrimSpace(ok(t, "session", "create", "--name", "box", "--wait", "0s"))
	if !strings.HasPrefix(sid, "sb-") {
		t.Fatalf("create: %q", sid)
	}
	contains(t, ok(t, "session", "list"), sid, "box")
	contains(t, ok(t, "session", "show", "box", "--json"), `"mode": "persistent"`, `"id": "`+sid+`"`)
	if r := run(t, false, "", "session", "execute", "-l", "python", "box", "3", "out"); r.code != 3 || r.out != "out" {
		t.Errorf("execute: %+v", r)
	}
	if out := ok(t, "session", "execute", "--detach", "box", "--", "true"); out != "exec-2\n" {
		t.Errorf("execute a command: %q", out)
	}
	if r := run(t, false, "", "session", "execute", "--ephemeral", "-l", "python", "0", "alone"); r.code != 0 || r.out != "alone" {
		t.Errorf("an ephemeral session: %+v", r)
	}
	contains(t, ok(t, "session", "show", "exec-3"), "ephemeral", "ended", "succeeded")
	contains(t, ok(t, "session", "extend", "box", "--ttl", "1h"), "extended "+sid)
	if r := run(t, false, "", "session", "extend", "exec-3", "--ttl", "1h"); r.code == 0 || !strings.Contains(r.err, "ephemeral") {
		t.Errorf("extend an ephemeral session: %+v", r)
	}
	for _, noun := range []string{"session", "sandbox"} { // a slip must not let it run for ever
		if r := run(t, false, "", noun, "extend", "box", "--ttl", "-1h"); r.code == 0 || !strings.Contains(r.err, "ttl") {
			t.Errorf("extend a %s into the past: %+v", noun, r)
		}
	}
	contains(t, ok(t, "session", "delete", "box", "exec-3"), "deleted "+sid, "cancelled exec-3")
	for _, args := range [][]string{{"execute", "box"}, {"execute", "--ephemeral"}, {"show"}, {"delete"}} {
		if r := run(t, false, "", append([]string{"session"}, args...)...); r.code != exit.Usage {
			t.Errorf("%v: %+v", args, r)
		}
	}
}

// TestOpenAPI: the document needs no server.
func TestOpenAPI(t *testing.T) {
	file := filepath.Join(t.TempDir(), "openapi.json")
	ok(t, "openapi", "--url", "https://runtime.example.com:7444/", "--output", file)
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		OpenAPI string
		Paths   map[string]any
		Servers []struct{ URL string }
	}
	if err := json.Unmarshal(b, &doc); err != nil {
		t.Fatal(err)
	}
	if doc.OpenAPI != "3.1.0" || doc.Paths["/sessions"] == nil || len(doc.Servers) != 1 || doc.Servers[0].URL != "https://runtime.example.com:7444/api/v1" {
		t.Errorf("%s: %d paths, servers %v", doc.OpenAPI, len(doc.Paths), doc.Servers)
	}
	contains(t, ok(t, "openapi"), `"url": "/api/v1"`)
	if r := run(t, false, "", "openapi", "--url", "example.com"); r.code != exit.Usage {
		t.Errorf("%+v", r)
	}
}
