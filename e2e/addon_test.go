package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/testsupport/need"
	"miren.dev/runtime/testsupport/wait"
)

// entries returns what the guestbook has.
func (s *server) entries(app string) ([]string, error) {
	code, body, err := s.get(app, "/")
	if err != nil || code != 200 {
		return nil, fmt.Errorf("status %d %s %w", code, body, err)
	}
	_, list, _ := strings.Cut(strings.TrimSpace(body), " ")
	return strings.Split(list, ","), nil
}

// TestAddonOfAnApp deploys an app whose app.toml asks for PostgreSQL. Its rows survive a
// new version, and a database whose sandbox is killed while rows are written has all that
// were committed. A backup that is restored has exactly the rows of its time. Credentials
// that were rotated are refused.
func TestAddonOfAnApp(t *testing.T) {
	t.Parallel()
	const name, db = "guestbook", "guestbook-db"
	s := own(t, "addon")
	dir := copyDir(t, filepath.Join("testdata/addons", name))
	s.r(t, dir, "app", "deploy")
	s.post(t, name, "first")
	edit(t, filepath.Join(dir, "main.go"), `"v1"`, `"v2"`)
	s.r(t, dir, "app", "deploy")
	s.answers(t, name, "/", "v2 first")

	t.Run("killed", func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		written := make(chan []string)
		go func() {
			var acknowledged []string
			for i := 0; ctx.Err() == nil; i++ {
				text := fmt.Sprint("row", i)
				if s.tryPost(ctx, name, text) == nil {
					acknowledged = append(acknowledged, text)
				}
			}
			written <- acknowledged
		}()
		wait.NoError(t, "rows are written", func() error {
			list, err := s.entries(name)
			if err == nil && len(list) < 10 {
				err = fmt.Errorf("%d rows", len(list))
			}
			return err
		})
		before := s.sandboxes(t, db)
		if len(before) != 1 {
			t.Fatalf("sandboxes of the addon: %v", before)
		}
		kill(t, processOf(t, "runsc-sandbox", before[0]))
		wait.NoError(t, "the addon is ready again", func() error {
			now := s.sandboxes(t, db)
			if len(now) != 1 || now[0] == before[0] {
				return fmt.Errorf("sandboxes %v", now)
			}
			_, err := s.entries(name)
			return err
		}, wait.Within(2*time.Minute))
		stop()
		acknowledged := <-written
		list, err := s.entries(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range acknowledged {
			if !slices.Contains(list, text) {
				t.Errorf("%s was committed, and is not there", text)
			}
		}
		t.Logf("%d rows were committed", len(acknowledged))
	})

	t.Run("restore", func(t *testing.T) {
		s.restoresInPlace(t, name, db, s.entries)
	})

	t.Run("rotate", func(t *testing.T) {
		login := func(url string) result {
			return s.try(t, "", "app", "exec", db, "--service", "postgres", "--", "psql", strings.Replace(url, "postgres."+db+".internal", "127.0.0.1", 1), "-Atc", "select session_user")
		}
		old := s.variable(t, name, "DATABASE_URL")
		if res := login(old); res.Code != 0 || strings.TrimSpace(res.Stdout) != "app_1" {
			t.Fatalf("before the rotation: %s", res)
		}
		s.r(t, "", "addon", "rotate", db)
		if res := login(old); res.Code == 0 {
			t.Errorf("the old credentials work: %s", res)
		}
		if res := login(s.variable(t, name, "DATABASE_URL")); res.Code != 0 || strings.TrimSpace(res.Stdout) != "app_2" {
			t.Errorf("the new credentials: %s", res)
		}
		s.answers(t, name, "/", "after")
	})

	if res := s.try(t, "", "addon", "delete", db, "--yes"); res.Code == 0 || !strings.Contains(res.Stderr, "used by app "+name) {
		t.Errorf("deletion of an addon that an app uses: %s", res)
	}
	if res := s.try(t, "", "app", "delete", db, "--yes"); res.Code == 0 {
		t.Errorf("deletion of the app that runs an addon: %s", res)
	}
	s.deletesAddon(t, name, db)
}

// restoresInPlace makes a backup of an addon and restores it. read returns what the app of the addon has: after the
// restore, the data of the backup and no later data.
func (s *server) restoresInPlace(t *testing.T, app, addon string, read func(app string) ([]string, error)) {
	t.Helper()
	s.r(t, "", "addon", "backup", addon, "--name", "before")
	want, err := read(app)
	if err != nil {
		t.Fatal(err)
	}
	s.post(t, app, "later")
	s.r(t, "", "addon", "restore", addon, "before", "--in-place", "--yes")
	wait.NoError(t, "the app has the data of the backup", func() error {
		got, err := read(app)
		if err == nil && !slices.Equal(got, want) {
			err = fmt.Errorf("%v, want %v", got, want)
		}
		return err
	})
	s.post(t, app, "after")
}

// deletesAddon deletes an app and its addon, the last of the server: no disk stays.
func (s *server) deletesAddon(t *testing.T, app, addon string) {
	t.Helper()
	s.r(t, "", "app", "delete", app, "--yes")
	s.r(t, "", "addon", "delete", addon, "--yes")
	var disks []json.RawMessage
	if s.json(t, &disks, "disk", "list"); len(disks) != 0 {
		t.Errorf("%d disks are there still", len(disks))
	}
}

// variable returns a variable of the process of an app.
func (s *server) variable(t *testing.T, app, name string) string {
	t.Helper()
	out := s.r(t, "", "app", "exec", app, "--", "/bin/sh", "-c", "printf %s \"$"+name+"\"")
	if out == "" {
		t.Fatalf("app %s has no %s", app, name)
	}
	return out
}

// testAddonsGuide runs the commands of docs/addons.md.
func testAddonsGuide(t *testing.T, g *guide) {
	dir := copyExample(t, "static-site")
	res := g.s.command(t.Context(), dir, "app", "deploy", "--app", "shop")
	res.Env = append(res.Env, g.env...)
	if out, err := res.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	g.run("r addon create", "created db")
	g.run("r addon list", "postgres 15", "ready")
	g.run("r addon show", "db-data")
	g.run("r addon attach", "app shop has the variables of db")
	g.run("echo 'create table orders (id int)' | r addon console db", "CREATE TABLE")
	g.run("r addon rotate", "refuses the old ones")
	g.run("r addon create s3", "created files")
	g.run("r addon console files -- put", "s3://app/hello")
	g.run("r addon console files -- ls", "s3://app/hello")
	g.run("r addon delete files")
	g.run("r addon backup db --name", "monday")
	g.run("r addon backup db --every")
	g.run("r addon backups", "monday")
	g.run("r addon restore", "db-check")
	g.run("r addon restore", "monday")
	g.run("r addon delete-backup")
	key := strings.TrimSpace(g.s.r(t, "", "key", "create", "addons", "--role", "deployer", "--project", "guide-addons"))
	g.env = append(g.env, fmt.Sprintf("API=http://127.0.0.1:%d/api/v1", g.s.api), "KEY=X-API-Key: "+key, "JSON=Content-Type: application/json")
	g.run("curl -fsS $API/addons/db -H")
	g.run("curl -fsS $API/addons/db/backups -H")
	g.run(`curl -fsS "$API/addons/db/wait`)
	g.run("r addon detach")
	g.run("r addon delete db", "deleted the addon db")
	g.run("r addon delete db-check")
}

func TestAddonsGuide(t *testing.T) {
	t.Parallel()
	need.Tools(t, "bash", "curl", "jq")
	g := newGuide(t, shared, "addons")
	g.inProject("guide-addons")
	testAddonsGuide(t, g)
}

// TestAddonEngines makes an addon of each other engine: its data and users survive a killed
// sandbox, a rotation and a restore.
func TestAddonEngines(t *testing.T) {
	t.Parallel()
	for engine, c := range map[string]struct{ write, later, read, users string }{
		"valkey": {"set note 1", "set note 2", "get note", "acl users"},
		"mysql": {"create table notes (n int); insert into notes values (1)", "update notes set n = 2", "select n from notes",
			"select user from mysql.user where user like 'app%'"},
	} {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			name := "engine-" + engine
			console := func(command string) string {
				t.Helper()
				cmd := shared.command(t.Context(), "", "addon", "console", name)
				cmd.Stdin = strings.NewReader(command + "\n")
				out, err := cmd.CombinedOutput()
				if err != nil {
					t.Fatalf("%s: %v\n%s", command, err, out)
				}
				return string(out)
			}
			shared.r(t, "", "addon", "create", engine, name, "--size", "1G")
			console(c.write)
			shared.r(t, "", "addon", "backup", name, "--name", "one")
			before := shared.sandboxes(t, name)
			kill(t, processOf(t, "runsc-sandbox", before[0]))
			wait.NoError(t, "the addon is ready again", func() error {
				if now := shared.sandboxes(t, name); len(now) != 1 || now[0] == before[0] {
					return fmt.Errorf("sandboxes %v", now)
				}
				return nil
			}, wait.Within(2*time.Minute))
			if got := console(c.read); !strings.Contains(got, "1") {
				t.Errorf("after its sandbox was killed: %s", got)
			}
			console(c.later)
			shared.r(t, "", "addon", "rotate", name)
			shared.r(t, "", "addon", "restore", name, "one", "--in-place", "--yes")
			if got := console(c.read); !strings.Contains(got, "1") || strings.Contains(got, "2") {
				t.Errorf("after the restore: %s", got)
			}
			if got := console(c.users); !strings.Contains(got, "app_2") || strings.Contains(got, "app_1") {
				t.Errorf("users after the rotation: %s", got)
			}
			shared.r(t, "", "addon", "delete", name, "--yes")
		})
	}
}
