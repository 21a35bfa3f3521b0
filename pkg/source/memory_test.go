package source

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"miren.dev/runtime/pkg/errs"
)

// TestMemoryRoundTrip: files in memory become the same source as in a folder.
func TestMemoryRoundTrip(t *testing.T) {
	m, err := NewMemory([]Content{
		{Path: "cmd/run.sh", Data: []byte("#!/bin/sh\n"), Executable: true}, {Path: "Dockerfile", Data: []byte("FROM x\n")}, {Path: "again", Data: []byte("FROM x\n")},
	})
	if err != nil {
		t.Fatal(err)
	}
	s := newStore(t)
	d, missing, err := s.Missing(mustEncode(t, m.Manifest))
	if err != nil || len(missing) != 2 {
		t.Fatalf("missing %v, %v", missing, err)
	}
	var pack bytes.Buffer
	if err := m.WritePack(t.Context(), &pack, missing); err != nil {
		t.Fatal(err)
	}
	if n, err := s.ReadPack(t.Context(), d, &pack); err != nil || n != 2 {
		t.Fatalf("%d contents, %v", n, err)
	}
	dir := filepath.Join(t.TempDir(), "out")
	if err := s.Materialize(t.Context(), d, dir); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"Dockerfile": "FROM x\n", "again": "FROM x\n", "cmd/run.sh": "#!/bin/sh\n"} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	if info, err := os.Stat(filepath.Join(dir, "cmd/run.sh")); err != nil || info.Mode()&0o111 == 0 {
		t.Errorf("%v, %v", info, err)
	}
}

func TestMemoryRefusesBadPaths(t *testing.T) {
	for _, paths := range [][]string{{"a", "a"}, {"../a"}, {"/a"}, {"a/../b"}, {"a", "a/b"}, {""}, {".git/config"}} {
		var files []Content
		for _, p := range paths {
			files = append(files, Content{Path: p})
		}
		if _, err := NewMemory(files); !errs.Is(err, errs.InvalidArgument) {
			t.Errorf("%q: %v", paths, err)
		}
	}
}
