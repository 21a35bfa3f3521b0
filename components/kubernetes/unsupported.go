package kubernetes

import (
	"context"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/errs"
)

var errNoSnapshots = errs.New(errs.Unimplemented, "the Kubernetes driver has no snapshots, pause or fork: Kubernetes does not save pods' memory").
	WithHint("run such sandboxes on a node with the driver runsc")

var errNoPolicies = errs.New(errs.Unimplemented, "the Kubernetes driver has no egress rules per sandbox").
	WithHint("use network none, or a NetworkPolicy of the cluster")

// Stats returns Unimplemented: Kubernetes gives the use of a pod only to those who may do
// anything on its node.
func (d *Driver) Stats(_ context.Context, id string) (execution.Stats, error) {
	return execution.Stats{}, errs.New(errs.Unimplemented, "sandbox %s: the Kubernetes driver does not measure what sandboxes use", id).
		WithHint("use the cluster's metrics")
}
