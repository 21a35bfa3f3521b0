package baseimage

import (
	"os"
	"testing"

	"miren.dev/runtime/testsupport/baseimages"
)

func TestEnsureMakesEveryRecipe(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: package managers make root filesystems")
	}
	names := []string{"runtime/debian", "runtime/go:1.26", "node:22-slim", "python:3", "golang:1.26"}
	baseimages.Make(t, names...)
	s := New(Config{Dir: baseimages.Dir(t)})
	for _, name := range names {
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
