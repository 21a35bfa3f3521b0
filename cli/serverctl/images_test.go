package serverctl

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/components/baseimage"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/baseimages"
	"miren.dev/runtime/testsupport/need"
)

// TestImagesOfAnotherMachine: a machine that makes no image has those of a file, and the file is a
// layout that other tools read.
func TestImagesOfAnotherMachine(t *testing.T) {
	need.Root(t)
	t.Setenv("RUNTIME_CONFIG", "")
	baseimages.Make(t, "runtime/debian", "runtime/node:22")
	dir := t.TempDir()
	run := func(make func(*command.Env) *cobra.Command, cache string, args ...string) ([]baseimage.Archived, error) {
		t.Helper()
		var out, notes bytes.Buffer
		cmd := make(command.New(&console.Console{Out: &out, Err: &notes, JSON: true}))
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		cmd.SetArgs(append(args, "--state-dir="+filepath.Join(dir, "state"), "--run-dir="+filepath.Join(dir, "run"), "--cache-dir="+cache, "--toolchain-dir="+dir))
		err := cmd.ExecuteContext(t.Context())
		var list []baseimage.Archived
		if err == nil {
			err = json.Unmarshal(out.Bytes(), &list)
		}
		return list, err
	}
	file, there := filepath.Join(dir, "images.tar"), filepath.Join(dir, "there")
	here := filepath.Dir(baseimages.Dir(t))
	sent, err := run(NewExportImages, here, file, "runtime/debian", "node:22")
	if err != nil || len(sent) != 2 {
		t.Fatalf("exported %+v, %v", sent, err)
	}
	if _, err := run(NewExportImages, here, file, "runtime/debian"); !errs.Is(err, errs.FailedPrecondition) {
		t.Errorf("an export over a file: %v", err)
	}
	if _, err := run(NewExportImages, there, filepath.Join(dir, "none.tar")); !errs.Is(err, errs.NotFound) {
		t.Errorf("an export of nothing: %v", err)
	}
	if got, err := run(NewImportImages, there, file); err != nil || len(got) != 2 || got[0].Kept || got[0].Other != "" || got[1].Other != "" {
		t.Fatalf("imported %+v, %v", got, err)
	}
	// Nothing that makes images is found by this machine.
	t.Setenv("PATH", dir)
	for _, name := range []string{"runtime/debian", "node:22"} {
		ref, err := baseimage.Lookup(name)
		if err != nil {
			t.Fatal(err)
		}
		s := baseimage.New(baseimage.Config{Dir: filepath.Join(there, "baseimages"), BinDir: dir})
		if _, err := s.Ensure(t.Context(), ref, func(l string) { t.Errorf("%s: %s", name, l) }); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := os.WriteFile(file, []byte(strings.Repeat("x", 2000)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := run(NewImportImages, there, file); !errs.Is(err, errs.InvalidArgument) {
		t.Errorf("a file that is no archive: %v", err)
	}
}
