package cli_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/cli"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/pkg/appconfig"
	"miren.dev/runtime/pkg/schema"
)

// TestJQ: an expression of jq makes something of the JSON of any command.
func TestJQ(t *testing.T) {
	newFake(t).shop()
	if out := ok(t, "app", "list", "--jq", ".[].name"); out != "shop\n" {
		t.Errorf("names: %q", out)
	}
	if out := ok(t, "--jq", "{name: .[0].name, n: length}", "app", "list"); out != `{"n":1,"name":"shop"}`+"\n" {
		t.Errorf("an object: %q", out)
	}
	if out := ok(t, "app", "list", "--jq", ".[] | select(.name == \"other\")"); out != "" {
		t.Errorf("nothing: %q", out)
	}
	if r := run(t, false, "", "app", "list", "--jq", ".["); r.code != exit.Usage || !strings.Contains(r.err, "no expression of jq") {
		t.Errorf("a bad expression: %+v", r)
	}
	if r := run(t, false, "", "app", "list", "--jq", ".name"); r.code == 0 || !strings.Contains(r.err, "--jq") {
		t.Errorf("an expression that does not fit: %+v", r)
	}
}

// TestFilteredLists: each list shows the rows and the order that a user asks for.
func TestFilteredLists(t *testing.T) {
	newFake(t).shop()
	if out := ok(t, "app", "list", "--filter", "app=SHOP"); !strings.HasPrefix(out, "shop\t") {
		t.Errorf("by name: %q", out)
	}
	if out := ok(t, "app", "list", "--filter", "app!=shop", "--sort", "-app"); out != "" {
		t.Errorf("all others: %q", out)
	}
	if r := run(t, false, "", "app", "list", "--filter", "owner=alice"); r.code != 1 || r.out != "" || !strings.Contains(r.err, "columns: app, version") {
		t.Errorf("a column that there is not: %+v", r)
	}
	if r := run(t, false, "", "app", "list", "--json", "--filter", "app=shop"); r.code != exit.Usage || !strings.Contains(r.err, "--jq") {
		t.Errorf("as JSON: %+v", r)
	}
	for _, list := range []string{"sandbox", "disk", "addon", "route", "task", "key", "event", "audit", "node"} {
		if out := ok(t, list, "list", "--help"); !strings.Contains(out, "--filter COLUMN=TEXT") {
			t.Errorf("r %s list: %s", list, out)
		}
	}
}

func TestShortForms(t *testing.T) {
	f := newFake(t)
	f.shop()
	if out := ok(t, "console", "shop", "-s", "api"); out != "shop/api  " {
		t.Errorf("console: %q", out)
	}
	if out := ok(t, "open", "shop"); out != "http://shop.localhost/\n" {
		t.Errorf("open: %q", out)
	}
	never := &app.App{Meta: schema.Meta{ID: "app-never", Name: "never"}}
	f.create(never)
	if r := run(t, false, "", "open", "never"); r.code != 1 || !strings.Contains(r.err, "serves no version yet") || !strings.Contains(r.err, "r app status never") {
		t.Errorf("open without a version: %+v", r)
	}
	opened := filepath.Join(t.TempDir(), "opened")
	browser := filepath.Join(t.TempDir(), "browser")
	if err := os.WriteFile(browser, []byte("#!/bin/sh\necho \"$1\" > "+opened+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("BROWSER", browser)
	r := run(t, true, "", "open", "shop")
	if b, err := os.ReadFile(opened); r.code != 0 || err != nil || string(b) != "http://shop.localhost/\n" {
		t.Errorf("open on a terminal: %+v; %q, %v", r, b, err)
	}
	if a, b := ok(t, "status", "shop"), ok(t, "app", "status", "shop"); a != b || !strings.Contains(a, "shop") {
		t.Errorf("status: %q and %q", a, b)
	}
}

// TestMan: each command has a page.
func TestMan(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "man1")
	ok(t, "man", dir)
	for page, want := range map[string]string{"r.1": "r-app", "r-app-deploy.1": "no-cache", "r-sandbox-run.1": "memory", "r-server-start.1": "Start the server"} {
		if b, err := os.ReadFile(filepath.Join(dir, page)); err != nil || !strings.Contains(strings.ReplaceAll(string(b), `\-`, "-"), want) {
			t.Errorf("%s lacks %q: %v", page, want, err)
		}
	}
}

// TestInitAsks answers the questions of r app init, and gives some answers that app.toml
// does not accept.
func TestInitAsks(t *testing.T) {
	dir := sourceFolder(t, "shop")
	var out, errw bytes.Buffer
	c := &console.Console{In: strings.NewReader("Bad Name\nstore\nmany\n70000\n3000\nhealthz\n/healthz\n"), Out: &out, Err: &errw, InTerminal: true}
	if code := cli.Main([]string{"app", "init", "--dir", dir}, c, nil); code != exit.OK {
		t.Fatalf("exit code %d\n%s%s", code, out.String(), errw.String())
	}
	cfg, err := appconfig.Load(os.DirFS(dir))
	if err != nil {
		t.Fatal(err)
	}
	web := cfg.Service("web")
	if cfg.Name != "store" || web == nil || web.Port == nil || *web.Port != 3000 || web.HealthPath != "/healthz" {
		t.Errorf("app.toml has name %q, web %+v", cfg.Name, web)
	}
	contains(t, errw.String(), "Name of the app [shop]: ", `"many" is no number`, "must begin with /")

	// A program gets what is detected.
	dir = sourceFolder(t, "other")
	ok(t, "app", "init", "--dir", dir, "--json")
	if cfg, err = appconfig.Load(os.DirFS(dir)); err != nil || cfg.Name != "other" || cfg.Service("web").HealthPath != "" {
		t.Errorf("app.toml %+v, %v", cfg, err)
	}
}
