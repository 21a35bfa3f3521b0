package sandboxes

import (
	"cmp"
	"context"
	"net/http"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/secrets"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/egress"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// Egress returns what a sandbox may reach: nothing while it waits in a warm
// pool, then what its template says. InvalidArgument for a rule that is none.
func Egress(sb *sandbox.Sandbox) (egress.Policy, error) {
	switch e := sb.Spec.Template.Egress; {
	case sb.Spec.WarmPool != "":
		return egress.Closed(), nil
	case e == nil:
		return egress.Open(), nil
	default:
		return policyOf(sb.Project, e)
	}
}

func policyOf(project schema.ID, e *sandbox.Egress) (egress.Policy, error) {
	if len(e.Allow) > sandbox.MaxRules || len(e.Deny) > sandbox.MaxRules {
		return egress.Policy{}, errs.New(errs.InvalidArgument, "a network policy has at most %d rules that permit, and as many that deny", sandbox.MaxRules)
	}
	var inject []egress.Injection
	for _, i := range e.Inject {
		host, err := egress.ParseRule(i.Host)
		if err != nil {
			return egress.Policy{}, errs.Wrap(err, "host of secret %s", i.Secret)
		}
		inject = append(inject, egress.Injection{
			Host: host, Secret: secrets.Reference(project, i.Secret), Plain: i.PlainHTTP,
			Header: http.CanonicalHeaderKey(cmp.Or(i.Header, egress.DefaultHeader)), Format: cmp.Or(i.Format, egress.DefaultFormat),
		})
	}
	return egress.Parse(string(e.Mode), e.Allow, e.Deny, inject...)
}

// checkEgress returns the policy that a user asks for. InvalidArgument for a rule
// that is none, NotFound for a secret that the project does not have, PermissionDenied for
// one that may not be sent to the host.
func (s *Service) checkEgress(ctx context.Context, project schema.ID, e *sandbox.Egress) (egress.Policy, error) {
	p, err := policyOf(project, e)
	if err != nil {
		return p, err
	}
	for n, i := range e.Inject {
		if err := s.Secrets.Permit(ctx, project, i.Secret, p.Inject[n].Host); err != nil {
			return p, err
		}
	}
	return p, nil
}

// SetEgress changes what a sandbox may reach, at once. Errors: InvalidArgument
// for a rule that is none; NotFound for a secret that its project does not have,
// PermissionDenied for one that may not be sent to the host;
// FailedPrecondition if the sandbox has ended or waits in a warm pool.
func (s *Service) SetEgress(ctx context.Context, sid id.Sandbox, e sandbox.Egress) (*sandbox.Sandbox, error) {
	sb, err := entity.Get[sandbox.Sandbox](ctx, s.Store, sid)
	if err != nil {
		return nil, err
	}
	policy, err := s.checkEgress(ctx, sb.Project, &e)
	if err != nil {
		return nil, err
	}
	sb, err = entity.ModifySpec(ctx, s.Store, sid, func(sb *sandbox.Sandbox) error {
		switch {
		case sb.Status.Phase.Ended():
			return errEnded(sb)
		case sb.Spec.WarmPool != "":
			return errs.New(errs.FailedPrecondition, "sandbox %s waits in a warm pool, where it reaches nothing", sid)
		}
		sb.Spec.Template.Egress = &e
		return nil
	})
	if err != nil || sb.Status.Phase != sandbox.SandboxPhaseRunning {
		return sb, err // its node applies the policy when it starts
	}
	return sb, s.Node.SetEgress(ctx, sid, policy)
}

// EgressLog returns the names that a sandbox asked for lately and its
// connections, the oldest first. It is empty unless its policy has rules.
func (s *Service) EgressLog(ctx context.Context, sid id.Sandbox) ([]EgressRecord, error) {
	if _, err := entity.Get[sandbox.Sandbox](ctx, s.Store, sid); err != nil {
		return nil, err
	}
	return s.Node.EgressLog(ctx, sid)
}
