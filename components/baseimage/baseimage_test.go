package baseimage

import (
	"os"
	"path/filepath"
	"testing"
)

// cacheDir is shared by all tests of a machine: images are made once.
func cacheDir(t *testing.T) string {
	t.Helper()
	cache := os.Getenv("RUNTIME_CACHE")
	if cache == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			t.Fatal(err)
		}
		cache = filepath.Join(home, ".cache", "miren-runtime")
	}
	return filepath.Join(cache, "baseimages")
}

func TestEnsureMakesEveryRecipe(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: package managers make root filesystems")
	}
	s := New(Config{Dir: cacheDir(t)})
	for _, name := range []string{"runtime/debian", "runtime/go:1.26", "node:22-slim", "python:3", "golang:1.26"} {
		t.Run(name, func(t *testing.T) {
			ref, err := Lookup(name)
			if err != nil {
				t.Fatal(err)
			}
			img, err := s.Ensure(t.Context(), ref, func(l string) { t.Log(l) })
			if err != nil {
				t.Fatal(err)
			}
			m, c, err := img.read()
			if err != nil {
				t.Fatal(err)
			}
			if len(m.Layers) == 0 || len(m.Layers) != len(c.RootFS.DiffIDs) {
				t.Errorf("%d layers, %d diff ids", len(m.Layers), len(c.RootFS.DiffIDs))
			}
			for _, l := range m.Layers {
				t.Logf("layer %s %d MB", l.Digest, l.Size>>20)
			}
		})
	}
}
