package cli_test

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/cli/exit"
)

// source makes a folder with a Dockerfile.
func sourceFolder(t *testing.T, name string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string]string{"Dockerfile": "FROM scratch\nCOPY a /\nCMD [\"/a\"]\n", "a": "hello"} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// play is the script of a deployment with a given end.
func play(end app.DeploymentPhase, failure *app.Failure) func(context.Context, *fake, *app.Deployment, func(*app.DeployEvent) error) error {
	return func(_ context.Context, _ *fake, d *app.Deployment, send func(*app.DeployEvent) error) error {
		at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		state := func(phase app.DeploymentPhase, states ...app.StepState) error {
			d.Status.Phase = phase
			d.Status.Steps = nil
			for i, s := range states {
				step := app.Step{Name: []string{"build", "start", "shift", "drain"}[i], State: s}
				begin, over := at, at.Add(1500*time.Millisecond)
				if s != app.StepStatePending {
					step.StartedAt = &begin
				}
				if s == app.StepStateDone || s == app.StepStateFailed {
					step.EndedAt = &over
				}
				d.Status.Steps = append(d.Status.Steps, step)
			}
			over := at.Add(6 * time.Second)
			d.Status.StartedAt, d.Status.EndedAt = &at, &over
			return send(&app.DeployEvent{Deployment: record(d)})
		}
		const pending, running, done, failed = app.StepStatePending, app.StepStateRunning, app.StepStateDone, app.StepStateFailed
		if err := state(app.DeploymentPhaseBuilding, running, pending, pending, pending); err != nil {
			return err
		}
		one, took := int64(1), 800*time.Millisecond
		for i, e := range []app.BuildEvent{
			{Kind: "started", Step: &one, Name: "[1/2] COPY a /"}, {Kind: "log", Step: &one, Text: "copied"}, {Kind: "done", Step: &one, Took: &took},
		} {
			e.At = at
			off := int64(i + 1)
			if err := send(&app.DeployEvent{Build: &e, BuildOffset: &off}); err != nil {
				return err
			}
		}
		d.Status.Failure = failure
		d.Status.Version = "ver-2"
		if failure != nil {
			d.Status.Previous = "ver-1"
			if failure.Reason == app.FailureReasonBuild {
				return state(end, failed, app.StepStateSkipped, app.StepStateSkipped, app.StepStateSkipped)
			}
			return state(end, done, failed, app.StepStateSkipped, app.StepStateSkipped)
		}
		d.Status.URL = "http://shop.localhost:8080/"
		if err := state(app.DeploymentPhaseStarting, done, running, pending, pending); err != nil {
			return err
		}
		return state(end, done, done, done, done)
	}
}

func ptr[T any](v T) *T { return &v }

func TestDeploy(t *testing.T) {
	f := newFake(t)
	f.shop()
	dir := sourceFolder(t, "shop")
	for _, c := range []struct {
		name   string
		script func(context.Context, *fake, *app.Deployment, func(*app.DeployEvent) error) error
		code   int
	}{
		{"deploy-ok", play(app.DeploymentPhaseSucceeded, nil), exit.OK},
		{"deploy-build", play(app.DeploymentPhaseFailed, &app.Failure{
			Reason: app.FailureReasonBuild, Message: "step COPY failed", Hint: "look at the log", LogTail: []string{"no such file", "\x1b[2Jevil"},
		}), exit.BuildFailed},
		{"deploy-crash", play(app.DeploymentPhaseFailed, &app.Failure{
			Reason: app.FailureReasonCrash, Message: "the process ended before it was ready", Service: "web", ExitCode: ptr(int64(137)), LogTail: []string{"no database"},
		}), exit.Unhealthy},
		{"deploy-port", play(app.DeploymentPhaseFailed, &app.Failure{
			Reason: app.FailureReasonPort, Message: "nothing listens on the port", ExpectedPort: ptr(int64(8080)), Listening: []int64{9999}, Hint: "listen on $PORT",
		}), exit.Unhealthy},
		{"deploy-lease", play(app.DeploymentPhaseFailed, &app.Failure{Reason: app.FailureReasonLease, Message: "another deployment took over"}), exit.LeaseHeld},
		{"deploy-canceled", play(app.DeploymentPhaseCanceled, nil), exit.Failed},
	} {
		t.Run(c.name, func(t *testing.T) {
			f.script = c.script
			ok(t, "app", "list") // the store is warm; the upload below differs only the first time
			r := run(t, false, "", "deploy", "--dir", dir, "--message", "why")
			if r.code != c.code {
				t.Errorf("code %d, want %d", r.code, c.code)
			}
			if c.name != "deploy-ok" { // there, the first upload sends files
				golden(t, c.name+".plain", r.out+"-- stderr\n"+r.err)
			}
			if strings.Contains(r.out+r.err, "\x1b[2J") {
				t.Error("control characters of a log reach the terminal")
			}
			r = run(t, true, "", "app", "deploy", "--dir", dir)
			golden(t, c.name+".terminal", screen(r.out)+"-- stderr\n"+r.err)
			r = run(t, false, "", "deploy", "--dir", dir, "--json")
			if r.code != c.code {
				t.Errorf("with --json: code %d", r.code)
			}
			lines := strings.Split(strings.TrimSpace(r.out), "\n")
			var last struct {
				Event    string `json:"event"`
				ExitCode int    `json:"exit_code"`
				Version  string `json:"version"`
			}
			if err := json.Unmarshal([]byte(lines[len(lines)-1]), &last); err != nil || last.Event != "result" || last.ExitCode != c.code || last.Version != "v2" {
				t.Errorf("last line %s: %v", lines[len(lines)-1], err)
			}
		})
	}
	req := f.deploys[0]
	if req.App != "shop" || req.Message != "why" || !req.Create || req.Source == "" {
		t.Errorf("request %+v", req)
	}
	f.held = true
	if r := run(t, false, "", "deploy", "--dir", dir); r.code != exit.LeaseHeld || !strings.Contains(r.err, "under way") {
		t.Errorf("lease held: %+v", r)
	}
}

func TestDeployOtherWays(t *testing.T) {
	f := newFake(t)
	f.shop()
	dir := sourceFolder(t, "My Shop_2")
	contains(t, ok(t, "deploy", "--dir", dir, "--plan"), "my-shop-2", "dockerfile")
	snakeCase(t, ok(t, "deploy", "--dir", dir, "--plan", "--json"))
	if r := run(t, false, "", "deploy", "--dir", t.TempDir(), "--app", "x"); r.code != exit.BuildFailed || !strings.Contains(r.err, "empty") {
		t.Errorf("an empty folder: %+v", r)
	}
	r := run(t, false, "", "deploy", "--dir", dir, "--detach")
	if r.code != 0 || !strings.Contains(r.out, "dep-") || !strings.Contains(r.err, "r app cancel my-shop-2") {
		t.Errorf("detach: %+v", r)
	}
	if len(f.deploys) != 1 || f.deploys[0].App != "my-shop-2" {
		t.Errorf("deploys %+v", f.deploys)
	}

	if err := os.WriteFile(filepath.Join(dir, "index.html"), []byte("home"), 0o644); err != nil {
		t.Fatal(err)
	}
	contains(t, ok(t, "deploy", "--dir", dir, "--plan", "--stack", "static"), "my-shop-2: static")
	ok(t, "deploy", "--dir", dir, "--detach", "--stack", "static")
	if last := f.deploys[len(f.deploys)-1]; last.Stack != "static" {
		t.Errorf("request %+v", last)
	}
	if last := f.deploys[len(f.deploys)-1]; last.Canary != nil {
		t.Errorf("a canary that nobody asked for: %d", *last.Canary)
	}
	ok(t, "deploy", "--dir", dir, "--detach", "--canary", "10")
	if last := f.deploys[len(f.deploys)-1]; last.Canary == nil || *last.Canary != 10 {
		t.Errorf("request %+v", last)
	}
	for _, percent := range []string{"0", "-1", "100", "ten"} {
		if r := run(t, false, "", "deploy", "--dir", dir, "--canary="+percent); r.code != exit.Usage || !strings.Contains(r.err, "--canary") {
			t.Errorf("--canary=%s: %+v", percent, r)
		}
	}
	if r := run(t, false, "", "deploy", "--dir", dir, "--stack", "cobol"); r.code != exit.BuildFailed || !strings.Contains(r.err, `there is no stack "cobol"`) {
		t.Errorf("a stack that does not exist: %+v", r)
	}

	// Warnings of the build come last.
	b := app.NewBuild()
	b.ID, b.Spec.App, b.Spec.Source, b.Status.Warnings = "bld-warned", "app-shop", "src", []string{"there are two lock files"}
	f.create(b)
	f.script = func(ctx context.Context, f *fake, d *app.Deployment, send func(*app.DeployEvent) error) error {
		d.Spec.Build = b.GetID()
		return play(app.DeploymentPhaseSucceeded, nil)(ctx, f, d, send)
	}
	if r := run(t, false, "", "deploy", "--dir", dir); r.code != 0 || !strings.HasSuffix(r.err, "warning: there are two lock files\n") {
		t.Errorf("warnings: %+v", r)
	}
	contains(t, ok(t, "deploy", "--dir", dir, "--json"), `"warnings":["there are two lock files"]`)
	// The server restarts while the client follows the deployment.
	asked := 0
	f.script = func(ctx context.Context, f *fake, d *app.Deployment, send func(*app.DeployEvent) error) error {
		if asked++; asked == 1 {
			d.Status.Phase = app.DeploymentPhaseBuilding
			if err := send(&app.DeployEvent{Deployment: record(d)}); err != nil {
				return err
			}
			return unavailable
		}
		return play(app.DeploymentPhaseSucceeded, nil)(ctx, f, d, send)
	}
	contains(t, ok(t, "app", "rollback", "shop", "--to", "v1"), "shop v2 serves")
	contains(t, strings.Join(f.calls, "\n"), "rollback shop v1")
	// An interrupt does not affect the deployment.
	began := make(chan struct{})
	f.script = func(ctx context.Context, f *fake, d *app.Deployment, send func(*app.DeployEvent) error) error {
		d.Status.Phase = app.DeploymentPhaseBuilding
		if err := send(&app.DeployEvent{Deployment: record(d)}); err != nil {
			return err
		}
		close(began)
		<-ctx.Done()
		return ctx.Err()
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-began
		cancel()
	}()
	out := &lineWriter{lines: make(chan string, 1000)}
	err := runWith(ctx, out, "app", "restart", "shop")
	if exit.Code(err) != exit.Interrupted {
		t.Errorf("interrupted: %v", err)
	}
	contains(t, out.all(), "continues", "r app cancel shop")
	if len(f.calls) != 1 {
		t.Errorf("calls %v", f.calls)
	}
}

// screen returns the content of a terminal after the output: it obeys cursor
// up, return and clear.
func screen(out string) string {
	var lines []string
	row := 0
	for len(out) > 0 {
		switch {
		case strings.HasPrefix(out, "\x1b["):
			end := strings.IndexAny(out, "AJHm")
			n := 0
			for _, c := range out[2:end] {
				n = n*10 + int(c-'0')
			}
			switch out[end] {
			case 'A':
				row -= n
			case 'J':
				lines = lines[:row]
			}
			out = out[end+1:]
		case out[0] == '\r':
			out = out[1:]
		default:
			text, rest, _ := strings.Cut(out, "\n")
			lines = append(lines[:row], text)
			row++
			out = rest
		}
	}
	return strings.Join(lines, "\n") + "\n"
}

// snakeCase fails for JSON with a key that is not in snake case.
func snakeCase(t *testing.T, text string) {
	t.Helper()
	var doc map[string]any
	if err := json.Unmarshal([]byte(text), &doc); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	var walk func(any)
	walk = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			for k, e := range v {
				if strings.ToLower(k) != k {
					t.Errorf("key %q in %s", k, text)
				}
				walk(e)
			}
		case []any:
			for _, e := range v {
				walk(e)
			}
		}
	}
	walk(doc)
	if s, _ := doc["services"].([]any); len(s) == 0 {
		t.Errorf("no services: %s", text)
	}
}

// repository makes a Git repository of a folder with an app below services/shop, and
// returns its URL and first commit. Its branch next has another app.toml.
func repository(t *testing.T) (url, first string) {
	t.Helper()
	dir := filepath.Dir(filepath.Dir(sourceFolder(t, "services/shop")))
	git := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "git", append([]string{"-C", dir, "-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "init.defaultBranch=main"}, args...)...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return strings.TrimSpace(string(out))
	}
	git("init", "--quiet")
	git("add", ".")
	git("commit", "--quiet", "--message", "first")
	first = git("rev-parse", "HEAD")
	git("checkout", "--quiet", "-b", "next")
	if err := os.WriteFile(filepath.Join(dir, "services/shop/app.toml"), []byte("name = \"named\"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	git("add", ".")
	git("commit", "--quiet", "--message", "second")
	git("config", "uploadpack.allowAnySHA1InWant", "true")
	return "file://" + dir, first
}

func TestDeployRepository(t *testing.T) {
	f := newFake(t)
	f.shop()
	url, first := repository(t)
	t.Setenv("TMPDIR", t.TempDir())
	for _, c := range []struct {
		fragment, app, branch string
		first                 bool
	}{
		{"#main:services/shop", "shop", "main", true},
		{"#next:services/shop", "named", "next", false},
		{"#" + first + ":services/shop", "shop", "", true},
	} {
		ok(t, "deploy", url+c.fragment, "--detach")
		last := f.deploys[len(f.deploys)-1]
		if last.App != c.app || last.Git == nil || last.Git.Branch != c.branch || (last.Git.Commit == first) != c.first || last.Git.Dirty {
			t.Errorf("%s: app %q, git %+v", c.fragment, last.App, last.Git)
		}
	}
	n := len(f.deploys)
	for want, args := range map[string][]string{
		"git cannot fetch":                  {"deploy", url + "#none"},
		"has no folder none":                {"deploy", url + "#main:none"},
		"outside of the repository":         {"deploy", url + "#main:../.."},
		"no protocol":                       {"deploy", "ext://sh -c true"},
		"is no branch":                      {"deploy", url + "#--upload-pack=x"},
		"https://user:xxxxx@127.0.0.1:1/x:": {"deploy", "https://user:hunter2@127.0.0.1:1/x"},
		"give one of them":                  {"deploy", url, "--dir", "."},
	} {
		r := run(t, false, "", args...)
		if r.code == exit.OK || !strings.Contains(r.err, want) || strings.Contains(r.err, "hunter2") {
			t.Errorf("%s: %+v, want %q", args, r, want)
		}
	}
	if len(f.deploys) != n {
		t.Error("a refused source was deployed")
	}
	if left, err := os.ReadDir(os.Getenv("TMPDIR")); err != nil || len(left) > 0 {
		t.Errorf("%d folders are still there, %v", len(left), err)
	}
}

func TestDeployImage(t *testing.T) {
	f := newFake(t)
	f.shop()
	t.Setenv("TMPDIR", t.TempDir())
	dir := t.TempDir()
	ok(t, "deploy", "--image", "registry.example.com:5000/team/web-site:1.2", "--dir", dir, "--detach")
	if last := f.deploys[len(f.deploys)-1]; last.App != "web-site" {
		t.Errorf("request %+v", last)
	}
	if err := os.WriteFile(filepath.Join(dir, "app.toml"), []byte("name = \"site\"\n[services.web]\nport = 80\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	contains(t, ok(t, "deploy", "--image", "nginx@sha256:0123", "--dir", dir, "--plan"), "site: dockerfile", "80")
	for _, image := range []string{"a b", "$HOME", "--platform=x", "a\nRUN true"} {
		if r := run(t, false, "", "deploy", "--image", image); r.code != exit.BuildFailed || !strings.Contains(r.err, "no reference of an image") {
			t.Errorf("%q: %+v", image, r)
		}
	}
	if r := run(t, false, "", "deploy", "--image", "nginx", "--stack", "go"); r.code != exit.Usage {
		t.Errorf("with --stack: %+v", r)
	}
	if left, err := os.ReadDir(os.Getenv("TMPDIR")); err != nil || len(left) > 0 {
		t.Errorf("%d folders are still there, %v", len(left), err)
	}
}
