package kubernetes

import (
	"context"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/egress"
	"miren.dev/runtime/pkg/errs"
)

var errNoSnapshots = errs.New(errs.Unimplemented, "the Kubernetes driver has no snapshots, pause or fork: Kubernetes does not save pods' memory").
	WithHint("run such sandboxes on a node with the driver runsc")

// open reports whether a policy permits everything that the cluster's network does.
func open(p egress.Policy) bool { return p.Mode == egress.All && len(p.Deny)+len(p.Inject) == 0 }

func noPolicy(id string) error {
	return errs.New(errs.Unimplemented, "sandbox %s: the Kubernetes driver has no egress rules per sandbox", id).
		WithHint("use network none, or a NetworkPolicy of the cluster")
}

// SetEgress accepts only the policy that permits everything.
func (d *Driver) SetEgress(_ context.Context, id string, p egress.Policy) error {
	if err := p.Validate(); err != nil {
		return err
	}
	rec, err := d.record(id)
	switch {
	case err != nil:
		return err
	case rec.Spec.Network != execution.NetworkBridge:
		return errs.New(errs.FailedPrecondition, "sandbox %s has no network", id)
	case !open(p):
		return noPolicy(id)
	}
	return nil
}

// EgressLog is not supported: nothing sees what a sandbox asks for.
func (d *Driver) EgressLog(_ context.Context, id string) ([]egress.Record, error) {
	if _, err := d.record(id); err != nil {
		return nil, err
	}
	return nil, noPolicy(id)
}

// Stats returns Unimplemented: Kubernetes gives the use of a pod only to those who may do
// anything on its node.
func (d *Driver) Stats(_ context.Context, id string) (execution.Stats, error) {
	return execution.Stats{}, errs.New(errs.Unimplemented, "sandbox %s: the Kubernetes driver does not measure what sandboxes use", id).
		WithHint("use the cluster's metrics")
}
