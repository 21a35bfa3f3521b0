package cli_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/disk"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/schema"
)

// shop makes an app with two versions, a pool, a sandbox and a route.
func (f *fake) shop() *app.App {
	a := &app.App{Meta: schema.Meta{ID: "app-shop", Name: "shop"}}
	a.Spec.Env = map[string]string{"LOG": "info"}
	f.create(a)
	var versions []*app.AppVersion
	for n := int64(1); n <= 2; n++ {
		v := &app.AppVersion{Meta: schema.Meta{ID: schema.ID(fmt.Sprintf("ver-%d", n)), Name: fmt.Sprintf("shop-v%d", n)}}
		svc := app.Service{Name: "web"}
		svc.SetDefaults()
		v.Spec = app.AppVersionSpec{App: a.GetID(), Number: n, Image: "img@sha256:1", Services: []app.Service{svc}, SourceEnv: map[string]string{"PORTAL": "x"}}
		f.create(v)
		versions = append(versions, v)
		d := &app.Deployment{Meta: schema.Meta{ID: schema.ID(fmt.Sprintf("dep-%d", n))}}
		d.Spec = app.DeploymentSpec{App: a.GetID(), Kind: app.RolloutKindDeploy, Message: fmt.Sprintf("change %d", n), RequestedBy: "root"}
		start, end := time.Now().Add(-2*time.Second), time.Now()
		d.Status = app.DeploymentStatus{Phase: app.DeploymentPhaseSucceeded, Version: v.GetID(), StartedAt: &start, EndedAt: &end, URL: "http://shop.localhost/"}
		f.create(d)
	}
	p := sandbox.SandboxPoolKind.New().(*sandbox.SandboxPool)
	p.ID, p.Name = "pool-1", "shop-v2-web"
	p.Spec.App, p.Spec.AppVersion, p.Spec.Service = a.GetID(), versions[1].GetID(), "web"
	p.Spec.Template.Image = "img@sha256:1"
	p.Status.Total, p.Status.Ready = 1, 1
	s := newSandbox("sb-abcdef0123456789", "img@sha256:1")
	s.Name = "shop-v2-web-1"
	s.Spec.Pool, s.Spec.App, s.Spec.AppVersion, s.Spec.Service = "pool-1", a.GetID(), versions[1].GetID(), "web"
	s.Status.Ready, s.Status.Address = true, "10.0.0.2"
	r := app.RouteKind.New().(*app.Route)
	r.Spec.Host, r.Spec.Key, r.Spec.App = "shop.example.com", "shop.example.com/", a.GetID()
	f.create(p, s, r)
	a.Status.Activate(versions[1].GetID())
	a.Status.LastDeployment = "dep-2"
	if err := entity.UpdateStatus(f.t.Context(), f.store, a); err != nil {
		f.t.Fatal(err)
	}
	return a
}

func TestReading(t *testing.T) {
	f := newFake(t)
	f.shop()
	n := core.NodeKind.New().(*core.Node)
	n.ID, n.Name = "node-1", "machine"
	n.Spec.Arch, n.Spec.CPUMillis, n.Spec.MemoryBytes = "amd64", 4000, 8<<30
	n.Status.Phase = core.NodePhaseReady
	f.create(n)
	open := sandbox.NewPreview()
	open.ID, open.Name = "pv-1", "3000-sbabcdef0123456789"
	open.Spec = sandbox.PreviewSpec{Sandbox: "sb-abcdef0123456789", Port: 3000, Public: true, Key: []byte("public key")}
	closed := sandbox.NewPreview()
	closed.ID, closed.Name = "pv-2", "0-sbabcdef0123456789"
	closed.Spec = sandbox.PreviewSpec{Sandbox: "sb-abcdef0123456789", Key: []byte("public key")}
	f.create(open, closed)
	ok(t, "quota", "set", "--sandboxes", "4", "--cpu", "2.5", "--memory", "8GiB", "--executions", "0")
	for _, c := range []struct {
		name string
		args []string
	}{
		{"quota-show", []string{"quota", "show"}},
		{"app-list", []string{"app", "list"}},
		{"app-show", []string{"app", "show", "shop"}},
		{"app-status", []string{"app", "status", "shop"}},
		{"app-scale", []string{"app", "scale", "--app", "shop"}},
		{"app-metrics", []string{"app", "metrics", "shop", "--since", "4m"}},
		{"app-history", []string{"app", "history", "shop"}},
		{"app-env-list", []string{"app", "env", "list", "shop"}},
		{"sandbox-list", []string{"sandbox", "list"}},
		{"sandbox-show", []string{"sandbox", "show", "sb-abc"}},
		{"preview-list", []string{"preview", "list"}},
		{"route-list", []string{"route", "list"}},
		{"node-list", []string{"node", "list"}},
		{"node-metrics", []string{"node", "metrics", "machine", "--step", "1m"}},
		{"debug-controllers", []string{"debug", "controllers"}},
		{"entity-list", []string{"entity", "list", "version"}},
		{"entity-get", []string{"entity", "get", "apps", "shop"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			golden(t, c.name+".plain", ok(t, c.args...))
			tty := run(t, true, "", c.args...)
			golden(t, c.name+".terminal", tty.out)
			out := ok(t, append(c.args, "--json")...)
			if !json.Valid([]byte(out)) {
				t.Errorf("not JSON: %s", out)
			}
			golden(t, c.name+".json", out)
		})
	}
}

func TestNames(t *testing.T) {
	f := newFake(t)
	f.shop()
	for _, name := range []string{"sb-abcdef0123456789", "shop-v2-web-1", "sb-abcd", "abcd"} {
		if out := ok(t, "entity", "get", "sandbox", name, "-o", "table"); !strings.Contains(out, "sb-abcdef0123456789") {
			t.Errorf("%s: %s", name, out)
		}
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"app", "show", "shpo"}, exit.Failed, `did you mean "shop"`},
		{[]string{"app", "show", "blog"}, exit.Failed, "`r app list` lists all"},
		{[]string{"entity", "get", "app_version", "none"}, exit.Failed, "`r entity list app_version` lists all"},
		{[]string{"run", "--image", "python"}, exit.Usage, "`r sandbox run` has --image"},
		{[]string{"app", "shwo"}, exit.Usage, "r app show"},
		{[]string{"apps"}, exit.Usage, "r app"},
		{[]string{"node", "list", "--app", "shop"}, exit.Usage, "`r node list --help` lists the flags"},
		{[]string{"app", "list", "--watc"}, exit.Usage, "--watch"},
		{[]string{"app", "list", "extra"}, exit.Usage, "extra"},
		{[]string{"app", "delete"}, exit.Usage, "APP is missing"},
		{[]string{"app", "delete", "shop"}, exit.Failed, "--yes"},
		{[]string{"entity", "list", "sandbx"}, exit.Failed, "sandbox"},
		{[]string{"entity", "list", "app", "-o", "xml"}, exit.Usage, "yaml"},
		{[]string{"sandbox", "run"}, exit.Usage, "no command"},
		{[]string{"sandbox", "run", "--image", "debian", "--memory", "x", "--", "true"}, exit.Usage, "512MB"},
		{[]string{"sandbox", "run", "--image", "debian", "--network", "mesh", "--", "true"}, exit.Usage, "network"},
		{[]string{"run"}, exit.Usage, "FILE is missing"},
		{[]string{"run", "no-such-file.py"}, exit.Usage, "there is no file no-such-file.py"},
		{[]string{"run", "."}, exit.Usage, ". is not a file"},
		{[]string{"run", "-"}, exit.Usage, "--language"},
		{[]string{"run", "-l", "python", "--file", "no-such-file", "print()"}, exit.Usage, "no-such-file"},
		{[]string{"sandbox", "egress", "set", "sb-abcd"}, exit.Usage, "--allow"},
		{[]string{"sandbox", "run", "-v", "data", "--", "true"}, exit.Usage, "DISK:/PATH"},
		{[]string{"pool", "delete", "ruby"}, exit.Failed, "no warm pool"},
		{[]string{"app", "env", "set", "-a", "shop", "SURELY_NOT_SET"}, exit.Usage, "SURELY_NOT_SET=VALUE"},
		{[]string{"completion", "tcsh"}, exit.Usage, "bash, zsh or fish"},
		{[]string{"node", "cordon", "nowhere"}, exit.Failed, "nowhere"},
	} {
		r := run(t, false, "", c.args...)
		if r.code != c.code || !strings.Contains(r.err, c.want) {
			t.Errorf("r %s: code %d, want %d with %q: %s", strings.Join(c.args, " "), r.code, c.code, c.want, r.err)
		}
	}
	r := run(t, false, "", "app", "show", "shpo", "--json")
	var doc exit.Document
	if err := json.Unmarshal([]byte(r.err), &doc); err != nil || doc.Error.Class != "not_found" || doc.Error.Hint == "" {
		t.Errorf("error as JSON: %v %s", err, r.err)
	}
}

func TestNoServer(t *testing.T) {
	t.Setenv("RUNTIME_SERVER", "")
	t.Setenv("RUNTIME_CLUSTER", "")
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	state := t.TempDir()
	r := run(t, false, "", "app", "list", "--state-dir", state)
	if r.code != exit.Failed {
		t.Errorf("code %d", r.code)
	}
	contains(t, r.err, "no server is running for "+state, "r server start --state-dir "+state)
	r = run(t, false, "", "version", "--state-dir", state)
	if r.code != 0 || !strings.Contains(r.out, "client") {
		t.Errorf("version without a server: %+v", r)
	}
}

func TestEntityPut(t *testing.T) {
	f := newFake(t)
	f.shop()
	yaml := ok(t, "entity", "get", "app", "shop")
	r := run(t, false, strings.Replace(yaml, "LOG: info", "LOG: debug", 1), "entity", "put", "-")
	if r.code != 0 {
		t.Fatalf("put: %+v", r)
	}
	a, err := entity.ByName[app.App](t.Context(), f.store, f.project, "shop")
	if err != nil || a.Spec.Env["LOG"] != "debug" {
		t.Fatalf("after put: %v %v", a, err)
	}
	if r := run(t, false, yaml, "entity", "put", "-"); r.code != exit.Failed || !strings.Contains(r.err, "has changed since") {
		t.Errorf("a stale put: %+v", r)
	}
	created := run(t, false, "kind: app\nname: other\nspec: {env: {A: b}}\n---\nkind: apps\nname: third\n", "entity", "put", "-")
	if created.code != 0 || strings.Count(created.out, "created") != 2 {
		t.Errorf("create two: %+v", created)
	}
	if r := run(t, false, "kind: app\nname: x\nspec: {evn: {}}\n", "entity", "put", "-"); r.code != exit.Failed || !strings.Contains(r.err, "env") {
		t.Errorf("unknown key: %+v", r)
	}
	ok(t, "entity", "delete", "app", "other", "third")
	if r := run(t, false, "", "entity", "get", "app", "other"); r.code != exit.Failed {
		t.Errorf("after delete: %+v", r)
	}
}

// TestDisksOfApps: the list of disks names the apps that use them, and the deletion of
// an app names the disks that stay.
func TestDisksOfApps(t *testing.T) {
	f := newFake(t)
	a := f.shop()
	d := disk.NewDisk()
	d.Project, d.Name, d.Spec.SizeBytes = f.project, "shop-data", disk.MinSize
	f.create(d)
	p := sandbox.NewSandboxPool()
	p.Spec.App, p.Spec.AppVersion, p.Spec.Service, p.Spec.Replicas = a.GetID(), a.Status.Active(), "db", 1
	p.Spec.Template.Image, p.Spec.Template.Volumes = "img@sha256:1", []sandbox.Volume{{Disk: d.GetID(), Path: "/data"}}
	f.create(p)
	if out := ok(t, "disk", "list"); !regexp.MustCompile(`shop-data.*\bshop\b`).MatchString(out) {
		t.Errorf("disk list: %s", out)
	}
	contains(t, ok(t, "disk", "show", "shop-data", "--json"), `"apps"`, `"shop"`)
	contains(t, ok(t, "app", "delete", "shop", "--yes"), "deleted shop", "its disk shop-data stays", "r disk delete shop-data")
}

func TestEntityWatch(t *testing.T) {
	f := newFake(t)
	f.shop()
	out := &lineWriter{lines: make(chan string, 100)}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		runWith(ctx, out, "entity", "watch", "app", "--json")
	}()
	contains(t, out.next(t), `"event":"there"`, `"name":"shop"`)
	f.create(&app.App{Meta: schema.Meta{Name: "new"}})
	contains(t, out.next(t), `"event":"created"`, `"name":"new"`)
	ok(t, "entity", "delete", "app", "new")
	contains(t, out.next(t), `"event":"deleted"`, `"name":"new"`)
	cancel()
	<-done
}

func TestTemplatesAndPools(t *testing.T) {
	f := newFake(t)
	contains(t, ok(t, "template", "list"), "Python and pip")
	contains(t, ok(t, "template", "show", "python"), "runtime/sandbox:python", "stable")
	contains(t, ok(t, "template", "show", "python", "--json"), `"number": 1`)
	contains(t, ok(t, "pool", "set", "python", "--min", "2", "--max", "5"), "keeps 2 to 5")
	contains(t, ok(t, "pool", "delete", "python"), "deleted the pool of python")
	tpl, v := f.fakeTemplates().template()
	p := sandbox.NewWarmPool()
	p.Project, p.Name, p.Spec.Template, p.Status.Warm = f.project, "python", tpl.GetID(), 3
	tpl.Status.Version, tpl.Status.Number = "", 0 // the version refers to it
	for _, o := range []schema.Object{tpl, v, p} {
		if err := entity.Create(t.Context(), f.store, o); err != nil {
			t.Fatal(err)
		}
	}
	contains(t, ok(t, "pool", "list"), "python", "3")
}

func TestOther(t *testing.T) {
	f := newFake(t)
	f.shop()
	contains(t, ok(t, "version", "--json"), `"instance": "abcd1234"`)
	contains(t, ok(t, "server", "status"), "abcd1234")
	contains(t, ok(t, "completion", "bash"), "__start_r")
	contains(t, ok(t, "__complete", "app", "show", ""), "shop")
	contains(t, ok(t, "__complete", "entity", "list", ""), "sandbox_pool")
	contains(t, ok(t, "route", "set", "a.example.com", "-a", "shop"), "a.example.com/ to web of shop")
	contains(t, ok(t, "app", "create", "later"), "created later", "r deploy")
	if r := run(t, false, "", "app", "create", "later"); r.code != exit.Failed {
		t.Errorf("created twice: %+v", r)
	}
	contains(t, ok(t, "app", "list"), "later")
	contains(t, ok(t, "app", "env", "set", "-a", "shop", "--secret", "--no-deploy", "T=x"), "next deployment")
	if r := f.envs[0]; r.SetSecret["T"] != "x" || r.Set != nil || r.Deploy {
		t.Errorf("env request %+v", r)
	}
	r := run(t, false, "# comment\nA=1\nexport B=\"two words\"\n", "app", "env", "set", "-a", "shop", "--no-deploy", "--stdin")
	if e := f.envs[1]; r.code != 0 || e.Set["A"] != "1" || e.Set["B"] != "two words" {
		t.Errorf("env from stdin: %+v %+v", r, e)
	}
	contains(t, ok(t, "app", "delete", "shop", "--yes"), "deleted")
	file := filepath.Join(t.TempDir(), "server.yaml")
	if err := os.WriteFile(file, []byte(ok(t, "config", "generate", "--defaults")), 0o600); err != nil {
		t.Fatal(err)
	}
	contains(t, ok(t, "config", "validate", file), "is valid")
	if err := os.WriteFile(file, []byte("ingres: {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := run(t, false, "", "config", "validate", file); r.code != exit.Failed || !strings.Contains(r.err, "ingres") {
		t.Errorf("validate: %+v", r)
	}
	b := &app.Build{Meta: schema.Meta{ID: "bld-1"}}
	a := &app.App{Meta: schema.Meta{ID: "app-x", Name: "x"}}
	f.create(a)
	b.Spec = app.BuildSpec{App: id.App(a.ID), Source: "s"}
	b.Status.Phase = app.BuildPhaseSucceeded
	f.create(b)
	contains(t, ok(t, "build", "list", "--app", "x"), "bld-1")
	if got := ok(t, "build", "logs", "bld-1"); got != "#1 [build 1/1] RUN make\n#1 | cc main.c\n" {
		t.Errorf("build logs: %q", got)
	}
}

// TestHerokusColons: a command with a colon has the hint of its first word, or one of its own.
func TestHerokusColons(t *testing.T) {
	newFake(t)
	for args, want := range map[string]string{
		"config:set A=b":    "`r env set NAME=VALUE`",
		"ps:scale web=2":    "`r scale SERVICE=N`",
		"ps:type":           "`r app status APP`",
		"domains:add x.com": "`r route set HOST --app APP`",
		"addons:create pg":  "`r addon create postgres NAME --app APP`",
		"secret set A=b":    "`r env set --secret NAME`",
		"run node -v":       "`r app run -- COMMAND`",
	} {
		if r := run(t, false, "", strings.Fields(args)...); r.code != exit.Usage || !strings.Contains(r.err, want) {
			t.Errorf("r %s: %+v", args, r)
		}
	}
}

// TestOtherToolsCommands runs commands of similar tools: the hint names commands that exist.
func TestOtherToolsCommands(t *testing.T) {
	newFake(t)
	named := regexp.MustCompile("`(r [^`]*)`")
	for path := range command.Elsewhere {
		r := run(t, false, "", strings.Fields(strings.TrimPrefix(path, "r "))...)
		if r.code != exit.Usage {
			t.Errorf("%s: %+v", path, r)
		}
		for _, m := range named.FindAllStringSubmatch(r.err, -1) {
			var args []string
			for _, word := range strings.Fields(m[1])[1:] {
				if strings.HasPrefix(word, "-") {
					break
				}
				if strings.ToLower(word) == word {
					args = append(args, word)
				}
			}
			if help := run(t, false, "", append(args, "--help")...); help.code != 0 && !strings.Contains(help.err, "needs the program runtime") {
				t.Errorf("%s: %s: %+v", path, m[1], help)
			}
		}
	}
}

func TestPutWithoutChange(t *testing.T) {
	f := newFake(t)
	f.shop()
	doc := ok(t, "entity", "get", "app", "shop")
	file := filepath.Join(t.TempDir(), "shop.yaml")
	if err := os.WriteFile(file, []byte(doc), 0o600); err != nil {
		t.Fatal(err)
	}
	contains(t, ok(t, "entity", "put", file), "unchanged app shop")
	if again := ok(t, "entity", "get", "app", "shop"); again != doc {
		t.Errorf("it changed:\n%s\n%s", doc, again)
	}
}
