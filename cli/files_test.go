package cli_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"miren.dev/runtime/cli/exit"
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
