package stack

import (
	"io/fs"
	"strings"
	"testing"

	"miren.dev/runtime/pkg/errs"
)

const monorepo = `-- package.json --
{"private": true, "workspaces": ["apps/*", "packages/*"]}
-- package-lock.json --
{}
-- Dockerfile --
FROM nginx
-- packages/lib/package.json --
{"name": "lib"}
-- apps/web/package.json --
{"name": "web", "scripts": {"start": "node server.js"}, "dependencies": {"lib": "*"}}
-- apps/api/package.json --
{"name": "api", "scripts": {"start": "node api.js"}}
-- apps/api/Procfile --
web: node api.js --fast
-- apps/api/app.toml --
name = "the-api"
[env]
LEVEL = "info"
-- apps/own/package.json --
{"name": "own"}
-- apps/own/yarn.lock --
-- other/package.json --
{"name": "other"}
`

func TestWorkspaceIsBuiltFromTheFolderWithTheLockFile(t *testing.T) {
	fsys := folder(monorepo)
	for dir, want := range map[string]struct{ needs, is bool }{"apps/web": {true, true}, "apps/api": {true, true}, "apps/own": {false, true}, "other": {true, false}} {
		sub, err := fs.Sub(fsys, dir)
		if err != nil {
			t.Fatal(err)
		}
		if got := needsRoot(sub); got != want.needs {
			t.Errorf("%s needs a lock file from above: %v", dir, got)
		}
		if got := hasWorkspace(fsys, dir); got != want.is {
			t.Errorf("%s is a workspace: %v", dir, got)
		}
		root := dir
		if want.needs && want.is {
			root = "."
		}
		if got := FindRoot(fsys, dir); got != root {
			t.Errorf("%s is uploaded from %q, want %q", dir, got, root)
		}
	}
	if needsRoot(fsys) {
		t.Error("the source with the lock file needs none from above")
	}
	cfg, err := Load(fsys, "apps/web")
	if err != nil {
		t.Fatal(err)
	}
	p, err := Detect(fsys, cfg)
	if err != nil || p.Stack != "node" || !strings.Contains(p.Dockerfile, "COPY package.json package-lock.json") || !strings.Contains(strings.Join(p.Reasons, "\n"), "the app is the workspace apps/web") {
		t.Errorf("%+v, %v", p, err)
	}
	// The app's own app.toml and Procfile count.
	if cfg, err = Load(fsys, "apps/api"); err != nil || cfg.Name != "the-api" || cfg.File != "apps/api/app.toml" {
		t.Fatalf("%+v, %v", cfg, err)
	}
	p, err = Detect(fsys, cfg)
	if err != nil || p.Env["LEVEL"] != "info" || commandLine(p.Services[0].Command) != "node api.js --fast" {
		t.Errorf("%+v, %v", p, err)
	}
	for _, bad := range []string{"../x", "/apps/web", "apps", "apps/none"} {
		if _, err := Load(fsys, bad); !errs.Is(err, errs.InvalidArgument) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if cfg, err := Load(fsys, ""); err != nil || cfg.Build.Stack != "" || cfg.Build.Package != "" {
		t.Errorf("%+v, %v", cfg, err)
	}
}
