package launch

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
)

func TestSocketPathFollowsBootstrap(t *testing.T) {
	params := protowire.AppendTag(nil, 1, protowire.BytesType)
	params = protowire.AppendString(params, "id")
	params = protowire.AppendTag(params, 3, protowire.VarintType)
	params = protowire.AppendVarint(params, 2)
	params = protowire.AppendTag(params, socketDirField, protowire.BytesType)
	params = protowire.AppendString(params, "/run/x")

	path := func(sandbox string, bootstrap []byte) string {
		p, err := Shim{Namespace: "ns", Containerd: "/c.sock", Bootstrap: bytes.NewReader(bootstrap)}.socket(sandbox)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	p := path("one", params)
	if filepath.Dir(p) != "/run/x" || len(p) > 107 {
		t.Errorf("path %s", p)
	}
	if p == path("two", params) {
		t.Error("two sandboxes share a socket")
	}
	for _, none := range [][]byte{nil, []byte("not a message"), params[:len(params)-2]} {
		if p := path("one", none); filepath.Dir(p) != socketRoot {
			t.Errorf("path %s of bootstrap %q", p, none)
		}
	}
}

func TestSocketDir(t *testing.T) {
	path := func(dir, sandbox string) (string, error) {
		return Shim{SocketDir: dir, Bootstrap: strings.NewReader("")}.socket(sandbox)
	}
	if p, err := path("/run/r/abc/s", "sb-1.sandbox"); err != nil || p != "/run/r/abc/s/sb-1.sandbox" {
		t.Errorf("%q, %v", p, err)
	}
	for _, sandbox := range []string{"..", ".", "a/b", strings.Repeat("x", 100)} {
		if p, err := path("/run/r/abc/s", sandbox); err == nil {
			t.Errorf("sandbox %q has socket %q", sandbox, p)
		}
	}
}

// TestJoin: a shim whose control group is gone does not start.
func TestJoin(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	group := filepath.Join(dir, "cgroup.procs")
	spec := `{"annotations":{"dev.miren.runtime/join":"` + group + `"}}`
	if err := os.WriteFile("config.json", []byte(spec), 0o600); err != nil {
		t.Fatal(err)
	}
	s := Shim{Path: "/bin/true", Namespace: "ns", ID: "box", SocketDir: filepath.Join(dir, "s"), Bootstrap: strings.NewReader("")}
	if _, err := s.Start(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without the group: %v", err)
	}
	if _, err := os.Stat(group); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the group was made: %v", err)
	}
	if err := os.WriteFile(group, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	address, err := s.Start()
	if err != nil || address != "unix://"+filepath.Join(dir, "s", "box") {
		t.Errorf("Start = %q, %v", address, err)
	}
	if b, err := os.ReadFile(group); err != nil || string(b) != "0" {
		t.Errorf("written to the group: %q, %v", b, err)
	}
}

func FuzzBytesField(f *testing.F) {
	f.Add([]byte{0x4a, 1, 'x'})
	f.Fuzz(func(t *testing.T, message []byte) {
		bytesField(message, socketDirField) // must end, without a panic
	})
}

func TestSandboxOf(t *testing.T) {
	for spec, want := range map[string]string{
		`{}`: "id",
		`{"annotations":{"io.kubernetes.cri.container-type":"sandbox","io.kubernetes.cri.sandbox-id":"other"}}`:   "id",
		`{"annotations":{"io.kubernetes.cri.container-type":"container","io.kubernetes.cri.sandbox-id":"other"}}`: "other",
		`{"annotations":{"io.kubernetes.cri.container-type":"container"}}`:                                        "id",
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(spec), 0o600); err != nil {
			t.Fatal(err)
		}
		t.Chdir(dir)
		annotations, err := readAnnotations("id")
		if got := sandboxOf("id", annotations); err != nil || got != want {
			t.Errorf("sandboxOf with %s = %q, %v; want %q", spec, got, err, want)
		}
	}
}

func TestListenReplacesStaleSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dir", "s")
	first, err := listen(path)
	if err != nil || first == nil {
		t.Fatalf("listen: %v, %v", first, err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("socket: %v, %v", st.Mode(), err)
	}
	if again, err := listen(path); err != nil || again != nil {
		t.Errorf("listen where a shim does: %v, %v", again, err)
	}
	first.Close() // the socket stays, as after a kill
	if again, err := listen(path); err != nil || again == nil {
		t.Errorf("listen on a socket without a listener: %v, %v", again, err)
	} else {
		again.Close()
	}
}

// TestStartHandsSocketToShim has the shell be the shim.
func TestStartHandsSocketToShim(t *testing.T) {
	dir, err := os.MkdirTemp("", "shim") // short: a socket's path has a limit
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	t.Chdir(dir)
	shim := filepath.Join(dir, "shim")
	for name, content := range map[string]string{"config.json": "{}", "shim": "#!/bin/sh\necho \"$GOMAXPROCS $*\" >seen.tmp\n[ -S /proc/self/fd/3 ] && mv seen.tmp seen\nexit\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	bootstrap := protowire.AppendTag(nil, socketDirField, protowire.BytesType)
	bootstrap = protowire.AppendString(bootstrap, filepath.Join(dir, "s"))
	address, err := Shim{Path: shim, Namespace: "ns", ID: "box", Containerd: "/c", Debug: true, Bootstrap: bytes.NewReader(bootstrap)}.Start()
	if err != nil {
		t.Fatal(err)
	}
	if path, ok := strings.CutPrefix(address, "unix://"+dir+"/s/"); !ok || len(path) != 64 {
		t.Errorf("address %s", address)
	}
	pid, err := os.ReadFile("shim.pid")
	if err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile("address"); err != nil || string(b) != address {
		t.Errorf("address file: %s, %v", b, err)
	}
	n, err := strconv.Atoi(string(pid))
	if err != nil {
		t.Fatal(err)
	}
	p, err := os.FindProcess(n)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile("seen"); err != nil || string(b) != "1 -namespace ns -address /c -id box -debug\n" {
		t.Errorf("the shim saw %q, %v", b, err)
	}
}
