package process

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestBoundedLog(t *testing.T) {
	name := filepath.Join(t.TempDir(), "server.log")
	f, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := BoundedLog(f).(*boundedFile)
	w.max = 1000
	line := strings.Repeat("x", 99) + "\n"
	for range 50 {
		if n, err := w.Write([]byte(line)); n != len(line) || err != nil {
			t.Fatal(n, err)
		}
	}
	for _, file := range []string{name, name + ".1"} {
		st, err := os.Stat(file)
		if err != nil || st.Size() > 1200 || st.Size() == 0 {
			t.Errorf("%s: %v %v", file, st, err)
		}
	}
}

// TestBoundedLogNeedsNoPathLater: a process that gave up its privileges may not
// open files in the directory any more.
func TestBoundedLogNeedsNoPathLater(t *testing.T) {
	dir := t.TempDir()
	f, err := os.OpenFile(filepath.Join(dir, "ingress.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := BoundedLog(f).(*boundedFile)
	w.max = 10
	moved := dir + "-moved"
	if err := os.Rename(dir, moved); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(moved) })
	for _, line := range []string{"a long first line\n", "second\n"} {
		if _, err := w.Write([]byte(line)); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]string{"ingress.log": "second\n", "ingress.log.1": "a long first line\n"} {
		if b, err := os.ReadFile(filepath.Join(moved, name)); string(b) != want {
			t.Errorf("%s: %q %v", name, b, err)
		}
	}
}
