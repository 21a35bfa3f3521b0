package routes

import (
	"context"
	"reflect"
	"slices"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
)

// source is a route of app.toml in its normal form.
type source struct {
	host, path, service string
	settings            app.RouteSettings
	names               []string // of its settings
}

// sources checks the routes that the source of an app asks for.
func sources(list []app.SourceRoute) ([]source, error) {
	var out []source
	for _, r := range list {
		host, path, err := normalize(r.Host, r.Path)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(out, func(o source) bool { return o.host == host && o.path == path }) {
			return nil, errs.New(errs.InvalidArgument, "app.toml has the route %s%s twice", host, path)
		}
		s := source{host: host, path: path, service: r.Service}
		if s.service == "" {
			s.service = app.DefaultService
		}
		if r.Settings != nil {
			s.settings = *r.Settings
			s.names = settingNames(r.Settings)
			if _, err := apply(nil, ConfigureRequest{Settings: s.settings}, nil); err != nil {
				return nil, errs.Wrap(err, "route %s%s of app.toml", host, path)
			}
		}
		out = append(out, s)
	}
	return out, nil
}

// settingNames returns the names of the settings that app.toml can state and s has.
func settingNames(s *app.RouteSettings) []string {
	var out []string
	for _, x := range []struct {
		name string
		has  bool
	}{
		{"timeout", s.Timeout != nil}, {"max_body_bytes", s.MaxBodyBytes != nil}, {"allow", len(s.Allow) > 0}, {"rate", s.Rate != nil},
		{"burst", s.Burst != nil}, {"compress", s.Compress != nil}, {"sticky", s.Sticky != nil}, {"error_pages", len(s.ErrorPages) > 0},
	} {
		if x.has {
			out = append(out, x.name)
		}
	}
	return out
}

// CheckSource reports whether ApplySource could make the routes now. Errors:
// InvalidArgument for a setting that a route cannot have, AlreadyExists if a route
// leads to another app, or its host belongs to another project.
func (s *Service) CheckSource(ctx context.Context, a *app.App, list []app.SourceRoute) error {
	routes, err := sources(list)
	if err != nil {
		return err
	}
	for _, o := range routes {
		r, err := s.find(ctx, o.host, o.path)
		switch {
		case errs.Is(err, errs.NotFound):
			r = app.NewRoute()
			r.Project, r.Spec.Host, r.Spec.App = a.Project, o.host, a.GetID()
			err = s.claimed(ctx, r)
		case err == nil:
			err = s.isOf(r, a)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// isOf refuses a route that leads to another app.
func (s *Service) isOf(r *app.Route, a *app.App) error {
	if r.Project == a.Project && r.Spec.App == a.GetID() {
		return nil
	}
	return errs.New(errs.AlreadyExists, "app.toml asks for the route %s%s, which leads to another app", r.Spec.Host, r.Spec.Path).
		WithHint("`r route list` shows which; delete it there, or take it out of app.toml")
}

// ApplySource makes the routes of an app what its source says. What the source states
// of a route counts; the other settings stay as Configure left them. What an earlier
// source stated and this one does not is taken away: a setting, or a route that a
// deployment made. It may be repeated after it was interrupted. Errors: those of
// CheckSource.
func (s *Service) ApplySource(ctx context.Context, a *app.App, list []app.SourceRoute) error {
	routes, err := sources(list)
	if err != nil {
		return err
	}
	for _, o := range routes {
		if err := s.applyOne(ctx, a, o); err != nil {
			return err
		}
	}
	have, _, err := entity.List[app.Route](ctx, s.Store, entity.Where(app.RouteAttrApp, string(a.ID)))
	if err != nil {
		return err
	}
	for _, r := range have {
		if !r.Spec.FromSource && len(r.Spec.SourceSettings) == 0 ||
			slices.ContainsFunc(routes, func(o source) bool { return o.host == r.Spec.Host && o.path == r.Spec.Path }) {
			continue
		}
		if err := s.release(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

func (s *Service) applyOne(ctx context.Context, a *app.App, o source) error {
	taken := 0
	return entity.Retry(ctx, func() error {
		r, err := s.find(ctx, o.host, o.path)
		if errs.Is(err, errs.NotFound) {
			r = app.NewRoute()
			r.Project = a.Project
			r.Spec = app.RouteSpec{Host: o.host, Path: o.path, Key: o.host + o.path, App: a.GetID(), Service: o.service, FromSource: true, SourceSettings: o.names}
			if r.Spec.Settings, err = apply(nil, ConfigureRequest{Settings: o.settings}, nil); err != nil {
				return entity.Final(err)
			}
			if err := s.claimed(ctx, r); err != nil {
				return err
			}
			err = entity.Create(ctx, s.Store, r)
			if taken++; errs.Is(err, errs.AlreadyExists) && taken < maxTaken { // created since find
				return errs.New(errs.Conflict, "%w", err)
			}
			if err != nil {
				return err
			}
			return s.settle(ctx, r)
		}
		if err == nil {
			err = s.isOf(r, a)
		}
		if err != nil {
			return err
		}
		req := ConfigureRequest{Settings: o.settings}
		for _, name := range r.Spec.SourceSettings {
			if !slices.Contains(o.names, name) {
				req.Reset = append(req.Reset, name)
			}
		}
		// false is how a setting is off; pages are those of the source alone.
		for name, off := range map[string]bool{"compress": o.settings.Compress != nil && !*o.settings.Compress,
			"sticky": o.settings.Sticky != nil && !*o.settings.Sticky, "error_pages": len(o.settings.ErrorPages) > 0} {
			if off {
				req.Reset = append(req.Reset, name)
			}
		}
		settings, err := apply(r.Spec.Settings, req, nil)
		if err != nil {
			return entity.Final(err)
		}
		if r.Spec.Service == o.service && slices.Equal(r.Spec.SourceSettings, o.names) && reflect.DeepEqual(r.Spec.Settings, settings) {
			return nil
		}
		r.Spec.Service, r.Spec.Settings, r.Spec.SourceSettings = o.service, settings, o.names
		return entity.AsConflict(entity.UpdateSpec(ctx, s.Store, r)) // it may be deleted since find
	})
}

// release takes away what a source said of a route that the source does not have any
// more.
func (s *Service) release(ctx context.Context, r *app.Route) error {
	if r.Spec.FromSource {
		err := entity.Delete(ctx, s.Store, r)
		if errs.Is(err, errs.NotFound) {
			return nil
		}
		return err // Conflict: it changed; the caller comes again
	}
	var err error
	if r.Spec.Settings, err = apply(r.Spec.Settings, ConfigureRequest{Reset: r.Spec.SourceSettings}, nil); err != nil {
		return err
	}
	r.Spec.SourceSettings = nil
	return entity.AsConflict(entity.UpdateSpec(ctx, s.Store, r))
}
