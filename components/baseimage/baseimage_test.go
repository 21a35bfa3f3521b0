package baseimage

import (
	"archive/tar"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"miren.dev/runtime/testsupport/baseimages"
	"miren.dev/runtime/testsupport/need"
)

func TestEnsureMakesEveryRecipe(t *testing.T) {
	need.Root(t)
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

// oneFile is a recipe of a layer with one file. also runs before the image is complete.
func oneFile(also func()) *recipe {
	return &recipe{name: "x", version: "1", make: func(_ context.Context, b *builder) error {
		also()
		return b.layer(func(tw *tar.Writer) error { return put(tw, "file", 0o644, 4, strings.NewReader("text")) })
	}}
}

func TestImageIsMadeOverWhatAnInterruptedRemovalLeft(t *testing.T) {
	s := New(Config{Dir: t.TempDir()})
	r := oneFile(func() {})
	left := filepath.Join(s.cfg.Dir, r.dirName(), "blobs")
	if err := os.MkdirAll(left, 0o755); err != nil {
		t.Fatal(err)
	}
	img, err := s.ensure(t.Context(), r, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := img.read(); err != nil {
		t.Error(err)
	}
}

func TestImageThatIsCopiedThereMeanwhileIsUsed(t *testing.T) {
	from := New(Config{Dir: t.TempDir()})
	want, err := from.ensure(t.Context(), oneFile(func() {}), func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	s := New(Config{Dir: t.TempDir()})
	img, err := s.ensure(t.Context(), oneFile(func() {
		if err := os.CopyFS(filepath.Join(s.cfg.Dir, filepath.Base(want.Dir)), os.DirFS(want.Dir)); err != nil {
			t.Error(err)
		}
	}), func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	if img.Digest != want.Digest {
		t.Errorf("digest %s, want %s", img.Digest, want.Digest)
	}
	if left, _ := filepath.Glob(filepath.Join(s.cfg.Dir, ".tmp-*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
