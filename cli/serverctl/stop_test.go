package serverctl

import (
	"bytes"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
)

// TestStopWithoutInstallation: nothing is stopped, and the output does not say so.
func TestStopWithoutInstallation(t *testing.T) {
	t.Setenv("RUNTIME_CONFIG", "")
	dir := t.TempDir()
	for _, keep := range []string{"--keep-running=false", "--keep-running"} {
		var out bytes.Buffer
		cmd := NewStop(command.New(&console.Console{Out: &out, Err: io.Discard}))
		cmd.SetArgs([]string{keep, "--state-dir=" + filepath.Join(dir, "state"), "--run-dir=" + filepath.Join(dir, "run")})
		if err := cmd.ExecuteContext(t.Context()); err != nil {
			t.Fatal(err)
		}
		if s := out.String(); !strings.Contains(s, "nothing was running") || strings.Contains(s, "stopped") {
			t.Errorf("%s: %q", keep, s)
		}
	}
}
