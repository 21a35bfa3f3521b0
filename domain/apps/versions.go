package apps

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// Versions lists the versions of an app, newest first.
func Versions(ctx context.Context, r entity.Reader, a id.App) ([]*app.AppVersion, error) {
	list, _, err := entity.List[app.AppVersion](ctx, r, entity.Where(app.AppVersionAttrApp, a))
	slices.SortFunc(list, func(a, b *app.AppVersion) int { return cmp.Compare(b.Spec.Number, a.Spec.Number) })
	return list, err
}

// Deployments lists the deployments of an app.
func Deployments(ctx context.Context, r entity.Reader, a id.App) ([]*app.Deployment, error) {
	list, _, err := entity.List[app.Deployment](ctx, r, entity.Where(app.DeploymentAttrApp, a))
	return list, err
}

// Builds lists the builds of an app.
func Builds(ctx context.Context, r entity.Reader, a id.App) ([]*app.Build, error) {
	list, _, err := entity.List[app.Build](ctx, r, entity.Where(app.BuildAttrApp, a))
	return list, err
}

// VersionName returns the name of version n of an app, as users see it.
func VersionName(appName string, n int64) string {
	return schema.ChildName(appName, fmt.Sprintf("v%d", n), schema.MaxName)
}

// activeVersion is ActiveVersion for an app that was read already.
func activeVersion(a *app.App) (id.AppVersion, error) {
	if a.Status.Active() == "" {
		return "", errs.New(errs.FailedPrecondition, "app %s serves no version yet", a.Name).WithHint("deploy it first: `r app deploy`")
	}
	return a.Status.Active(), nil
}

// ActiveVersion returns the version that an app serves. FailedPrecondition if it
// serves none yet.
func ActiveVersion(ctx context.Context, r entity.Reader, a *app.App) (*app.AppVersion, error) {
	v, err := activeVersion(a)
	if err != nil {
		return nil, err
	}
	return entity.Get[app.AppVersion](ctx, r, v)
}

// Serving returns the versions that get requests to the app's hosts, the active one first. FailedPrecondition if none does.
func Serving(ctx context.Context, r entity.Reader, a *app.App) ([]*app.AppVersion, error) {
	if _, err := activeVersion(a); err != nil {
		return nil, err
	}
	var all []*app.AppVersion
	for _, t := range a.Status.Shares() {
		if t.Preview != "" {
			continue
		}
		ver, err := entity.Get[app.AppVersion](ctx, r, t.Version)
		if err != nil {
			return nil, err
		}
		all = append(all, ver)
	}
	return all, nil
}

// Promote gives all requests to the version that gets a share of them. FailedPrecondition if there is none, and the
// errors of Deploy.
func (s *Service) Promote(ctx context.Context, project, name string, req DeployRequest) (*app.Deployment, error) {
	a, err := s.Find(ctx, project, name)
	if err != nil {
		return nil, err
	}
	if req.Target = a.Status.Canary(); req.Target == "" {
		return nil, errs.New(errs.FailedPrecondition, "app %s has no version that gets a share of the requests", a.Name).
			WithHint("`r deploy --canary 10` gives a new version 10%% of them")
	}
	req.Kind = app.RolloutKindPromote
	return s.Deploy(ctx, a, req)
}

// Rollback rolls out an earlier version again: the one that to names ("v3", "3"
// or its id), or with "" the one that served before the active one. If a version gets
// a share of the requests, "" takes it from that version. Errors:
// NotFound for a version that does not exist, FailedPrecondition if none served
// before, or for the version of a preview, and the errors of Deploy.
func (s *Service) Rollback(ctx context.Context, project, name, to string, req DeployRequest) (*app.Deployment, error) {
	a, err := s.findOwn(ctx, project, name)
	if err != nil {
		return nil, err
	}
	if to == "" && a.Status.Canary() != "" {
		req.Kind, req.Target = app.RolloutKindPromote, a.Status.Active()
		return s.Deploy(ctx, a, req)
	}
	target, err := s.rollbackTarget(ctx, a, to)
	if err != nil {
		return nil, err
	}
	req.Kind, req.Target = app.RolloutKindRollback, target.GetID()
	if req.Message == "" {
		req.Message = fmt.Sprintf("rollback to v%d", target.Spec.Number)
	}
	return s.Deploy(ctx, a, req)
}

func (s *Service) rollbackTarget(ctx context.Context, a *app.App, to string) (*app.AppVersion, error) {
	versions, err := Versions(ctx, s.Store, a.GetID())
	if err != nil {
		return nil, err
	}
	history := fmt.Sprintf("`r app history %s` lists its versions", a.Name)
	if to != "" {
		n, nerr := strconv.ParseInt(strings.TrimPrefix(to, "v"), 10, 64)
		for _, v := range versions {
			if string(v.ID) != to && (nerr != nil || v.Spec.Number != n) {
				continue
			}
			if v.Spec.Preview != "" {
				return nil, errs.New(errs.FailedPrecondition, "v%d was made for the preview %s and did not serve the app's hosts", v.Spec.Number, v.Spec.Preview).
					WithHint("`r app promote %s --preview %s` makes the version of a preview the active one", a.Name, v.Spec.Preview)
			}
			return v, nil
		}
		return nil, errs.New(errs.NotFound, "app %s has no version %s", a.Name, to).With("kind", "app_version").WithHint("%s", history)
	}
	k := slices.IndexFunc(versions, func(v *app.AppVersion) bool { return v.GetID() == a.Status.Active() })
	if k < 0 {
		return nil, errs.New(errs.FailedPrecondition, "app %s serves no version yet", a.Name).WithHint("deploy it first: `r deploy`")
	}
	for _, v := range versions[k+1:] {
		if v.Status.ServedAt != nil && !runsSame(v, versions[k]) {
			return v, nil
		}
	}
	return nil, errs.New(errs.FailedPrecondition, "app %s has no earlier version that served and differs from the active one", a.Name).WithHint("%s", history)
}

// runsSame reports whether two versions run the same image with the same
// configuration, as after a restart.
func runsSame(a, b *app.AppVersion) bool {
	x, y := a.Spec, b.Spec
	secret := func(a, b schema.Secret) bool { return reflect.DeepEqual(a, b) }
	return x.Image == y.Image && maps.Equal(x.SourceEnv, y.SourceEnv) && maps.Equal(x.Env, y.Env) &&
		maps.EqualFunc(x.Secrets, y.Secrets, secret) && reflect.DeepEqual(x.Services, y.Services) && reflect.DeepEqual(x.Tasks, y.Tasks) && reflect.DeepEqual(x.Network, y.Network) && reflect.DeepEqual(x.Routes, y.Routes)
}

// Restart rolls out the active version in new sandboxes. FailedPrecondition if
// the app serves none yet, and the errors of Deploy.
func (s *Service) Restart(ctx context.Context, project, name string, req DeployRequest) (*app.Deployment, error) {
	a, err := s.Find(ctx, project, name)
	if err != nil {
		return nil, err
	}
	if req.Target, err = activeVersion(a); err != nil {
		return nil, err
	}
	req.Kind = app.RolloutKindRestart
	return s.Deploy(ctx, a, req)
}
