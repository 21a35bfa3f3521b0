package private

import (
	"bytes"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/testsupport/need"
)

func TestMain(m *testing.M) { os.Exit(Main(m)) }

// TestMainHidesMounts looks for a mount of this process in the one that started it.
func TestMainHidesMounts(t *testing.T) {
	need.Root(t)
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(dir, 0)
	for file, want := range map[string]bool{"/proc/self/mounts": true, fmt.Sprintf("/proc/%d/mounts", os.Getppid()): false} {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if got := bytes.Contains(b, []byte(" "+dir+" ")); got != want {
			t.Errorf("%s has the mount: %v, want %v", file, got, want)
		}
	}
}
