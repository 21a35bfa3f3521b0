package errs_test

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"miren.dev/runtime/pkg/errs"
)

// TestClassOfMissingFile: the system's "no such file" does not say whether the
// requested thing exists. The socket of a server that is away and a program
// that is not installed give the same error.
func TestClassOfMissingFile(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	_, dial := net.Dial("unix", missing)
	_, read := os.ReadFile(missing)
	for name, err := range map[string]error{"dial": dial, "run": exec.Command(missing).Run(), "read": read} {
		if err == nil {
			t.Fatalf("%s succeeded", name)
		}
		if c := errs.ClassOf(err); c == errs.NotFound {
			t.Errorf("%s: %v has class %s", name, err, c)
		}
	}
	if c := errs.ClassOf(dial); c != errs.Unavailable {
		t.Errorf("dial: %v has class %s, want unavailable", dial, c)
	}
}
