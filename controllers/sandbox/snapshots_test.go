package sandbox_test

import (
	"strings"
	"testing"

	api_sandbox "miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/controllers/kit/kittest"
	"miren.dev/runtime/controllers/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
)

// A snapshot that could not be taken since something was away, such as a killed containerd,
// is taken again. One that the driver refuses has failed.
func TestSnapshotIsTakenAgain(t *testing.T) {
	for class, phase := range map[errs.Class]api_sandbox.SnapshotPhase{
		errs.Unavailable: api_sandbox.SnapshotPhasePending, errs.FailedPrecondition: api_sandbox.SnapshotPhaseFailed,
	} {
		t.Run(string(class), func(t *testing.T) {
			e := newEnv(t)
			stop := e.control(e.store)
			sb := e.add(nil, "sleep")
			e.phase(sb, api_sandbox.SandboxPhaseRunning)
			stop()
			s := api_sandbox.NewSnapshot()
			s.Project, s.Spec.Sandbox, s.Spec.Node, s.Spec.Template = e.project, sb.GetID(), e.node, sb.Spec.Template
			e.must(entity.Create(t.Context(), e.store, s))
			snapshots := &sandbox.Snapshots{Sandboxes: e.reconciler(e.store), Logger: e.logger}
			snapshots.Sandboxes.Store = kittest.Hold(t, e.store, snapshots.Controller())
			take := func() (*api_sandbox.Snapshot, error) {
				t.Helper()
				_, failed := snapshots.Reconcile(t.Context(), s.ID)
				now, err := entity.Get[api_sandbox.Snapshot](t.Context(), e.store, s.GetID())
				e.must(err)
				return now, failed
			}
			e.refuseSnapshots(errs.New(class, "it is away"))
			got, err := take()
			if again := err != nil; got.Status.Phase != phase || again != (phase == api_sandbox.SnapshotPhasePending) || !strings.Contains(got.Status.Message, "away") {
				t.Fatalf("%v, %+v", err, got.Status)
			}
			e.machine.SetHook(nil)
			if phase == api_sandbox.SnapshotPhasePending {
				phase = api_sandbox.SnapshotPhaseReady
			}
			if got, err = take(); err != nil || got.Status.Phase != phase {
				t.Fatalf("%v, %+v", err, got.Status)
			}
		})
	}
}
