// Package checkout finds the parts of the checkout that tests use: its root and
// the built toolchain.
package checkout

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"miren.dev/runtime/testsupport/need"
)

// Root returns the checkout's directory: the nearest one at or above the
// working directory that has a go.mod.
func Root(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		up := filepath.Dir(dir)
		if up == dir {
			t.Fatal("no go.mod at or above the working directory")
		}
		dir = up
	}
}

// Toolchain returns the directory of the built toolchain, which has the named
// binaries: $RUNTIME_BIN, or bin/ of the checkout. A test without them is
// skipped or fails (package need).
func Toolchain(t testing.TB, binaries ...string) string {
	t.Helper()
	dir := os.Getenv("RUNTIME_BIN")
	if dir == "" {
		dir = filepath.Join(Root(t), "bin")
	}
	for _, b := range binaries {
		if _, err := os.Stat(filepath.Join(dir, b)); err != nil {
			need.Missing(t, "needs the toolchain (make toolchain):", err)
		}
	}
	return dir
}

// DocBlock returns the fenced block of a file, such as docs/sinks.md, whose text begins with a text. A test that uses it
// proves the text that readers copy.
func DocBlock(t testing.TB, file, begins string) string {
	t.Helper()
	doc, err := os.ReadFile(filepath.Join(Root(t), file))
	if err != nil {
		t.Fatal(err)
	}
	for i, part := range strings.Split(string(doc), "\n```") {
		if _, text, ok := strings.Cut(part, "\n"); i%2 == 1 && ok && strings.HasPrefix(text, begins) {
			return text + "\n"
		}
	}
	t.Fatalf("%s has no block that begins with %q", file, begins)
	return ""
}
