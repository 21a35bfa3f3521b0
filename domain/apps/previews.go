package apps

import (
	"context"
	"maps"
	"slices"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/fault"
	"miren.dev/runtime/pkg/schema"
)

// maxLabel is the longest label of a host name, in bytes.
const maxLabel = 63

// PreviewLabel returns the first label of the default host of a preview of an app. InvalidArgument if it is too long for a
// host name.
func PreviewLabel(appName, preview string) (string, error) {
	label := preview + "--" + appName
	if len(label) > maxLabel {
		return "", errs.New(errs.InvalidArgument, "the host of preview %s would begin with %s, which is longer than the %d bytes of a label", preview, label, maxLabel).
			WithHint("choose a shorter name, or another host with --host")
	}
	return label, nil
}

// Services returns the services of a version as they run. A preview has the default service, which follows the load from 0
// to 1, and those that its source names, with one sandbox each. They have no disks.
func Services(ver *app.AppVersion) []*app.Service {
	var out []*app.Service
	for i := range ver.Spec.Services {
		svc := &ver.Spec.Services[i]
		if ver.Spec.Preview == "" {
			out = append(out, svc)
			continue
		}
		set := ver.Spec.PreviewSettings
		if svc.Name != app.DefaultService && (set == nil || !slices.Contains(set.Services, svc.Name)) {
			continue
		}
		one := *svc
		one.Replicas, one.Volumes, one.Autoscale = 1, nil, nil
		if svc.Name == app.DefaultService && Port(svc) != 0 {
			auto := sandbox.Autoscale{}
			auto.SetDefaults()
			if svc.Autoscale != nil {
				auto.Concurrency, auto.Idle, auto.Suspend = svc.Autoscale.Concurrency, svc.Autoscale.Idle, svc.Autoscale.Suspend
			}
			auto.Min, auto.Max = 0, 1
			one.Autoscale = &auto
		}
		out = append(out, &one)
	}
	return out
}

// numbers returns the number of sandboxes of a service of a version, and the bounds of that number. The scale of the app is
// not for previews.
func numbers(a *app.App, ver *app.AppVersion, svc *app.Service) (int64, *sandbox.Autoscale) {
	if ver.Spec.Preview != "" {
		return svc.Replicas, svc.Autoscale
	}
	return Replicas(a, svc), Autoscale(a, svc)
}

// previewEnv adds the environment that a preview has to env, and returns the secrets of the version that it does not
// replace.
func previewEnv(ver *app.AppVersion, env map[string]string) map[string]schema.Secret {
	secrets := maps.Clone(ver.Spec.Secrets)
	if set := ver.Spec.PreviewSettings; set != nil {
		for name, value := range set.Env {
			env[name] = value
			delete(secrets, name)
		}
	}
	env[envPreview] = ver.Spec.Preview
	return secrets
}

// checkPreview refuses a preview that an app cannot have.
func checkPreview(a *app.App, req *DeployRequest) error {
	p := req.Preview
	switch {
	case p == nil:
		return nil
	case req.Canary > 0:
		return errs.New(errs.InvalidArgument, "a preview gets no share of the requests to the app's hosts").WithHint("leave out --canary, or --preview")
	}
	if p.Host == "" {
		if _, err := PreviewLabel(a.Name, p.Name); err != nil {
			return err
		}
	}
	if a.Status.Preview(p.Name) == nil && len(a.Status.Previews()) >= app.MaxPreviews {
		return errs.New(errs.FailedPrecondition, "app %s has %d previews, and cannot have more", a.Name, app.MaxPreviews).
			WithHint("`r preview list` lists them, `r preview delete NAME --app %s` ends one", a.Name)
	}
	return nil
}

// EndPreview takes a preview of an app away in one transaction: its share, its host, and its sandboxes, which finish their
// requests. It does nothing if the app has no such preview. Conflict if something changed since a was read.
func EndPreview(ctx context.Context, s entity.Store, a *app.App, name string) error {
	share := a.Status.Preview(name)
	if share == nil {
		return nil
	}
	version := share.Version
	a.Status.EndPreview(name)
	op, err := entity.UpdateStatusOp(a)
	if err != nil {
		return err
	}
	ops := []entity.Op{op}
	if !a.Status.Serves(version) {
		pools, err := Pools(ctx, s, a.GetID())
		if err != nil {
			return err
		}
		for _, p := range PoolsOfVersion(pools, version) {
			if p.Spec.State == sandbox.PoolStateRetired {
				continue
			}
			p.Spec.State = sandbox.PoolStateRetired
			if op, err = entity.UpdateSpecOp(p); err != nil {
				return err
			}
			ops = append(ops, op)
		}
	}
	routes, err := PreviewRoutes(ctx, s, a, func(preview string) bool { return preview == name })
	if err != nil {
		return err
	}
	for _, r := range routes {
		if op, err = entity.DeleteOp(r); err != nil {
			return err
		}
		ops = append(ops, op)
	}
	fault.Point("preview", "end", fault.Before)
	_, err = s.Txn(ctx, entity.TxnRequest{Ops: ops})
	fault.Point("preview", "end", fault.After)
	return entity.AsConflict(err)
}

// PreviewRoutes returns the routes of an app that belong to a preview whose name matches.
func PreviewRoutes(ctx context.Context, r entity.Reader, a *app.App, matches func(preview string) bool) ([]*app.Route, error) {
	all, _, err := entity.List[app.Route](ctx, r, entity.Where(app.RouteAttrApp, a.GetID()))
	return slices.DeleteFunc(all, func(r *app.Route) bool { return r.Spec.Preview == "" || !matches(r.Spec.Preview) }), err
}

// UnderWay reports whether the deployment of an app that is under way rolls out a preview, "" for any.
func UnderWay(ctx context.Context, r entity.Reader, a *app.App, preview string) (bool, error) {
	if a.Status.ActiveDeployment == "" {
		return false, nil
	}
	d, err := entity.Get[app.Deployment](ctx, r, a.Status.ActiveDeployment)
	if errs.Is(err, errs.NotFound) {
		return false, nil
	}
	return err == nil && d.Spec.Preview != nil && (preview == "" || d.Spec.Preview.Name == preview), err
}

// DeletePreview ends a preview of an app before its time. Errors: NotFound, and Conflict with app.DetailLease while a
// deployment of it is under way.
func (s *Service) DeletePreview(ctx context.Context, project, name, preview string) error {
	return entity.Retry(ctx, func() error {
		a, err := s.findOwn(ctx, project, name)
		if err != nil {
			return err
		}
		rolling, err := UnderWay(ctx, s.Store, a, preview)
		if err != nil {
			return err
		}
		if rolling {
			if err := checkNotHeld(ctx, s.Store, a); err != nil {
				return entity.Final(err)
			}
		}
		if a.Status.Preview(preview) == nil {
			return noPreview(a, preview)
		}
		return EndPreview(ctx, s.Store, a, preview)
	})
}

// PromotePreview makes a copy of the version of a preview the active one, without a build. Errors: NotFound if the app has
// no such preview, and those of Deploy.
func (s *Service) PromotePreview(ctx context.Context, project, name, preview string, req DeployRequest) (*app.Deployment, error) {
	a, err := s.findOwn(ctx, project, name)
	if err != nil {
		return nil, err
	}
	share := a.Status.Preview(preview)
	if share == nil {
		return nil, noPreview(a, preview)
	}
	req.Kind, req.Target = app.RolloutKindPromote, share.Version
	if req.Message == "" {
		req.Message = "promotes preview " + preview
	}
	return s.Deploy(ctx, a, req)
}

func noPreview(a *app.App, name string) error {
	return errs.New(errs.NotFound, "app %s has no preview %q", a.Name, name).
		WithHint("`r preview list` lists those that there are; `r deploy --preview %s` makes one", name)
}
