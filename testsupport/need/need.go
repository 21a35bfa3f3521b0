// Package need checks that the machine has what a test needs. Without it a test
// is skipped; with RUNTIME_TEST_ALL set, as make test does, it fails instead.
package need

import (
	"os"
	"os/exec"
	"testing"
)

// Root is for tests that only root can run.
func Root(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		Missing(t, "needs root")
	}
}

// Tools is for tests that run the named programs, which are on the PATH.
func Tools(t testing.TB, names ...string) {
	t.Helper()
	for _, n := range names {
		if _, err := exec.LookPath(n); err != nil {
			Missing(t, err)
		}
	}
}

// Missing skips the test, or fails it, and says what the machine lacks.
func Missing(t testing.TB, why ...any) {
	t.Helper()
	if os.Getenv("RUNTIME_TEST_ALL") != "" {
		t.Fatal(why...)
	}
	t.Skip(why...)
}
