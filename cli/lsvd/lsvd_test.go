package lsvd_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/cli"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/cli/machine"
)

// result is the output and exit code of a command.
type result struct {
	out, err string
	code     int
}

// newState gives the test a state directory of its own.
func newState(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "rt-lsvd-") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	t.Setenv("RUNTIME_SERVER", "")
	t.Setenv("RUNTIME_CLUSTER", "")
	t.Setenv("RUNTIME_LSVD_STORE", "")
	t.Setenv("RUNTIME_STATE_DIR", filepath.Join(dir, "state"))
	t.Setenv("RUNTIME_RUN_DIR", filepath.Join(dir, "run"))
	t.Setenv("XDG_CONFIG_HOME", filepath.Join(dir, "config"))
	return dir
}

func run(t *testing.T, args ...string) result {
	t.Helper()
	var out, errw bytes.Buffer
	c := &console.Console{In: strings.NewReader(""), Out: &out, Err: &errw, Size: func() (int, int) { return 100, 40 }}
	code := cli.Main(append([]string{"lsvd"}, args...), c, machine.Commands)
	return result{out.String(), errw.String(), code}
}

func ok(t *testing.T, args ...string) string {
	t.Helper()
	r := run(t, args...)
	if r.code != 0 {
		t.Fatalf("r lsvd %s: exit code %d\n%s%s", strings.Join(args, " "), r.code, r.out, r.err)
	}
	return r.out
}

// fails runs a command that must fail with all of want in its message.
func fails(t *testing.T, code int, args []string, want ...string) {
	t.Helper()
	r := run(t, args...)
	if r.code != code {
		t.Errorf("r lsvd %s: exit code %d, want %d\n%s%s", strings.Join(args, " "), r.code, code, r.out, r.err)
	}
	for _, w := range want {
		if !strings.Contains(r.err, w) {
			t.Errorf("r lsvd %s: %q is missing in %s", strings.Join(args, " "), w, r.err)
		}
	}
}

func decode[T any](t *testing.T, out string) T {
	t.Helper()
	var v T
	if err := json.Unmarshal([]byte(out), &v); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	return v
}

// background runs a command until the returned stop, which returns its error.
// It returns the command's first line of output.
func background(t *testing.T, args ...string) (first string, stop func() error) {
	t.Helper()
	out := &lines{c: make(chan string, 100)}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	env := command.New(&console.Console{In: strings.NewReader(""), Out: out, Err: os.Stderr})
	root := cli.Root(env, machine.Commands)
	root.SetArgs(append([]string{"lsvd"}, args...))
	go func() { done <- root.ExecuteContext(ctx); env.Close() }()
	stopped := false
	stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		return <-done
	}
	t.Cleanup(func() { _ = stop() })
	select {
	case first = <-out.c:
	case err := <-done:
		stopped = true
		t.Fatalf("r lsvd %s ended: %v", strings.Join(args, " "), err)
	case <-time.After(time.Minute):
		t.Fatalf("r lsvd %s prints nothing", strings.Join(args, " "))
	}
	return first, stop
}

// lines sends lines as they are written.
type lines struct {
	buf bytes.Buffer
	c   chan string
}

func (l *lines) Write(p []byte) (int, error) {
	l.buf.Write(p)
	for {
		i := bytes.IndexByte(l.buf.Bytes(), '\n')
		if i < 0 {
			return len(p), nil
		}
		l.c <- string(l.buf.Next(i + 1))
	}
}

type volume struct {
	ID, Name, State string
	SizeBytes       int64 `json:"size_bytes"`
	Stored          int64 `json:"stored_bytes"`
	Encrypted       bool
	Snapshots       []string
}

func TestVolumes(t *testing.T) {
	dir := newState(t)
	ok(t, "create", "data", "--size", "1G")
	key := filepath.Join(dir, "k")
	if out := ok(t, "create", "secret", "--size", "64MiB", "--encrypt", "--key-file", key, "--json"); !strings.Contains(out, `"key_made": true`) {
		t.Errorf("create: %s", out)
	}
	if st, err := os.Stat(key); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("key file: %v %v", st, err)
	}
	list := decode[[]volume](t, ok(t, "list", "--json"))
	if len(list) != 2 || list[0].Name != "data" || list[0].SizeBytes != 1<<30 || list[0].State != "new" || !list[1].Encrypted {
		t.Fatalf("list: %+v", list)
	}
	if v := decode[volume](t, ok(t, "info", list[0].ID, "--json")); v.Name != "data" {
		t.Errorf("by ID: %+v", v)
	}
	if out := ok(t, "list"); !strings.HasPrefix(out, "data\t1 GiB\t0 B\tnew\t0\t") {
		t.Errorf("list: %q", out)
	}
	other := filepath.Join(dir, "other")
	ok(t, "create", "data", "--size", "1M", "--store", other)
	fails(t, exit.Failed, []string{"create", "data", "--size", "1G"}, `"data" exists`)
	fails(t, exit.Usage, []string{"create", "x"}, "--size is missing")
	fails(t, exit.Usage, []string{"create", "x", "--size", "10Q"}, "10G")
	fails(t, exit.Failed, []string{"create", "x", "--size", "17T"}, "16 TiB")
	fails(t, exit.Failed, []string{"create", "a/b", "--size", "1G"}, "letters")
	fails(t, exit.Usage, []string{"create", "x", "--size", "1G", "--encrypt"}, "--key-file")
	fails(t, exit.Failed, []string{"info", "dta"}, `did you mean "data"`)
	fails(t, exit.Failed, []string{"delete", "data"}, "--yes")
	fails(t, exit.Usage, []string{"delete", "data@x", "--yes"}, "snapshot")
	fails(t, exit.Failed, []string{"serve", "secret", "--foreground", "--socket", filepath.Join(dir, "s")}, "--key-file")
	fails(t, exit.Failed, []string{"serve", "data", "--key-file", key, "--foreground", "--socket", filepath.Join(dir, "s")}, "not encrypted")
	ok(t, "delete", "data", "--yes")
	ok(t, "create", "data", "--size", "2G") // the name is free again
	if list := decode[[]volume](t, ok(t, "list", "--json")); len(list) != 2 || list[0].SizeBytes != 2<<30 {
		t.Errorf("list: %+v", list)
	}
	if list := decode[[]volume](t, ok(t, "list", "--json", "--store", other)); len(list) != 1 {
		t.Errorf("list: %+v", list)
	}
}

// TestOneWins opens a volume twice on this machine, and then on another.
func TestOneWins(t *testing.T) {
	dir := newState(t)
	store := filepath.Join(dir, "store")
	t.Setenv("RUNTIME_LSVD_STORE", store)
	ok(t, "create", "data", "--size", "64M")
	_, stop := background(t, "serve", "data", "--foreground", "--socket", filepath.Join(dir, "a"))
	fails(t, exit.Failed, []string{"serve", "data", "--foreground", "--socket", filepath.Join(dir, "b")}, "in use by process", "r lsvd detach data")
	fails(t, exit.Failed, []string{"delete", "data", "--yes"}, "is open by process", "--force")
	t.Setenv("RUNTIME_STATE_DIR", filepath.Join(dir, "state2"))
	fails(t, exit.Failed, []string{"serve", "data", "--foreground", "--socket", filepath.Join(dir, "b")}, "open elsewhere: by process", "--take-over")
	_, stop2 := background(t, "serve", "data", "--foreground", "--socket", filepath.Join(dir, "b"), "--take-over")
	if err := stop(); err == nil {
		t.Error("the first owner closes what was taken from it without an error")
	}
	if err := stop2(); err != nil {
		t.Error(err)
	}
	if v := decode[volume](t, ok(t, "info", "data", "--json")); v.State != "detached" {
		t.Errorf("%+v", v)
	}
	ok(t, "check", "data")
}

// TestLogOfAnotherStore opens a copy of a store, in a directory beside the
// original.
func TestLogOfAnotherStore(t *testing.T) {
	dir := newState(t)
	one, two := filepath.Join(dir, "one"), filepath.Join(dir, "two")
	ok(t, "create", "data", "--size", "64M", "--store", one)
	_, stop := background(t, "serve", "data", "--foreground", "--socket", filepath.Join(dir, "a"), "--store", one)
	if err := os.CopyFS(two, os.DirFS(one)); err != nil {
		t.Fatal(err)
	}
	fails(t, exit.Failed, []string{"serve", "data", "--foreground", "--socket", filepath.Join(dir, "b"), "--store", two}, "belongs to the store file://"+one)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	// After a clean close the log is empty, and the copy needs --take-over
	// only.
	fails(t, exit.Failed, []string{"serve", "data", "--foreground", "--socket", filepath.Join(dir, "b"), "--store", two}, "--accept-loss")
	_, stop = background(t, "serve", "data", "--foreground", "--socket", filepath.Join(dir, "b"), "--store", two, "--accept-loss")
	if err := stop(); err != nil {
		t.Fatal(err)
	}
}

func TestCheck(t *testing.T) {
	dir := newState(t)
	ok(t, "create", "data", "--size", "64M")
	if out := ok(t, "check", "data"); !strings.Contains(out, "is sound") {
		t.Errorf("check: %s", out)
	}
	// check does not read the log of a volume in use. On a machine that never
	// had the volume there is none, and check creates none.
	store, other := filepath.Join(dir, "state", "lsvd", "store"), filepath.Join(dir, "other")
	_, stop := background(t, "serve", "data", "--foreground", "--socket", filepath.Join(dir, "a"))
	if r := run(t, "check", "data"); r.code != 0 || !strings.Contains(r.err, "is open") {
		t.Errorf("check of a volume in use: %+v", r)
	}
	t.Setenv("RUNTIME_STATE_DIR", other)
	if r := run(t, "check", "data", "--store", store); r.code != 0 || strings.Contains(r.err, "not looked at") {
		t.Errorf("check on another machine: %+v", r)
	}
	if _, err := os.Lstat(other); !os.IsNotExist(err) {
		t.Errorf("check has made the state directory: %v", err)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	// check must say so when it may not read an object.
	if os.Geteuid() != 0 {
		if err := os.Mkdir(other, 0); err != nil {
			t.Fatal(err)
		}
		if r := run(t, "check", "data", "--store", store); r.code != 0 || !strings.Contains(r.err, "was not looked at") {
			t.Errorf("check without permission: %+v", r)
		}
	}
}
