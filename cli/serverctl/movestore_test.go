package serverctl

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"miren.dev/runtime/api"
	"miren.dev/runtime/api/core"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/sqlitestore"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/instance"
	"miren.dev/runtime/pkg/schema"
	"miren.dev/runtime/testsupport/need"
)

// TestMoveStore copies the store of an installation, from the one that the last
// server had.
func TestMoveStore(t *testing.T) {
	need.Root(t)
	t.Setenv("RUNTIME_CONFIG", "")
	dir := t.TempDir()
	state, run := filepath.Join(dir, "state"), filepath.Join(dir, "run")
	from, to := filepath.Join(dir, "from.db"), filepath.Join(dir, "to.db")
	move := func(args ...string) (string, error) {
		var out, notes bytes.Buffer
		cmd := NewMoveStore(command.New(&console.Console{Out: &out, Err: &notes, JSON: true}))
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		cmd.SetArgs(append(args, "--state-dir="+state, "--run-dir="+run, "--store-url="+sqlitestore.Scheme+from))
		err := cmd.ExecuteContext(t.Context())
		return out.String(), err
	}
	target := "--to=" + sqlitestore.Scheme + to
	if _, err := move(target); !errs.Is(err, errs.NotFound) || !strings.Contains(err.Error(), "no installation") {
		t.Errorf("without an installation: %v", err)
	}
	in, err := instance.Open(state, run)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := move(); err == nil || !strings.Contains(err.Error(), "--to is missing") {
		t.Errorf("without a target: %v", err)
	}
	if _, err := move("--to=" + sqlitestore.Scheme + from); !errs.Is(err, errs.InvalidArgument) {
		t.Errorf("to the source: %v", err)
	}
	if _, err := move(target); !errs.Is(err, errs.NotFound) {
		t.Errorf("without a source: %v", err)
	}

	s, err := sqlitestore.Open(t.Context(), sqlitestore.Config{Path: from, Kinds: api.Kinds()})
	if err != nil {
		t.Fatal(err)
	}
	err = entity.Create(t.Context(), s, &core.Project{Meta: schema.Meta{Name: "p"}})
	if s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := in.Lock(); err != nil {
		t.Fatal(err)
	}
	if _, err := move(target); !errs.Is(err, errs.FailedPrecondition) || !strings.Contains(err.Error(), "is running") {
		t.Errorf("while a server runs: %v", err)
	}
	in.Unlock()
	for _, already := range []bool{false, true} {
		out, err := move(target)
		var res struct {
			Entities, Leases int
			Digest           string
			Already          bool `json:"already_there"`
		}
		if err != nil || json.Unmarshal([]byte(out), &res) != nil || res.Entities != 1 || res.Leases != 0 || len(res.Digest) != 64 || res.Already != already {
			t.Errorf("%v: %s", err, out)
		}
	}
}
