package kubernetes

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"strings"

	"miren.dev/runtime/components/agentdriver"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/atomicfile"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/instance"
)

// record is what this machine keeps of a sandbox.
type record struct {
	Spec    execution.Spec // without Env, which has secrets
	UID     string         // of the pod; empty: it may not have been made
	Started bool           // the main process was started, or there is none
}

// SandboxDir is the directory that has an entry for each sandbox of an installation.
func SandboxDir(in *instance.Instance) string { return in.State("kubernetes") }

func (d *Driver) recordDir() string { return SandboxDir(d.cfg.Instance) }

func (d *Driver) recordPath(id string) string {
	return d.cfg.Instance.State("kubernetes", id+".json")
}

// record returns NotFound if there is none.
func (d *Driver) record(id string) (record, error) {
	b, err := os.ReadFile(d.recordPath(id))
	if errors.Is(err, fs.ErrNotExist) {
		return record{}, errs.New(errs.NotFound, "sandbox %s is not on this node", id)
	}
	if err != nil {
		return record{}, errs.New(errs.Unavailable, "record of sandbox %s: %w", id, err)
	}
	var r record
	if err := json.Unmarshal(b, &r); err != nil {
		return record{}, errs.New(errs.Corrupt, "record of sandbox %s: %w", id, err)
	}
	return r, nil
}

func (d *Driver) writeRecord(id string, r record) error {
	r.Spec.Env = nil
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return errs.Wrap(atomicfile.Write(d.recordPath(id), b, 0o600), "record sandbox %s", id)
}

func (d *Driver) deleteRecord(id string) error {
	if err := os.Remove(d.recordPath(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return errs.New(errs.Unavailable, "record of sandbox %s: %w", id, err)
	}
	return nil
}

// records returns the ids of all records.
func (d *Driver) records() ([]string, error) {
	entries, err := os.ReadDir(d.recordDir())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, errs.New(errs.Unavailable, "list sandboxes: %w", err)
	}
	var ids []string
	for _, e := range entries {
		if id, ok := strings.CutSuffix(e.Name(), ".json"); ok && agentdriver.CheckID(id) == nil {
			ids = append(ids, id)
		}
	}
	return ids, nil
}
