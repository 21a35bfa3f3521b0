package serverctl

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/need"
)

// TestRefreshImages: without images there is nothing to do, and what an earlier refresh left is read.
func TestRefreshImages(t *testing.T) {
	need.Root(t)
	t.Setenv("RUNTIME_CONFIG", "")
	dir := t.TempDir()
	refresh := func(json bool, args ...string) (string, string, error) {
		var out, notes bytes.Buffer
		cmd := NewRefreshImages(command.New(&console.Console{Out: &out, Err: &notes, JSON: json}))
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		cmd.SetArgs(append(args, "--state-dir="+filepath.Join(dir, "state"), "--run-dir="+filepath.Join(dir, "run"), "--cache-dir="+dir, "--toolchain-dir="+dir))
		err := cmd.ExecuteContext(t.Context())
		return out.String(), notes.String(), err
	}
	if out, _, err := refresh(true, "--dry-run"); err != nil || strings.TrimSpace(out) != "[]" {
		t.Errorf("%q, %v", out, err)
	}
	if out, notes, err := refresh(false); err != nil || out != "" || !strings.Contains(notes, "every image has the newest packages") {
		t.Errorf("%q, %q, %v", out, notes, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "baseimages", "rounds.json"), []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, _, err := refresh(false); !errs.Is(err, errs.Corrupt) {
		t.Errorf("a rounds.json that is cut off: %v", err)
	}
}
