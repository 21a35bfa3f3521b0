package kubernetes

import (
	"context"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/egress"
	"miren.dev/runtime/pkg/errs"
)

var errNoSnapshots = errs.New(errs.Unimplemented, "the Kubernetes driver has no snapshots, pause or fork: Kubernetes does not save pods' memory").
	WithHint("run such sandboxes on a node with the driver runsc")

// SetEgress is not supported.
func (d *Driver) SetEgress(_ context.Context, id string, _ egress.Policy) error {
	return errs.New(errs.Unimplemented, "sandbox %s: the Kubernetes driver has no egress rules per sandbox", id).
		WithHint("use network none, or a NetworkPolicy of the cluster")
}

// EgressLog is empty: nothing is logged.
func (d *Driver) EgressLog(context.Context, string) ([]egress.Record, error) { return nil, nil }

// Snapshot is not supported.
func (d *Driver) Snapshot(context.Context, string, string, execution.SnapshotOptions) (execution.SnapshotInfo, error) {
	return execution.SnapshotInfo{}, errNoSnapshots
}

// ListSnapshots returns none.
func (d *Driver) ListSnapshots(context.Context) ([]execution.SnapshotInfo, error) { return nil, nil }

// DeleteSnapshot has nothing to delete.
func (d *Driver) DeleteSnapshot(context.Context, string) error { return nil }

// Stats is not supported: Kubernetes gives the use of a pod only to those who may do
// anything on its node.
func (d *Driver) Stats(_ context.Context, id string) (execution.Stats, error) {
	return execution.Stats{}, errs.New(errs.Unimplemented, "sandbox %s: the Kubernetes driver does not measure what sandboxes use", id).
		WithHint("use the cluster's metrics")
}
