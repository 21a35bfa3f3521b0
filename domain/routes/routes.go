// Package routes has the operations on routes. A route maps a host and a path
// prefix to a service of an app.
//
//	Set        creates or changes a route
//	Configure  changes what the ingress does with its requests
//	Delete     deletes one
//	ClaimPreview  leads a host to a preview of an app
//	SetTCP     leads a port of the ingress to a service; DeleteTCP ends that
//
// A host belongs to one project: the first that sets a route of it (Claims).
package routes

import (
	"context"
	"regexp"
	"strings"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/domain/apps"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// Service is the operations on the routes of one store. It is safe for
// concurrent use.
type Service struct {
	Store entity.Store
	Apps  *apps.Service
	// LocalDomains are those of the ingress: <app>.<domain> leads to the app
	// without a route.
	LocalDomains []string
	TCPPorts     Ports          // that routes of TCP may have
	Sealer       *schema.Sealer // seals the passwords of users; nil: a route has none
}

// hostName matches *, a name, and *. before a name for all names below it.
var hostName = regexp.MustCompile(`^(\*|(\*\.)?[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?)*)$`)

// normalize returns the form of a host and path in which each pair is unique.
func normalize(host, path string) (h, p string, err error) {
	h, p = strings.TrimSuffix(strings.ToLower(strings.TrimSpace(host)), "."), path
	if p == "" {
		p = "/"
	}
	switch {
	case len(h) > app.MaxHost || !hostName.MatchString(h):
		return "", "", errs.New(errs.InvalidArgument, "%q is not a host name", host).WithHint("without scheme, port and path: shop.example.com, *.example.com, or *")
	case !strings.HasPrefix(p, "/"):
		return "", "", errs.New(errs.InvalidArgument, "path %q does not begin with /", path)
	case len(p) > app.MaxPath || strings.ContainsFunc(p, func(c rune) bool { return c <= ' ' || c == 0x7f || c == '?' || c == '#' }):
		return "", "", errs.New(errs.InvalidArgument, "path %q is longer than %d bytes, or holds what a path prefix cannot", path[:min(len(path), 100)], app.MaxPath)
	}
	return h, p, nil
}

// ParseHost returns the normal form of a host: a name, *. before a name, or *.
func ParseHost(host string) (string, error) {
	h, _, err := normalize(host, "")
	return h, err
}

// maxTaken bounds how often Set meets an existing route of its host and path
// that it cannot find: another writer deletes it again and again, or a user
// made it by hand with a key that does not match its host.
const maxTaken = 10

// find returns the route of a host and path, whatever its project.
func (s *Service) find(ctx context.Context, host, path string) (*app.Route, error) {
	list, _, err := entity.List[app.Route](ctx, s.Store, entity.Where(app.RouteAttrHost, host))
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

// SetRequest says to which service a host and path lead.
type SetRequest struct {
	Project string // "": the default project
	Host    string
	Path    string // "": /
	App     string
	Service string // "": app.DefaultService
}

// Set creates the route of a host and path, or changes its target. Errors:
// InvalidArgument for a malformed host or path, NotFound if the app does not
// exist, AlreadyExists if the host belongs to another project or overlaps with one
// that does.
func (s *Service) Set(ctx context.Context, req SetRequest) (*app.Route, error) {
	host, path, err := normalize(req.Host, req.Path)
	if err != nil {
		return nil, err
	}
	a, err := s.Apps.Find(ctx, req.Project, req.App)
	if err != nil {
		return nil, err
	}
	service := req.Service
	if service == "" {
		service = app.DefaultService
	}
	var r *app.Route
	taken := 0
	err = entity.Retry(ctx, func() (err error) {
		r, err = s.find(ctx, host, path)
		switch {
		case errs.Is(err, errs.NotFound):
			r = app.NewRoute()
			r.Project = a.Project
			r.Spec = app.RouteSpec{Host: host, Path: path, Key: host + path, App: a.GetID(), Service: service}
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
		case err != nil:
			return err
		case r.Project != a.Project:
			return errs.New(errs.AlreadyExists, "the route %s%s belongs to another project", host, path).
				WithHint("a host belongs to the project that had the first route of it; choose another, or have it deleted there")
		}
		r.Spec.App, r.Spec.Service, r.Spec.Preview = a.GetID(), service, ""
		return entity.AsConflict(entity.UpdateSpec(ctx, s.Store, r)) // it may be deleted since find
	})
	if err != nil {
		return nil, err
	}
	return r, nil
}

// Delete deletes the route of a host and path. NotFound if there is none in the
// project.
func (s *Service) Delete(ctx context.Context, project, host, path string) error {
	host, path, err := normalize(host, path)
	if err != nil {
		return err
	}
	pid, err := projects.Find(ctx, s.Store, project)
	if err != nil {
		return err
	}
	return entity.Retry(ctx, func() error {
		r, err := s.find(ctx, host, path)
		if err != nil {
			return err
		}
		if r.Project != pid {
			return errs.New(errs.NotFound, "there is no route %s%s in this project", host, path)
		}
		return entity.Delete(ctx, s.Store, r)
	})
}
