package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"miren.dev/runtime/testsupport/etcdtest"
)

// TestSQLite: a server that keeps its entities in a file needs no PostgreSQL.
func TestSQLite(t *testing.T) {
	t.Parallel()
	testOtherStore(t, "sqlite", "SQLite", "sqlite://"+filepath.Join(stateRoot, "sqlite", "store.db"))
}

// TestEtcd: a server that keeps its entities in etcd needs no PostgreSQL.
func TestEtcd(t *testing.T) {
	t.Parallel()
	testOtherStore(t, "etcd", "etcd", etcdtest.Start(t).URL(t))
}

// testOtherStore: a server with another store runs sandboxes, deploys and executes;
// what it acknowledged is there after it was killed, and apps answer meanwhile.
func testOtherStore(t *testing.T, name, shown, url string) {
	s := own(t, name, "--store-url", url)
	for _, c := range s.status(t).Components {
		if c.Name == "postgres" {
			t.Errorf("there is a PostgreSQL: %+v", c)
		}
	}
	if out := s.r(t, "", "server", "status"); !strings.Contains(out, shown) {
		t.Errorf("status: %s", out)
	}
	box := strings.TrimSpace(s.r(t, "", "sandbox", "create", "--template", "base"))
	if out := s.r(t, "", "run", "-l", "sh", "echo hello"); out != "hello\n" {
		t.Errorf("run: %q", out)
	}
	app, dir := "app", copyExample(t, "go-http")
	s.r(t, dir, "app", "deploy", "--app", app)
	s.answers(t, app, "/", "v1")

	stop := s.watchApp(app)
	kill(t, s.pid(t, "server"))
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	s.healthy(t)
	if out := s.r(t, "", "sandbox", "exec", box, "--", "echo", "again"); out != "again\n" {
		t.Errorf("in the sandbox of before: %q", out)
	}
	s.r(t, dir, "app", "deploy", "--app", app)
	x := strings.TrimSpace(s.r(t, "", "execution", "submit", "--template", "base", "--", "echo", "hello"))
	if res := s.try(t, "", "execution", "wait", x); res.Code != 0 {
		t.Errorf("the execution: %s", res)
	}
	s.answers(t, app, "/", "v1")
	if failed, all := stop(); failed > 0 {
		t.Errorf("%d of %d requests failed", failed, all)
	}
	if out := s.r(t, "", "audit", "list"); !strings.Contains(out, "app.Deploys/Deploy") || !strings.Contains(out, "sandbox.Sandboxes/Run\tsandbox/"+box) {
		t.Errorf("audit: %s", out)
	}
}

// TestMoveStore: the entities of a stopped server are copied to SQLite, to etcd and
// back to the private PostgreSQL; after each copy it serves its app with its secret.
func TestMoveStore(t *testing.T) {
	t.Parallel()
	s := own(t, "move")
	app, dir := "moved", copyExample(t, "go-http")
	s.r(t, dir, "app", "deploy", "--app", app)
	s.r(t, "", "app", "env", "set", "--app", app, "--secret", "TOKEN=hunter2")
	first := "sqlite://" + filepath.Join(stateRoot, "move-store", "store.db")
	t.Cleanup(func() { _ = os.RemoveAll(filepath.Join(stateRoot, "move-store")) }) // with the root at the latest
	if res := s.try(t, "", "server", "move-store", "--to", first); res.Code == 0 || !strings.Contains(res.Stderr, "is running") {
		t.Errorf("while the server runs: %s", res)
	}
	for _, c := range []struct{ url, shown string }{
		{first, "SQLite"}, {etcdtest.Start(t).URL(t), "etcd"}, {"private", "private PostgreSQL"},
	} {
		s.r(t, "", "server", "stop")
		if c.url == "private" { // it holds what it held before the first copy
			if res := s.try(t, "", "server", "move-store", "--to", c.url); res.Code == 0 || !strings.Contains(res.Stderr, "not empty") {
				t.Errorf("to the store of before: %s", res)
			}
			if err := os.RemoveAll(filepath.Join(s.state, "pg")); err != nil {
				t.Fatal(err)
			}
		}
		var res struct {
			Entities int
			Kinds    map[string]int
		}
		s.json(t, &res, "server", "move-store", "--to", c.url)
		if res.Entities == 0 || res.Kinds["app"] != 1 {
			t.Errorf("to %s: %+v", c.shown, res)
		}
		if s.extra = []string{"--store-url", c.url}; c.url == "private" {
			s.extra = nil
		}
		if err := s.start(); err != nil {
			t.Fatal(err)
		}
		s.healthy(t)
		s.answers(t, app, "/env/TOKEN", "hunter2")
		if out := s.r(t, "", "server", "status"); !strings.Contains(out, c.shown) {
			t.Errorf("status: %s", out)
		}
	}
}
