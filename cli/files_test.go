package cli_test

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/wait"
)

// withSandbox makes a server with a sandbox, and a directory of this machine.
func withSandbox(t *testing.T) (f *fake, dir string) {
	t.Helper()
	f, dir = newFake(t), t.TempDir()
	f.create(newSandbox("sb-abcdef0123456789", "debian"))
	return f, dir
}

func TestSandboxCopy(t *testing.T) {
	f, dir := withSandbox(t)
	script := filepath.Join(dir, "run.sh")
	if err := os.WriteFile(script, []byte("echo hi\n"), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "tree", "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"tree/a": "A", "tree/sub/b": "B"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ from, to, at, want string }{
		{script, "sb-abc:/tmp/x", "/tmp/x", "echo hi\n"},
		{script, "sb-abc:/dir", "/dir/run.sh", "echo hi\n"}, // a directory
		{script, "sb-abc:", "run.sh", "echo hi\n"},          // the working directory
		{filepath.Join(dir, "tree"), "sb-abc:/new", "/new/sub/b", "B"},
		{filepath.Join(dir, "tree"), "sb-abc:/dir", "/dir/tree/a", "A"},
		{filepath.Join(dir, "tree") + "/.", "sb-abc:/dir", "/dir/a", "A"},
	} {
		ok(t, "sandbox", "cp", c.from, c.to)
		if got := f.files.files[c.at]; string(got.data) != c.want || c.from == script && got.mode != 0o750 {
			t.Errorf("cp %s %s: %s is %q, %o", c.from, c.to, c.at, got.data, got.mode)
		}
	}
	if r := run(t, false, "input", "sandbox", "cp", "-", "sb-abc:/in"); r.code != 0 || string(f.files.files["/in"].data) != "input" {
		t.Errorf("standard input: %+v", r)
	}
	if out := ok(t, "sandbox", "cp", "sb-abc:/in", "-"); out != "input" {
		t.Errorf("standard output: %q", out)
	}
	for _, c := range []struct{ from, to, at, want string }{
		{"sb-abc:/tmp/x", "copy", "copy", "echo hi\n"},
		{"sb-abc:/tmp/x", ".", "x", "echo hi\n"},
		{"sb-abc:/dir", "out", "out/tree/sub/b", "B"},
		{"sb-abc:/dir", "tree", "tree/dir/tree/a", "A"}, // into a directory
		{"sb-abc:/dir/.", "tree", "tree/run.sh", "echo hi\n"},
	} {
		ok(t, "sandbox", "cp", c.from, filepath.Join(dir, c.to)+strings.Repeat("/", strings.Count(c.to, ".")))
		if b, err := os.ReadFile(filepath.Join(dir, c.at)); err != nil || string(b) != c.want {
			t.Errorf("cp %s %s: %s is %q, %v", c.from, c.to, c.at, b, err)
		}
	}
	if i, err := os.Stat(filepath.Join(dir, "copy")); err != nil || i.Mode() != 0o750 {
		t.Errorf("%v, %v", i, err)
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"a", "b"}, exit.Usage, "SANDBOX:PATH"},
		{[]string{"sb-abc:/a", "sb-abc:/b"}, exit.Usage, "both sides"},
		{[]string{"./missing", "sb-abc:/a"}, exit.Usage, "missing"},
		{[]string{"sb-abc:/missing", "a"}, exit.Failed, "/missing: no such file"},
		{[]string{"nothing:/a", "a"}, exit.Failed, "nothing"},
	} {
		if r := run(t, false, "", append([]string{"sandbox", "cp"}, c.args...)...); r.code != c.code || !strings.Contains(r.err, c.want) {
			t.Errorf("cp %q: %+v", c.args, r)
		}
	}
}

func TestSandboxFilesAreListed(t *testing.T) {
	f, _ := withSandbox(t)
	f.files.put("/dir/a", []byte("four"), 0o640)
	f.files.put("/dir/b", nil, 0o4755)
	contains(t, ok(t, "sandbox", "ls", "sb-abc:/dir"), "-rw-r-----\t0:0\t4 B\t", "\ta\n", "urwxr-xr-x\t0:0\t0 B\t")
	contains(t, ok(t, "sandbox", "ls", "sb-abc:/dir/a"), "4 B")
	contains(t, ok(t, "sandbox", "ls", "sb-abc:/dir", "--json"), `"size_bytes": 4`, `"name": "b"`)
	if out := ok(t, "sandbox", "ls", "sb-abc", "--json"); out != "[]\n" {
		t.Errorf("an empty directory: %q", out)
	}
	if r := run(t, false, "", "sandbox", "ls"); r.code != exit.Usage || !strings.Contains(r.err, "r sandbox list") {
		t.Errorf("%+v", r)
	}
}

func TestSandboxProcesses(t *testing.T) {
	f, _ := withSandbox(t)
	contains(t, ok(t, "sandbox", "ps", "sb-abc"), "p1\t11\trunning\tdetached\t", "p2\t12\texit 3\t", "make all")
	contains(t, ok(t, "sandbox", "ps", "sb-abc", "--json"), `"exit_code": 3`)
	for _, args := range [][]string{{"sb-abc"}, {"sb-abc", "p1"}} { // the latest that runs, and by its id
		if r := run(t, false, "", append([]string{"sandbox", "attach"}, args...)...); r.code != 7 || r.out != "out\n" {
			t.Errorf("attach %q: %+v", args, r)
		}
	}
	if r := run(t, false, "", "sandbox", "attach", "sb-abc", "p9"); r.code != exit.Failed || !strings.Contains(r.err, "r sandbox ps") {
		t.Errorf("%+v", r)
	}
	if r := run(t, false, "", "sandbox", "attach", "sb-abc", "p0"); !strings.Contains(r.err, "`r sandbox attach sb-abcdef0123456789 p0` continues it") {
		t.Errorf("%+v", r)
	}
	contains(t, ok(t, "sandbox", "metrics", "sb-abc"), "1.5s\t20 MiB of 512 MiB\t4")
	contains(t, ok(t, "sandbox", "metrics", "sb-abc", "--json"), `"pids":4`)
	contains(t, ok(t, "top"), "sb-abcdef0123456789", "20 MiB of 512 MiB")
	contains(t, ok(t, "top", "--json"), `"sandboxes": [`, `"memory_bytes": 20971520`)
	sid := strings.TrimSpace(ok(t, "sandbox", "create", "--image", "debian", "--name", "box", "--ttl", "1h", "-e", "A=b", "-w", "/srv"))
	if r := f.runs[len(f.runs)-1]; r.Idle == nil || !*r.Idle || r.Env["A"] != "b" || r.Workdir != "/srv" || len(r.Command) > 0 {
		t.Errorf("%+v", r)
	}
	contains(t, ok(t, "sandbox", "create", "--wait", "0", "--json"), `"id": "sb-`)
	contains(t, ok(t, "sandbox", "list"), sid, "box")
}

func TestSandboxForward(t *testing.T) {
	f, _ := withSandbox(t)
	if out := ok(t, "sandbox", "ports", "sb-abc"); out != "80\n8080\n" {
		t.Errorf("ports: %q", out)
	}
	if out := ok(t, "sandbox", "ports", "sb-abc", "--json"); !strings.Contains(out, "8080") {
		t.Errorf("ports: %q", out)
	}
	for _, bad := range []string{"x", "0", "80:", "1:70000", "-1:80"} {
		if r := run(t, false, "", "sandbox", "forward", "sb-abc", "--", "0:8080", bad); r.code != exit.Usage {
			t.Errorf("%q: %+v", bad, r)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	out, done := &lineWriter{lines: make(chan string, 10)}, make(chan error, 1)
	go func() { done <- runWith(ctx, out, "sandbox", "forward", "sb-abc", "0:8080", "0:81") }()
	ask := func(line, words string) string {
		t.Helper()
		address, _, _ := strings.Cut(line, " ")
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if words != "" {
			if _, err := io.WriteString(c, words); err != nil {
				t.Fatal(err)
			}
			if err := c.(*net.TCPConn).CloseWrite(); err != nil {
				t.Fatal(err)
			}
		}
		b, err := io.ReadAll(c)
		if err != nil {
			t.Error(err)
		}
		return string(b)
	}
	good, bad := out.next(t), out.next(t)
	if got := ask(good, "words"); got != "echo words" {
		t.Errorf("%s: %q", good, got)
	}
	if got := ask(bad, ""); got != "" {
		t.Errorf("%s: %q", bad, got)
	}
	if line := out.next(t); !strings.Contains(line, "nothing listens on port 81") {
		t.Errorf("%q", line)
	}
	// A connection that is reset here ends there too.
	address, _, _ := strings.Cut(good, " ")
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.(*net.TCPConn).SetLinger(0); err != nil {
		t.Error(err)
	}
	if _, err := io.WriteString(c, "reset"); err != nil {
		t.Error(err)
	}
	wait.Receive(t, "the connection at the sandbox", f.dialed)
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if err := wait.Receive(t, "the end of the connection", f.lost); !errs.Is(err, errs.Canceled) {
		t.Errorf("%v", err)
	}
	cancel()
	wait.Receive(t, "the end of the command", done)
}
