package apps

import (
	"context"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
)

// LeaseTTL is how long an app stays reserved for a deployment whose server
// died.
const LeaseTTL = 60 * time.Second

// LeaseName is the name of an app's deploy_lease.
func LeaseName(a id.App) string { return "deploy-" + string(a) }

// LeaseOf returns the deploy_lease of an app. NotFound if no deployment holds
// it.
func LeaseOf(ctx context.Context, r entity.Reader, a id.App) (*app.DeployLease, error) {
	list, _, err := entity.List[app.DeployLease](ctx, r, entity.Query{Name: LeaseName(a)})
	if err != nil {
		return nil, err
	}
	if len(list) == 0 {
		return nil, errs.New(errs.NotFound, "no deployment of app %s is under way", a)
	}
	return list[0], nil
}

// checkNotHeld returns a Conflict with app.DetailLease while a deployment of a
// is under way.
func checkNotHeld(ctx context.Context, r entity.Reader, a *app.App) error {
	l, err := LeaseOf(ctx, r, a.GetID())
	if errs.Is(err, errs.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	holder := string(l.Spec.Deployment)
	return errs.New(errs.Conflict, "another deployment of %s is under way (%s)", a.Name, holder).
		With(app.DetailLease, holder).
		WithHint("wait for it (`r app status %s`), or stop it with `r app cancel %s`", a.Name, a.Name)
}
