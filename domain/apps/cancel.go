package apps

import (
	"context"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
)

// Cancel asks the deployment under way of an app to stop. Errors: NotFound if
// there is none, FailedPrecondition if its version gets the traffic already.
func (s *Service) Cancel(ctx context.Context, project, name string) (*app.Deployment, error) {
	a, err := s.Find(ctx, project, name)
	if err != nil {
		return nil, err
	}
	none := errs.New(errs.NotFound, "no deployment of %s is under way", name).WithHint("`r app history %s` lists those that ended", name)
	if a.Status.ActiveDeployment == "" {
		return nil, none
	}
	d, err := s.cancel(ctx, a.Status.ActiveDeployment,
		func(*app.Deployment) error { return none },
		errs.New(errs.FailedPrecondition, "the new version of %s takes the traffic already", name).
			WithHint("`r app rollback %s` brings the version before back", name))
	if errs.Is(err, errs.NotFound) {
		return nil, none
	}
	return d, err
}

// CancelDeployment asks a deployment to stop. FailedPrecondition if it has
// ended, or its version gets the traffic already.
func (s *Service) CancelDeployment(ctx context.Context, did id.Deployment) (*app.Deployment, error) {
	return s.cancel(ctx, did,
		func(d *app.Deployment) error {
			return errs.New(errs.FailedPrecondition, "deployment %s has ended: %s", d.ID, d.Status.Phase)
		},
		errs.New(errs.FailedPrecondition, "the new version takes the traffic already").
			WithHint("`r app rollback` brings the version before back"))
}

// cancel marks a deployment as cancelled, or returns the error for one that has
// ended or has shifted the traffic.
func (s *Service) cancel(ctx context.Context, did id.Deployment, ended func(*app.Deployment) error, shifted error) (*app.Deployment, error) {
	return entity.ModifySpec(ctx, s.Store, did, func(d *app.Deployment) error {
		switch {
		case d.Status.Phase.Ended():
			return ended(d)
		case !d.Status.Phase.Cancelable():
			return shifted
		}
		d.Spec.Cancel = true
		return nil
	})
}
