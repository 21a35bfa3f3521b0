package deployment

import (
	"context"
	"fmt"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/apps"
	"miren.dev/runtime/domain/quotas"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
)

// checkQuota returns the failure of a deployment if the quota of its project has
// no room for the sandboxes of services of a version beside those that run, which
// the deployment keeps.
func (r *rollout) checkQuota(ctx context.Context, ver *app.AppVersion, services []*app.Service) (*app.Failure, error) {
	if r.Quota == nil {
		return nil, nil
	}
	var ops []entity.Op
	for _, svc := range services {
		sb := sandbox.NewSandbox()
		sb.Project, sb.Spec.Template = r.app.Project, apps.PoolFor(r.app, ver, svc).Spec.Template
		op, err := entity.CreateOp(sb)
		if err != nil {
			return nil, err
		}
		for range svc.Replicas {
			ops = append(ops, op)
		}
	}
	err := r.Quota(ctx, ops)
	if f := overQuota(err); f != nil {
		return f, nil
	}
	return nil, err
}

// overQuota returns the failure for the refusal of a quota, nil for other errors.
func overQuota(err error) *app.Failure {
	if !quotas.Refused(err) {
		return nil
	}
	return &app.Failure{
		Reason: app.FailureReasonCapacity, Message: fmt.Sprintf("the new version has no room beside what runs: %v", err),
		Hint: errs.HintOf(err),
	}
}
