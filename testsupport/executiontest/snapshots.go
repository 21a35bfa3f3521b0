package executiontest

import (
	"testing"

	"miren.dev/runtime/components/execution"
)

// testSnapshots tests that a driver has snapshots, or refuses them. What they are worth is tested by components/runsc.
func testSnapshots(t *testing.T, e *Env) {
	within(t, "sandbox", func(t *testing.T) {
		s := e.spec("snapshotted")
		s.Idle = true
		e.Start(t, s)
		_, err := e.Driver.Snapshot(t.Context(), s.ID, "snapshot", execution.SnapshotOptions{Leave: true})
		if e.Lacks.Snapshots {
			restored := execution.Spec{ID: "restored", Restore: "snapshot", Network: execution.NetworkNone}
			if _, ensured := e.Driver.Ensure(t.Context(), restored); !refused(err) || ensured == nil {
				t.Errorf("Snapshot: %v, Ensure: %v", err, ensured)
			}
		} else if err != nil {
			t.Error(err)
		}
		list, err := e.Driver.ListSnapshots(t.Context())
		if want := 1; err != nil || e.Lacks.Snapshots && len(list) > 0 || !e.Lacks.Snapshots && len(list) != want {
			t.Errorf("ListSnapshots = %+v, %v", list, err)
		}
		if err := e.Driver.DeleteSnapshot(t.Context(), "snapshot"); err != nil {
			t.Error(err)
		}
		if out := e.Output(t, s.ID, guest("echo", "on")); out != "on\n" {
			t.Errorf("it goes on with %q", out)
		}
	})
}
