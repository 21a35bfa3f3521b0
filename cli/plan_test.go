package cli_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/pkg/appconfig"
)

// planFolder is a source of Node.js that no Dockerfile is in.
func planFolder(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "shop")
	for name, text := range files {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestPlanShowsWhatWasFoundAndWhy(t *testing.T) {
	dir := planFolder(t, map[string]string{
		"package.json": `{"engines": {"node": ">=20 <21"}, "scripts": {"start": "node server.js"}}`, "package-lock.json": "{}", "server.js": "",
		"Procfile": "web: node server.js\nworker: node jobs.js\n",
	})
	contains(t, ok(t, "app", "plan", dir), "shop: node", "Node.js 20 (from engines in package.json)", "npm ci --omit=dev (from package-lock.json)",
		"service  web, port 8080: node server.js", "service  worker: node jobs.js", "FROM runtime/node:20")
	snakeCase(t, ok(t, "app", "plan", dir, "--json"))
	var doc struct {
		Facts []struct{ What, Value, From string }
	}
	if err := json.Unmarshal([]byte(ok(t, "app", "plan", dir, "--json")), &doc); err != nil || len(doc.Facts) != 2 || doc.Facts[0].Value != "Node.js 20" || doc.Facts[0].From != "engines in package.json" {
		t.Errorf("%+v, %v", doc, err)
	}
	if r := run(t, false, "", "app", "plan", t.TempDir(), "--app", "x"); r.code != exit.BuildFailed || !strings.Contains(r.err, "the folder is empty") {
		t.Errorf("an empty folder: %+v", r)
	}
	phoenix := planFolder(t, map[string]string{"mix.exs": "", "lib/shop.ex": "", "package.json": `{"scripts": {"build": "vite build"}}`})
	if r := run(t, false, "", "app", "plan", phoenix); r.code != exit.BuildFailed || !strings.Contains(r.err, "it looks like Elixir (mix.exs)") || !strings.Contains(r.err, "add a Dockerfile") {
		t.Errorf("a source in a language without a stack: %+v", r)
	}
}

// TestPlanHasTheScale: the JSON has each setting of the scale of a service.
func TestPlanHasTheScale(t *testing.T) {
	dir := planFolder(t, map[string]string{
		"index.html": "home", "app.toml": "[services.web]\nscale = { min = 0, max = 5, idle = \"2m\", cpu = 70, suspend = true }\n",
	})
	contains(t, strings.Join(strings.Fields(ok(t, "app", "plan", dir, "--json")), ""),
		`"scale":{"min":0,"max":5,"idle":"2m0s","cpu":70,"suspend":true}`)
}

func TestPlanWritesADockerfile(t *testing.T) {
	dir := planFolder(t, map[string]string{"index.html": "home"})
	file := filepath.Join(dir, "Dockerfile")
	read := func() string {
		t.Helper()
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	ok(t, "app", "plan", dir, "--write-dockerfile")
	if text := read(); !strings.Contains(text, "FROM runtime/static\n") || !strings.Contains(text, "EXPOSE 8080\n") {
		t.Errorf("wrote:\n%s", text)
	}
	contains(t, ok(t, "app", "plan", dir), "shop: dockerfile", "port 8080")

	// The command keeps an existing Dockerfile, except with --force.
	if err := os.WriteFile(file, []byte("FROM scratch\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	r := run(t, false, "", "app", "plan", dir, "--write-dockerfile", "--stack", "static")
	if r.code == 0 || !strings.Contains(r.err, "exists already") || read() != "FROM scratch\n" {
		t.Errorf("without --force: %+v", r)
	}
	if r := run(t, false, "", "app", "plan", dir, "--write-dockerfile", "--force"); r.code == 0 || !strings.Contains(r.err, "nothing to write") {
		t.Errorf("the folder's own Dockerfile: %+v", r)
	}
	ok(t, "app", "plan", dir, "--write-dockerfile", "--force", "--stack", "static")
	if text := read(); !strings.Contains(text, "FROM runtime/static\n") {
		t.Errorf("wrote:\n%s", text)
	}
	if r := run(t, false, "", "app", "plan", dir, "--force"); r.code == 0 || !strings.Contains(r.err, "--write-dockerfile") {
		t.Errorf("--force alone: %+v", r)
	}
}

func TestPlanSaysWhichSettingsTheDockerfileHasNoUseFor(t *testing.T) {
	dir := planFolder(t, map[string]string{"package.json": `{"main": "i.js"}`, "i.js": "", "app.toml": "[build]\nversion = \"20\"\n"})
	if r := run(t, false, "", "app", "plan", dir, "--write-dockerfile"); r.code != 0 || !strings.Contains(r.err, "build.version means nothing to the stack dockerfile") {
		t.Errorf("%+v", r)
	}
}

func TestPlanOfAWorkspaceUsesTheLockFileAboveIt(t *testing.T) {
	files := map[string]string{
		"package.json": `{"private": true, "workspaces": ["apps/*"]}`, "package-lock.json": "{}",
		"apps/web/package.json": `{"scripts": {"start": "node server.js"}}`, "apps/api/package.json": `{"scripts": {"start": "node api.js"}}`,
		"apps/api/app.toml": "name = \"shop-api\"\n",
	}
	dir := planFolder(t, files)
	contains(t, ok(t, "app", "plan", filepath.Join(dir, "apps/web")), "web: node", "npm ci --omit=dev (from package-lock.json)", "WORKDIR /app/apps/web", "5 files")
	contains(t, ok(t, "app", "plan", filepath.Join(dir, "apps/api")), "shop-api: node", "node api.js (from apps/api/package.json)")
	r := run(t, false, "", "app", "plan", filepath.Join(dir, "apps/web"), "--write-dockerfile")
	if _, err := os.Stat(filepath.Join(dir, "apps/web/Dockerfile")); r.code == 0 || !strings.Contains(r.err, "is a workspace of "+dir) || err == nil {
		t.Errorf("%+v, %v", r, err)
	}
	// A repository ends the search.
	if err := os.Mkdir(filepath.Join(dir, "apps/web/.git"), 0o755); err != nil {
		t.Fatal(err)
	}
	contains(t, ok(t, "app", "plan", filepath.Join(dir, "apps/web")), "npm install --omit=dev (from package.json)")
}

// TestAppSchema: the printed schema is that of this version, without a server.
func TestAppSchema(t *testing.T) {
	want, err := appconfig.Schema()
	if err != nil {
		t.Fatal(err)
	}
	if out := ok(t, "app", "schema"); out != string(want) || !strings.Contains(out, `"health_deadline"`) {
		t.Errorf("it prints %q", out)
	}
}
