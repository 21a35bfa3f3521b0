package deployment

import (
	"context"
	"fmt"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/policies"
	"miren.dev/runtime/domain/quotas"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
)

// checkAdmission returns the failure of a deployment if the policy of its project does
// not permit, or its quota has no room for, the sandboxes of services of a version beside those that run, which
// the deployment keeps.
func (r *rollout) checkAdmission(ctx context.Context, ver *app.AppVersion, services []*app.Service) (*app.Failure, error) {
	if r.Admit == nil {
		return nil, nil
	}
	var ops []entity.Op
	for _, svc := range services {
		p, err := r.poolFor(ctx, ver, svc)
		if err != nil {
			return nil, err
		}
		sb := sandbox.NewSandbox()
		sb.Project, sb.Spec.App, sb.Spec.Template = r.app.Project, r.app.GetID(), p.Spec.Template
		op, err := entity.CreateOp(sb)
		if err != nil {
			return nil, err
		}
		for range p.Wanted() {
			ops = append(ops, op)
		}
	}
	err := r.Admit(ctx, ops)
	if f := refusal(err); f != nil {
		return f, nil
	}
	return nil, err
}

// refusal returns the failure for the refusal of a policy or quota, nil for other
// errors.
func refusal(err error) *app.Failure {
	if policies.Refused(err) {
		return &app.Failure{Reason: app.FailureReasonPolicy, Message: err.Error(), Hint: errs.HintOf(err)}
	}
	if !quotas.Refused(err) {
		return nil
	}
	return &app.Failure{
		Reason: app.FailureReasonCapacity, Message: fmt.Sprintf("the new version has no room beside what runs: %v", err),
		Hint: errs.HintOf(err),
	}
}
