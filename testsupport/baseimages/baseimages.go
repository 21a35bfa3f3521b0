// Package baseimages gives tests base images that are made once per machine, by
// a process without the race detector, which would make this take many times as
// long.
package baseimages

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"miren.dev/runtime/testsupport/checkout"
)

// Dir returns the folder of the images that all tests of a machine share:
// baseimages/ in $RUNTIME_CACHE, or in ~/.cache/miren-runtime.
func Dir(t testing.TB) string {
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

var made sync.Map // images already made

// Make makes the images with these names, as Dockerfiles use them, unless they exist. Tests that need the same image at
// the same time, in this process or another, wait for each other.
func Make(t testing.TB, names ...string) {
	t.Helper()
	names = slices.DeleteFunc(slices.Clone(names), func(n string) bool { _, ok := made.Load(n); return ok })
	if len(names) == 0 {
		return
	}
	root, bin := checkout.Root(t), filepath.Join(t.TempDir(), "baseimages")
	run := func(name string, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("base images: %v\n%s", err, out)
		}
	}
	// Not "go run": when the test ends early, the program that it started would
	// keep running.
	run("go", "build", "-o", bin, "./components/baseimage/cmd/baseimages")
	run(bin, append([]string{"-dir", Dir(t), "-bin", filepath.Join(root, "bin")}, names...)...)
	for _, n := range names {
		made.Store(n, true)
	}
}
