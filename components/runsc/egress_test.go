package runsc_test

import (
	"reflect"
	"testing"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/egress"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/runsctest"
)

// TestSnapshotHasTheNetworkPolicy: a sandbox that is resumed, and its fork, have the
// policy that it had last, unless another is named.
func TestSnapshotHasTheNetworkPolicy(t *testing.T) {
	m := machine{runsctest.New(t)}
	defer m.deleteSnapshots(t)
	s := m.spec("limited", "sleep")
	s.Network = execution.NetworkBridge
	m.ensure(t, s)
	list, err := egress.Parse("list", []string{"example.com"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Driver.SetEgress(t.Context(), s.ID, list); err != nil {
		t.Fatal(err)
	}
	m.snapshot(t, s.ID, "one", false)
	if err := m.Driver.SetEgress(t.Context(), s.ID, egress.Open()); !errs.Is(err, errs.FailedPrecondition) {
		t.Errorf("SetEgress of a paused sandbox: %v", err)
	}
	closed := egress.Closed()
	for _, c := range []struct {
		id     string
		egress *egress.Policy
		want   egress.Policy
	}{{s.ID, nil, list}, {"fork", nil, list}, {"closed-fork", &closed, closed}} {
		m.ensure(t, execution.Spec{ID: c.id, Network: execution.NetworkBridge, MemoryBytes: s.MemoryBytes, CPUMillis: s.CPUMillis, Restore: "one", Egress: c.egress})
		if got, ok := m.Driver.Policy(c.id); !ok || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s has the policy %v, %v; want %v", c.id, got, ok, c.want)
		}
	}
	for _, id := range []string{s.ID, "fork", "closed-fork"} {
		if err := m.Driver.Delete(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
}
