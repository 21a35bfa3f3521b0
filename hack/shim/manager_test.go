package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/pkg/namespaces"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/anypb"
)

func anyJSON(t *testing.T, data string) *anypb.Any {
	t.Helper()
	if !json.Valid([]byte(data)) {
		t.Fatalf("not JSON: %s", data)
	}
	return &anypb.Any{TypeUrl: "types.containerd.io/opencontainers/runtime-spec/1/Process", Value: []byte(data)}
}

func TestSocketAddress(t *testing.T) {
	params := protowire.AppendTag(nil, 1, protowire.BytesType)
	params = protowire.AppendString(params, "id")
	params = protowire.AppendTag(params, 3, protowire.VarintType)
	params = protowire.AppendVarint(params, 2)
	params = protowire.AppendTag(params, socketDirField, protowire.BytesType)
	params = protowire.AppendString(params, "/run/x")

	ctx := namespaces.WithNamespace(context.Background(), "ns")
	address := func(sandbox string, bootstrap []byte) string {
		a, err := socketAddress(ctx, "/c.sock", sandbox, bytes.NewReader(bootstrap))
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	a := address("one", params)
	if !strings.HasPrefix(a, "unix:///run/x/") || len(a) > len("unix://")+107 {
		t.Errorf("address %s", a)
	}
	if a == address("two", params) {
		t.Error("two sandboxes share an address")
	}
	for _, none := range [][]byte{nil, []byte("not a message"), params[:len(params)-2]} {
		if a := address("one", none); strings.HasPrefix(a, "unix:///run/x/") {
			t.Errorf("address %s of bootstrap %q", a, none)
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
