package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// tree writes files with their path as content.
func tree(t *testing.T, root string, paths ...string) {
	t.Helper()
	for _, p := range paths {
		full := filepath.Join(root, p)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(full, []byte(p), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestSourceIsWhatBinariesAreBuiltFrom(t *testing.T) {
	root := t.TempDir()
	in := []string{"VERSION", "cmd/r/main.go", "entity/pgstore/migrations/0001.sql", "go.mod", "pkg/config/config.yml"}
	tree(t, root, in...)
	tree(t, root, "README.md", "bin/runtime", "docs/x.go", "e2e/e2e.go", "cmd/r/main_test.go", "cmd/r/.main.go.swp", "cmd/r/main.go~",
		".git/config", "pkg/x/testdata/a.go", "web/node_modules/a.js", "hack/dev/main.go")
	was, err := source(root)
	if err != nil {
		t.Fatal(err)
	}
	if got := changed(nil, was); !slices.Equal(got, in) {
		t.Errorf("source is %v, want %v", got, in)
	}

	if err := os.WriteFile(filepath.Join(root, "cmd/r/main.go"), []byte("longer than before"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(root, "VERSION")); err != nil {
		t.Fatal(err)
	}
	tree(t, root, "cmd/r/new.go")
	now, err := source(root)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := changed(was, now), []string{"VERSION", "cmd/r/main.go", "cmd/r/new.go"}; !slices.Equal(got, want) {
		t.Errorf("changed %v, want %v", got, want)
	}
	if got := changed(now, now); len(got) > 0 {
		t.Errorf("without a change %v changed", got)
	}
}

func TestSumFollowsContentsAndNames(t *testing.T) {
	root := t.TempDir()
	tree(t, root, "servers/ingress/a.go", "servers/ingress/b.go", "servers/rpc/c.go")
	files, err := source(root)
	if err != nil {
		t.Fatal(err)
	}
	paths := below(files, ingressDir)
	first, err := sum(root, paths)
	if err != nil || len(paths) != 2 {
		t.Fatalf("%v: %v", paths, err)
	}
	if err := os.WriteFile(filepath.Join(root, "servers/ingress/a.go"), []byte("new"), 0o644); err != nil {
		t.Fatal(err)
	}
	if second, err := sum(root, paths); err != nil || second == first {
		t.Errorf("the sum stays %s after a change, %v", second, err)
	}
}

func TestPortIsKeptUnlessTaken(t *testing.T) {
	t.Setenv("DEV_PORT", "")
	e := &env{state: t.TempDir(), out: &output{w: io.Discard}}
	first, err := choosePort(e)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := choosePort(e); err != nil || again != first {
		t.Errorf("port %d became %d, %v", first, again, err)
	}
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", first))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if other, err := choosePort(e); err != nil || other == first {
		t.Errorf("port %d, which another program has, was chosen, %v", other, err)
	}
	t.Setenv("DEV_PORT", "80800")
	if _, err := choosePort(e); err == nil || !strings.Contains(err.Error(), "1 to 65535") {
		t.Errorf("DEV_PORT=80800: %v", err)
	}
}

func TestCommandsTalkToThisServerAlone(t *testing.T) {
	t.Setenv("RUNTIME_SERVER", "elsewhere:7443")
	t.Setenv("RUNTIME_STATE_DIR", "/var/lib/runtime")
	e := &env{state: "/state", bin: "/bin-dev"}
	got := map[string][]string{}
	for _, v := range e.vars() {
		name, value, _ := strings.Cut(v, "=")
		got[name] = append(got[name], value)
	}
	for name, want := range map[string]string{"RUNTIME_SERVER": "", "RUNTIME_CLUSTER": "", "RUNTIME_STATE_DIR": "/state"} {
		if !slices.Equal(got[name], []string{want}) {
			t.Errorf("%s is %q, want %q once", name, got[name], want)
		}
	}
	if path := got["PATH"]; len(path) != 1 || !strings.HasPrefix(path[0], "/bin-dev:") {
		t.Errorf("PATH is %q", path)
	}
}

func TestSecondDevOfAStateDirectoryIsRefused(t *testing.T) {
	e := &env{state: t.TempDir()}
	unlock, err := e.lock()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.lock(); err == nil || !strings.Contains(err.Error(), fmt.Sprint(os.Getpid())) {
		t.Errorf("a second lock: %v", err)
	}
	unlock()
	unlock, err = e.lock()
	if err != nil {
		t.Fatalf("after the first ended: %v", err)
	}
	unlock()
}
