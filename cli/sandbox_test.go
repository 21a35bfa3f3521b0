package cli_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/cli/exit"
)

func TestExec(t *testing.T) {
	f := newFake(t)
	f.shop()
	binary := "a\x00b\xff\r\n" + strings.Repeat("x", 100<<10)
	if r := run(t, false, binary, "sandbox", "exec", "sb-abc", "--", "cat"); r.code != 0 || r.out != binary {
		t.Errorf("cat: code %d, %d bytes, %s", r.code, len(r.out), r.err)
	}
	if r := run(t, false, "", "sandbox", "exec", "sb-abc", "--", "both"); r.code != 7 || r.out != "out\n" || r.err != "err\n" {
		t.Errorf("both: %+v", r)
	}
	if r := run(t, false, "", "app", "exec", "shop", "-s", "api", "-w", "/tmp", "-e", "K=v", "--", "where"); r.out != "shop/api /tmp v" {
		t.Errorf("app exec: %+v", r)
	}
	if r := run(t, false, "in", "sandbox", "run", "--image", "debian", "--memory", "64MB", "--cpu", "0.5", "--ttl", "1h", "-e", "A=b", "--", "cat"); r.code != 0 || r.out != "in" || r.err != "waiting: no node has room\n" {
		t.Errorf("run: %+v", r)
	}
	req := f.runs[0]
	if *req.MemoryBytes != 64<<20 || *req.CPUMillis != 500 || *req.TTL != time.Hour || req.Env["A"] != "b" || req.Image != "debian" {
		t.Errorf("run request %+v", req)
	}
	sid := strings.TrimSpace(ok(t, "sandbox", "run", "--image", "debian", "--detach", "--name", "box", "--", "server"))
	if got := ok(t, "sandbox", "list", "--json"); !strings.Contains(got, sid) {
		t.Errorf("detached sandbox %s is not listed: %s", sid, got)
	}
	contains(t, ok(t, "sandbox", "stop", "box"), "stopped "+sid)
	contains(t, ok(t, "sandbox", "delete", "box"), "deleted "+sid)
}

// TestRunCode sends a program as code, as a file and on standard input.
func TestRunCode(t *testing.T) {
	f := newFake(t)
	dir := t.TempDir()
	for name, text := range map[string]string{"main.py": "print(2)", "data/a.txt": "a", "data/b/c.sh": "c"} {
		file := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(dir, "data/b/c.sh"), 0o755); err != nil {
		t.Fatal(err)
	}
	if out := ok(t, "run", "-l", "py", "--memory", "64MB", "--timeout", "5s", "--agent", "ada", "-v", "data:/data:ro", "--egress", "none", "-e", "A=b", "print(1)", "-x", "y"); out != "print(1)" {
		t.Errorf("code: %q", out)
	}
	req := f.programs[0]
	if req.Language != "py" || req.File != "" || strings.Join(req.Args, " ") != "-x y" || *req.Timeout != 5*time.Second || !*req.Keep || !*req.Stdin ||
		*req.Sandbox.MemoryBytes != 64<<20 || req.Sandbox.Agent != "ada" || req.Sandbox.Egress.Mode != sandbox.EgressModeNone ||
		req.Sandbox.Volumes[0].Disk != "data" || req.Sandbox.Volumes[0].Path != "/data" || !*req.Sandbox.Volumes[0].ReadOnly || req.Sandbox.Env["A"] != "b" {
		t.Errorf("code: %+v", req)
	}
	if out := ok(t, "run", "-f", filepath.Join(dir, "data")+":in", filepath.Join(dir, "main.py")); out != "print(2)" {
		t.Errorf("file: %q", out)
	}
	req = f.programs[1]
	var files []string
	for _, f := range req.Files {
		files = append(files, fmt.Sprintf("%s=%s %v", f.Path, f.Data, *f.Executable))
	}
	if req.Language != "" || req.File != "main.py" || strings.Join(files, ", ") != "in/a.txt=a false, in/b/c.sh=c true" {
		t.Errorf("file: %+v, %q", req, files)
	}
	if r := run(t, false, "echo hi", "run", "-l", "sh", "-"); r.code != 0 || r.out != "echo hi" || *f.programs[2].Stdin {
		t.Errorf("standard input: %+v, %+v", r, f.programs[2])
	}
}

// TestInjectedSecrets: what follows --inject-secret is about that secret, and no output has a value.
func TestInjectedSecrets(t *testing.T) {
	f := newFake(t)
	f.shop()
	t.Setenv("OPENAI", "from-env")
	if r := run(t, false, "the-value\n", "secret", "set", "openai", "--hosts", "api.openai.com,*.example.com"); r.code != 0 || strings.Contains(r.out+r.err, "the-value") {
		t.Errorf("%+v", r)
	}
	if r := run(t, false, "the-value\n", "secret", "set", "openai"); r.code != exit.Usage {
		t.Errorf("without hosts: %+v", r)
	}
	contains(t, ok(t, "secret", "set", "other", "--from-env", "OPENAI", "--hosts", "Example.org"), "other", "for example.org")
	contains(t, ok(t, "secret", "list"), "*.example.com,api.openai.com")
	list := ok(t, "secret", "list") + ok(t, "secret", "list", "--json") + ok(t, "entity", "get", "secret", "openai", "--json")
	if contains(t, list, "openai", "other", "[secret]"); strings.Contains(list, "the-value") || strings.Contains(list, "from-env") {
		t.Error(list)
	}
	ok(t, "run", "-l", "py", "--inject-secret", "openai", "--host", "api.openai.com", "--host", "*.example.com",
		"--inject-secret", "other", "--host", "example.org", "--header", "X-Api-Key: {}", "--plain-http", "1")
	got := f.programs[0].Sandbox.Egress
	want := []sandbox.Injection{
		{Secret: "openai", Host: "api.openai.com"}, {Secret: "openai", Host: "*.example.com"},
		{Secret: "other", Host: "example.org", Header: "X-Api-Key", Format: "{}", PlainHTTP: true},
	}
	if got.Mode != sandbox.EgressModeAll || !reflect.DeepEqual(got.Inject, want) {
		t.Errorf("%+v", got)
	}
	for _, args := range [][]string{{"--host", "a.example"}, {"--inject-secret", "a"}, {"--inject-secret", "a", "--host", "b", "--header", "X"}} {
		if r := run(t, false, "", append([]string{"sandbox", "egress", "set", "sb-1"}, args...)...); r.code != exit.Usage {
			t.Errorf("%q: %+v", args, r)
		}
	}
	contains(t, ok(t, "secret", "delete", "openai"), "deleted")
	if r := run(t, false, "", "secret", "delete", "openai"); r.code == 0 {
		t.Errorf("%+v", r)
	}
}

func TestPauseAndFork(t *testing.T) {
	f := newFake(t)
	f.shop()
	sid := strings.TrimSpace(ok(t, "sandbox", "run", "--image", "debian", "--detach", "--name", "box", "--", "server"))
	contains(t, ok(t, "sandbox", "pause", "box"), "paused "+sid)
	contains(t, ok(t, "sandbox", "resume", "box"), "resumed "+sid)
	contains(t, ok(t, "sandbox", "extend", "box", "--ttl", "2h"), "extended "+sid)
	contains(t, ok(t, "sandbox", "show", "box", "--json"), `"ttl": "2h0m0s"`)
	contains(t, ok(t, "sandbox", "egress", "set", "box", "--allow", "pypi.org", "--deny", "10.0.0.0/8"), sid)
	contains(t, ok(t, "sandbox", "show", "box", "--json"), `"mode": "list"`, "pypi.org")
	contains(t, ok(t, "sandbox", "egress", "log", "box"), "pypi.org", "permitted", "refused", "no rule")
	snap := strings.TrimSpace(ok(t, "sandbox", "snapshot", "box", "--name", "before"))
	contains(t, ok(t, "snapshot", "list"), snap, "before")
	if out := ok(t, "sandbox", "fork", "before", "-n", "2"); out != "sb-fork0\nsb-fork1\n" {
		t.Errorf("forks of a snapshot: %q", out)
	}
	contains(t, ok(t, "sandbox", "fork", "box"), "sb-fork0")
	contains(t, ok(t, "snapshot", "delete", "before"), "deleted "+snap)
	if r := run(t, false, "", "sandbox", "fork", "nothing"); r.code != exit.Failed || !strings.Contains(r.err, "nothing") {
		t.Errorf("%+v", r)
	}
}
