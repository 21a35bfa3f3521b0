package cli_test

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/pkg/source"
)

func (f *fake) lastTemplateBuild() *sandbox.BuildTemplateRequest {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.templateBuilds[len(f.templateBuilds)-1]
}

// writeFiles makes a folder with files.
func writeFiles(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestTemplateBuildOfADockerfile(t *testing.T) {
	f := newFake(t)
	dir := writeFiles(t, map[string]string{"Dockerfile": "FROM debian\n", "main.py": "print(1)\n"})
	out := ok(t, "template", "build", "shop", dir, "--title", "A shop", "-t", "beta", "-t", "latest", "--alias", "store", "--start", "serve -p 80",
		"--ready-port", "80", "--ready-path", "/", "--ready-timeout", "2m", "-e", "A=b", "-u", "me", "-w", "/srv", "--cpu", "2", "--memory", "256MiB", "--disk", "1GiB", "--no-cache")
	contains(t, out, "uploaded 2 files", "cc main.c", "shop:3 is ready, 5 MiB, tags: beta, latest")
	req := f.lastTemplateBuild()
	port, timeout, yes, cpu, memory, disk := int64(80), 2*time.Minute, true, int64(2000), int64(256<<20), int64(1<<30)
	want := &sandbox.BuildTemplateRequest{
		Project: req.Project, Name: "shop", Title: "A shop", Source: req.Source, Dockerfile: "Dockerfile", NoCache: &yes, Tags: []string{"beta", "latest"},
		Aliases: []string{"store"}, Start: []string{"/bin/sh", "-c", "serve -p 80"}, Ready: &sandbox.TemplateReady{Port: &port, Path: "/", Timeout: &timeout},
		Env: map[string]string{"A": "b"}, User: "me", Workdir: "/srv", CPUMillis: &cpu, MemoryBytes: &memory, DiskBytes: &disk,
	}
	if !reflect.DeepEqual(req, want) {
		t.Errorf("%+v\nwant\n%+v", req, want)
	}
	if err := f.sources.CheckUploaded(source.Digest(req.Source)); err != nil {
		t.Error(err)
	}
	contains(t, ok(t, "template", "build", "shop", dir, "--json"), `"event":"built"`, `"number":3`)
	if out := ok(t, "template", "build", "shop", dir, "--detach"); out != "shop:3\n" && !strings.HasSuffix(out, "\nshop:3\n") {
		t.Errorf("detached: %q", out)
	}
	failed := run(t, false, "", "template", "build", "broken", dir)
	if failed.code != exit.BuildFailed {
		t.Errorf("exit code %d", failed.code)
	}
	contains(t, failed.err, "broken:3 was not built: RUN make: exit code 2", "mend the Makefile", "r template logs broken:3")
}

func TestTemplateBuildOfSteps(t *testing.T) {
	f := newFake(t)
	dir := writeFiles(t, map[string]string{"main.py": "print(1)\n", "steps.yml": `
- from_template: python
- env: {B: "2", A: 1}
- copy: [main.py, .]
- run: [python3 main.py, root]
- workdir: /srv
`})
	contains(t, ok(t, "template", "build", "shop", dir, "--steps", filepath.Join(dir, "steps.yml")), "shop:3 is ready")
	req := f.lastTemplateBuild()
	want := []sandbox.BuildStep{
		{Kind: sandbox.BuildStepKindFromTemplate, Args: []string{"python"}},
		{Kind: sandbox.BuildStepKindEnv, Args: []string{"A", "1", "B", "2"}},
		{Kind: sandbox.BuildStepKindCopy, Args: []string{"main.py", "."}},
		{Kind: sandbox.BuildStepKindRun, Args: []string{"python3 main.py", "root"}},
		{Kind: sandbox.BuildStepKindWorkdir, Args: []string{"/srv"}},
	}
	if !reflect.DeepEqual(req.Steps, want) || req.Source == "" || req.Dockerfile != "" {
		t.Errorf("%+v", req)
	}
	// Without a copy step no files are sent.
	alone := filepath.Join(writeFiles(t, map[string]string{"steps.yml": "- run: 'true'\n"}), "steps.yml")
	contains(t, ok(t, "template", "build", "shop", "/does/not/exist", "--steps", alone), "is ready")
	if req := f.lastTemplateBuild(); req.Source != "" {
		t.Errorf("%+v", req)
	}
	for text, says := range map[string]string{
		"- fetch: x\n":          `"fetch" is not a step`,
		"- {run: a, copy: b}\n": "entry 1 has 2 keys",
		"run: a\n":              "it is a list such as",
		"- copy: [[a], b]\n":    "copy",
	} {
		file := filepath.Join(writeFiles(t, map[string]string{"steps.yml": text}), "steps.yml")
		if r := run(t, false, "", "template", "build", "shop", "--steps", file); r.code == 0 || !strings.Contains(r.err, says) {
			t.Errorf("%q: %+v", text, r)
		}
	}
}

func TestTemplateChanges(t *testing.T) {
	f := newFake(t)
	contains(t, ok(t, "template", "build", "shop", "--image", "debian"), "is ready")
	if req := f.lastTemplateBuild(); req.Image != "debian" || req.Dockerfile != "" || req.Source != "" {
		t.Errorf("%+v", req)
	}
	if r := run(t, false, "", "template", "build", "shop", "--image", "debian", "--steps", "x"); r.code != exit.Usage {
		t.Errorf("%+v", r)
	}
	contains(t, ok(t, "template", "logs", "shop"), "cc main.c")
	if r := run(t, false, "", "template", "logs", "python"); r.code == 0 || !strings.Contains(r.err, "has no build") {
		t.Errorf("%+v", r)
	}
	contains(t, ok(t, "template", "tag", "shop:3", "latest"), "beta, latest")
	ok(t, "template", "tag", "--remove", "shop", "beta")
	ok(t, "template", "alias", "shop", "store")
	ok(t, "template", "alias", "--remove", "shop", "store")
	ok(t, "template", "delete", "shop:2")
	ok(t, "template", "delete", "shop", "--yes")
	if r := run(t, false, "", "template", "delete", "shop"); r.code == 0 {
		t.Errorf("deleted without a question: %+v", r)
	}
	want := []string{
		"tag shop:3 latest false", "tag shop beta true", "alias shop store false", "alias shop store true", "delete template shop:2", "delete template shop",
	}
	if !slices.Equal(f.calls, want) {
		t.Errorf("calls %q, want %q", f.calls, want)
	}
}
