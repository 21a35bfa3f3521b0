package cli_test

import (
	"strings"
	"testing"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/cli/exit"
	"miren.dev/runtime/entity"
)

func TestQuota(t *testing.T) {
	f := newFake(t)
	contains(t, ok(t, "quota", "set", "--disk", "100GiB", "--snapshots", "5GiB"), "100 GiB", "5 GiB", "unlimited")
	contains(t, ok(t, "quota", "set", "--disk", "unlimited", "--sandboxes", "0", "--json"), `"snapshot_bytes"`)
	p, err := entity.Get[core.Project](t.Context(), f.store, f.project)
	if err != nil {
		t.Fatal(err)
	}
	if q := p.Spec.Quota; q == nil || q.DiskBytes != nil || *q.SnapshotBytes != 5<<30 || q.Sandboxes == nil || *q.Sandboxes != 0 {
		t.Errorf("%+v", q)
	}
	for _, args := range [][]string{{}, {"--cpu", "many"}, {"--memory", "-1"}, {"--sandboxes", "-1"}, {"--fish", "1"}} {
		if r := run(t, false, "", append([]string{"quota", "set"}, args...)...); r.code != exit.Usage {
			t.Errorf("%q: %+v", args, r)
		}
	}
	if r := run(t, false, "", "quota", "show", "--project", "none"); r.code == 0 || !strings.Contains(r.err, "none") {
		t.Errorf("%+v", r)
	}
}
