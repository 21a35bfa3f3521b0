package launch

import (
	"bytes"
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
		if got, err := sandboxOf("id"); err != nil || got != want {
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
