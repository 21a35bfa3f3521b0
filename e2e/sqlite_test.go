package e2e

import (
	"path/filepath"
	"strings"
	"testing"
)

// TestSQLite: a server that keeps its entities in a file needs no PostgreSQL. It
// runs sandboxes, deploys and executes; what it acknowledged is there after it was
// killed, and apps answer meanwhile.
func TestSQLite(t *testing.T) {
	file := filepath.Join(stateRoot, "sqlite", "store.db")
	s := own(t, "sqlite", "--store-url", "sqlite://"+file)
	for _, c := range s.status(t).Components {
		if c.Name == "postgres" {
			t.Errorf("there is a PostgreSQL: %+v", c)
		}
	}
	if out := s.r(t, "", "server", "status"); !strings.Contains(out, "SQLite") {
		t.Errorf("status: %s", out)
	}
	box := strings.TrimSpace(s.r(t, "", "sandbox", "create", "--template", "base"))
	if out := s.r(t, "", "run", "-l", "sh", "echo hello"); out != "hello\n" {
		t.Errorf("run: %q", out)
	}
	name, dir := "app", copyExample(t, "go-http")
	s.r(t, dir, "app", "deploy", "--app", name)
	s.answers(t, name, "/", "v1")

	stop := s.watchApp(name)
	kill(t, s.pid(t, "server"))
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	s.healthy(t)
	if out := s.r(t, "", "sandbox", "exec", box, "--", "echo", "again"); out != "again\n" {
		t.Errorf("in the sandbox of before: %q", out)
	}
	s.r(t, dir, "app", "deploy", "--app", name)
	x := strings.TrimSpace(s.r(t, "", "execution", "submit", "--template", "base", "--", "echo", "hello"))
	if res := s.try(t, "", "execution", "wait", x); res.Code != 0 {
		t.Errorf("the execution: %s", res)
	}
	s.answers(t, name, "/", "v1")
	if failed, all := stop(); failed > 0 {
		t.Errorf("%d of %d requests failed", failed, all)
	}
	if out := s.r(t, "", "audit", "list"); !strings.Contains(out, "app.Deploys/Deploy") || !strings.Contains(out, "sandbox.Sandboxes/Run\tsandbox/"+box) {
		t.Errorf("audit: %s", out)
	}
}
