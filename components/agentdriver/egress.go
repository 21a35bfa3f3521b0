package agentdriver

import (
	"context"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/egress"
	"miren.dev/runtime/pkg/errs"
)

// Open reports whether a policy permits everything that the network does.
func Open(p egress.Policy) bool { return p.Mode == egress.All && len(p.Deny)+len(p.Inject) == 0 }

// OpenNetwork answers the calls about network policies for drivers that have none:
// what the network permits, sandboxes may. Drivers embed it.
type OpenNetwork struct {
	// Made returns the specification of a sandbox.
	Made func(ctx context.Context, id string) (execution.Spec, error)
	// Refusal says why there are no policies.
	Refusal error
}

// CheckPolicy refuses a specification with a policy that is not open.
func (n OpenNetwork) CheckPolicy(s execution.Spec) error {
	if s.Network == execution.NetworkBridge && s.Egress != nil && !Open(*s.Egress) {
		return errs.Wrap(n.Refusal, "sandbox %s", s.ID)
	}
	return nil
}

// SetEgress accepts only the policy that permits everything, and only for a sandbox
// with a network.
func (n OpenNetwork) SetEgress(ctx context.Context, id string, p egress.Policy) error {
	if err := p.Validate(); err != nil {
		return err
	}
	s, err := n.made(ctx, id)
	switch {
	case err != nil:
		return err
	case s.Network != execution.NetworkBridge:
		return errs.New(errs.FailedPrecondition, "sandbox %s has no network", id)
	case !Open(p):
		return errs.Wrap(n.Refusal, "sandbox %s", id)
	}
	return nil
}

// EgressLog is refused: nothing sees what a sandbox asks for.
func (n OpenNetwork) EgressLog(ctx context.Context, id string) ([]egress.Record, error) {
	if _, err := n.made(ctx, id); err != nil {
		return nil, err
	}
	return nil, errs.Wrap(n.Refusal, "sandbox %s", id)
}

func (n OpenNetwork) made(ctx context.Context, id string) (execution.Spec, error) {
	if err := CheckID(id); err != nil {
		return execution.Spec{}, err
	}
	return n.Made(ctx, id)
}
