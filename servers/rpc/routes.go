package rpcserver

import (
	"context"
	"regexp"
	"strings"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// routes serves app.Routes.
type routes struct{ Deps }

// key is the unique form of a host and path.
func key(host, path string) (h, p string, err error) {
	h, p = strings.TrimSuffix(strings.ToLower(strings.TrimSpace(host)), "."), path
	if p == "" {
		p = "/"
	}
	switch {
	case len(h) > maxHost || !hostName.MatchString(h):
		return "", "", errs.New(errs.InvalidArgument, "%q is not a host name", host).WithHint("without scheme, port and path: shop.example.com, *.example.com, or *")
	case !strings.HasPrefix(p, "/"):
		return "", "", errs.New(errs.InvalidArgument, "path %q does not begin with /", path)
	case len(p) > maxPath || strings.ContainsFunc(p, func(c rune) bool { return c <= ' ' || c == 0x7f || c == '?' || c == '#' }):
		return "", "", errs.New(errs.InvalidArgument, "path %q is longer than %d bytes, or holds what a path prefix cannot", path[:min(len(path), 100)], maxPath)
	}
	return h, p, nil
}

// Bounds of what is matched with requests.
const (
	maxHost = 253
	maxPath = 1024
)

// hostName is *, a name, or a name below which all are meant.
var hostName = regexp.MustCompile(`^(\*|(\*\.)?[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?)*)$`)

// retries bounds the attempts of a change among other writers.
const retries = 10

// again does f until it meets no other writer.
func again(f func() error) error {
	var err error
	for range retries {
		if err = f(); !errs.Is(err, errs.Conflict) && !errs.Is(err, errs.AlreadyExists) {
			return err
		}
	}
	return err
}

func (s *routes) find(ctx context.Context, host, path string) (*app.Route, error) {
	list, _, err := entity.List[app.Route](ctx, s.Store, entity.Query{Index: []entity.IndexMatch{{
		Attr: app.RouteAttrHost, Op: entity.IndexEq, Value: schema.EncodeIndexString(host),
	}}})
	if err != nil {
		return nil, err
	}
	for _, r := range list {
		if r.Spec.Path == path {
			return r, nil
		}
	}
	return nil, errs.New(errs.NotFound, "there is no route %s%s", host, path).WithHint("`r route list` lists them")
}

func (s *routes) Set(ctx context.Context, req *app.SetRouteRequest) (*app.RouteResponse, error) {
	host, path, err := key(req.Host, req.Path)
	if err != nil {
		return nil, err
	}
	a, err := s.Service.App(ctx, req.Project, req.App)
	if err != nil {
		return nil, err
	}
	service := req.Service
	if service == "" {
		service = "web"
	}
	var r *app.Route
	err = again(func() (err error) {
		r, err = s.find(ctx, host, path)
		switch {
		case errs.Is(err, errs.NotFound):
			r = app.NewRoute()
			r.Project = a.Project
			r.Spec = app.RouteSpec{Host: host, Path: path, Key: host + path, App: a.GetID(), Service: service}
			return entity.Create(ctx, s.Store, r)
		case err == nil && r.Project != a.Project:
			return errs.New(errs.AlreadyExists, "the route %s%s belongs to another project", host, path)
		case err == nil:
			r.Spec.App, r.Spec.Service = a.GetID(), service
			err = entity.UpdateSpec(ctx, s.Store, r)
			if errs.Is(err, errs.NotFound) { // deleted meanwhile
				return errs.New(errs.Conflict, "%w", err)
			}
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	rec, err := record(r)
	return &app.RouteResponse{Route: rec}, err
}

func (s *routes) Delete(ctx context.Context, req *app.DeleteRouteRequest) error {
	host, path, err := key(req.Host, req.Path)
	if err != nil {
		return err
	}
	project, err := s.Service.Project(ctx, req.Project)
	if err != nil {
		return err
	}
	return again(func() error {
		r, err := s.find(ctx, host, path)
		if err != nil {
			return err
		}
		if r.Project != project {
			return errs.New(errs.NotFound, "there is no route %s%s in this project", host, path)
		}
		return entity.Delete(ctx, s.Store, r)
	})
}
