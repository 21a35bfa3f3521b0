package atomicfile_test

import (
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"

	"miren.dev/runtime/pkg/atomicfile"
)

// TestFullDiskLeavesTheOldFile has the kernel refuse a write in its middle, as a
// full disk does. The limit counts for a whole process, so a child has it: the
// test binary's own log would be cut too.
func TestFullDiskLeavesTheOldFile(t *testing.T) {
	if path := os.Getenv("ATOMICFILE_FULL"); path != "" {
		writeLimited(t, path)
		return
	}
	path := filepath.Join(t.TempDir(), "file")
	if err := atomicfile.Write(path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	child := exec.Command(os.Args[0], "-test.run=^TestFullDiskLeavesTheOldFile$")
	child.Env = append(os.Environ(), "ATOMICFILE_FULL="+path)
	if out, err := child.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	holds(t, path, "old")
	if info, err := os.Stat(path); err != nil || info.Size() != 3 {
		t.Errorf("%v, %v", info, err)
	}
}

// writeLimited writes more to path than the process may.
func writeLimited(t *testing.T, path string) {
	signal.Ignore(syscall.SIGXFSZ)
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		t.Fatal(err)
	}
	limit.Cur = 8192
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		t.Fatal(err)
	}
	if err := atomicfile.Write(path, make([]byte, 1<<20), 0o600); !errors.Is(err, syscall.EFBIG) {
		t.Errorf("got %v", err)
	}
}
