package routes

import (
	"context"
	"strings"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/domain/apps"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
)

// PreviewHost returns the host of a preview that is to be made or replaced. Errors: InvalidArgument for a malformed host,
// AlreadyExists if it belongs to another project, or leads to something else.
func (s *Service) PreviewHost(ctx context.Context, a *app.App, req *app.PreviewRequest) (string, error) {
	host, err := s.previewHost(a, req)
	if err != nil {
		return "", err
	}
	_, err = s.previewRoute(ctx, a, req, host)
	return host, err
}

// ClaimPreview makes the route of a host for a preview, if there is none yet. It may be repeated. Errors: those of
// PreviewHost.
func (s *Service) ClaimPreview(ctx context.Context, a *app.App, req *app.PreviewRequest) (string, error) {
	host, err := s.previewHost(a, req)
	if err != nil {
		return "", err
	}
	taken := 0
	return host, entity.Retry(ctx, func() error {
		r, err := s.previewRoute(ctx, a, req, host)
		if r != nil || err != nil {
			return err
		}
		r = newPreviewRoute(a, req, host)
		err = entity.Create(ctx, s.Store, r)
		if taken++; errs.Is(err, errs.AlreadyExists) && taken < maxTaken { // created since it was looked for
			return errs.New(errs.Conflict, "%w", err)
		}
		if err != nil {
			return err
		}
		return s.settle(ctx, r)
	})
}

// previewHost returns the host that a request names, the one that the preview has, or the default.
func (s *Service) previewHost(a *app.App, req *app.PreviewRequest) (string, error) {
	if req.Host != "" {
		host, _, err := normalize(req.Host, "")
		if err == nil && strings.HasPrefix(host, "*") {
			err = errs.New(errs.InvalidArgument, "%q cannot be the host of a preview, which has one name", req.Host)
		}
		return host, err
	}
	if share := a.Status.Preview(req.Name); share != nil {
		return share.Host, nil
	}
	label, err := apps.PreviewLabel(a.Name, req.Name)
	if err != nil {
		return "", err
	}
	if len(s.LocalDomains) == 0 {
		return "", errs.New(errs.InvalidArgument, "the ingress has no local domain below which preview %s could have a host", req.Name).
			WithHint("name one: --host")
	}
	return label + "." + strings.ToLower(strings.Trim(s.LocalDomains[0], ".")), nil
}

// previewRoute returns the route that a preview has for a host, nil if there is none and it may be made.
func (s *Service) previewRoute(ctx context.Context, a *app.App, req *app.PreviewRequest, host string) (*app.Route, error) {
	r, err := s.find(ctx, host, "/")
	switch {
	case errs.Is(err, errs.NotFound):
		if err := s.notAnApp(ctx, host); err != nil {
			return nil, err
		}
		return nil, s.claimed(ctx, newPreviewRoute(a, req, host))
	case err != nil:
		return nil, err
	case r.Project != a.Project:
		return nil, taken(host, host)
	case r.Spec.App != a.GetID() || r.Spec.Preview != req.Name:
		return nil, errs.New(errs.AlreadyExists, "the host %s has a route already, so preview %s cannot have it", host, req.Name).
			WithHint("`r route list` shows where it leads; choose another with --host")
	}
	return r, nil
}

// notAnApp refuses a host at which an app answers without a route.
func (s *Service) notAnApp(ctx context.Context, host string) error {
	for _, d := range s.LocalDomains {
		name, ok := strings.CutSuffix(host, "."+strings.ToLower(strings.Trim(d, ".")))
		if !ok || strings.Contains(name, ".") {
			continue
		}
		list, _, err := entity.List[app.App](ctx, s.Store, entity.Query{Name: name})
		if err != nil {
			return err
		}
		if len(list) > 0 {
			return errs.New(errs.AlreadyExists, "the host %s is that of the app %s", host, name).WithHint("choose another with --host")
		}
	}
	return nil
}

func newPreviewRoute(a *app.App, req *app.PreviewRequest, host string) *app.Route {
	r := app.NewRoute()
	r.Project = a.Project
	r.Spec = app.RouteSpec{Host: host, Path: "/", Key: host + "/", App: a.GetID(), Service: app.DefaultService, Preview: req.Name}
	return r
}
