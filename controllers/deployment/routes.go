package deployment

import (
	"context"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/pkg/errs"
)

// Routes makes the routes that the source of a version asks for; routes.Service is
// one.
type Routes interface {
	CheckSource(ctx context.Context, a *app.App, list []app.SourceRoute) error
	ApplySource(ctx context.Context, a *app.App, list []app.SourceRoute) error
	// PreviewHost returns the host that a preview can have, ClaimPreview also makes its route.
	PreviewHost(ctx context.Context, a *app.App, req *app.PreviewRequest) (string, error)
	ClaimPreview(ctx context.Context, a *app.App, req *app.PreviewRequest) (string, error)
}

// checkRoutes returns an error with which the deployment ends, before anything
// changes, if the version cannot have its routes.
func (r *rollout) checkRoutes(ctx context.Context, spec *app.AppVersionSpec) (*app.Failure, error) {
	if r.Routes == nil || len(spec.Routes) == 0 || r.preview() != nil {
		return nil, nil
	}
	return routesFailure(r.Routes.CheckSource(ctx, r.app, spec.Routes))
}

// routesFailure tells what the user can mend from what time mends.
func routesFailure(err error) (*app.Failure, error) {
	switch errs.ClassOf(err) {
	case errs.InvalidArgument, errs.AlreadyExists:
		return &app.Failure{Reason: app.FailureReasonSource, Message: err.Error(), Hint: errs.HintOf(err)}, nil
	}
	return nil, err
}

// servingVersion returns the version of the deployment if it is the active one of the
// app; nil if it is not, as a canary or preview is not, or is deleted.
func (r *rollout) servingVersion(ctx context.Context) (*app.AppVersion, error) {
	if r.app.Status.Active() != r.dep.Status.Version {
		return nil, nil
	}
	ver, err := get[app.AppVersion](ctx, r.Store, r.dep.Status.Version)
	if errs.Is(err, errs.NotFound) {
		return nil, nil
	}
	return ver, err
}

// applyRoutes makes the routes of the version that serves. The deployment cannot fail
// any more, so a route that another project has taken meanwhile is left out.
func (r *rollout) applyRoutes(ctx context.Context) error {
	if r.Routes == nil {
		return nil
	}
	ver, err := r.servingVersion(ctx)
	if ver == nil || err != nil {
		return err
	}
	failure, err := routesFailure(r.Routes.ApplySource(ctx, r.app, ver.Spec.Routes))
	if failure != nil {
		r.Logger.Warn("a route of app.toml cannot be made", "app", r.app.Name, "error", failure.Message)
	}
	return err
}
