package atomicfile_test

import (
	"errors"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"

	"miren.dev/runtime/pkg/atomicfile"
)

// TestFullDiskLeavesTheOldFile has the kernel refuse a write in its middle, as a
// full disk does.
func TestFullDiskLeavesTheOldFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := atomicfile.Write(path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	var before syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &before); err != nil {
		t.Fatal(err)
	}
	signal.Ignore(syscall.SIGXFSZ)
	defer signal.Reset(syscall.SIGXFSZ)
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 8192, Max: before.Max}); err != nil {
		t.Fatal(err)
	}
	err := atomicfile.Write(path, make([]byte, 1<<20), 0o600)
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &before); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(err, syscall.EFBIG) {
		t.Errorf("got %v", err)
	}
	holds(t, path, "old")
	if info, err := os.Stat(path); err != nil || info.Size() != 3 {
		t.Errorf("%v, %v", info, err)
	}
}
