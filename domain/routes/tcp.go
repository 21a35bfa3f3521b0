package routes

import (
	"context"
	"strconv"
	"strings"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
)

// firstPort is the first port that a route of TCP may have: the ingress is no root.
const firstPort = 1024

// Ports are the ports that routes of TCP may have. The zero value has none.
type Ports [][2]int64

// ParsePorts reads numbers and ranges such as 20000-20099.
func ParsePorts(list []string) (Ports, error) {
	var out Ports
	for _, s := range list {
		a, b, isRange := strings.Cut(s, "-")
		first, err1 := strconv.ParseInt(a, 10, 64)
		last, err2 := first, error(nil)
		if isRange {
			last, err2 = strconv.ParseInt(b, 10, 64)
		}
		if err1 != nil || err2 != nil || first < firstPort || last < first || last > 65535 {
			return nil, errs.New(errs.InvalidArgument, "ingress.tcp_ports: %q is no port from %d to 65535, and no range such as 20000-20099", s, firstPort)
		}
		out = append(out, [2]int64{first, last})
	}
	return out, nil
}

// Has reports whether a port is among them.
func (p Ports) Has(port int64) bool {
	for _, r := range p {
		if r[0] <= port && port <= r[1] {
			return true
		}
	}
	return false
}

// SetTCPRequest says to which service a port of the ingress leads.
type SetTCPRequest struct {
	Project       string // "": the default project
	Port          int64
	App, Service  string // "": app.DefaultService
	Allow         []string
	IdleTimeout   *time.Duration
	ProxyProtocol bool
	TLS           bool // the ingress ends TLS
}

// SetTCP creates the route of a port, or replaces what it says. Errors:
// FailedPrecondition for a port that the operator does not give to projects,
// AlreadyExists if it belongs to another project, NotFound if the app does not exist,
// InvalidArgument for a network or time that it cannot have.
func (s *Service) SetTCP(ctx context.Context, req SetTCPRequest) (*app.TCPRoute, error) {
	a, err := s.Apps.Find(ctx, req.Project, req.App)
	if err != nil {
		return nil, err
	}
	if !s.TCPPorts.Has(req.Port) {
		return nil, errs.New(errs.FailedPrecondition, "port %d is not open to routes of TCP", req.Port).
			WithHint("an operator names the ports that are: ingress.tcp_ports")
	}
	if _, err := check(&app.RouteSettings{Allow: req.Allow}); err != nil {
		return nil, err
	}
	if t := req.IdleTimeout; t != nil && (*t < app.MinRouteTimeout || *t > app.MaxRouteTimeout) {
		return nil, errs.New(errs.InvalidArgument, "idle timeout %v is not between %v and %v", *t, app.MinRouteTimeout, app.MaxRouteTimeout)
	}
	spec := app.NewTCPRoute().Spec
	spec.Port, spec.Key, spec.App, spec.Allow = req.Port, strconv.FormatInt(req.Port, 10), a.GetID(), req.Allow
	spec.ProxyProtocol, spec.TLS = req.ProxyProtocol, req.TLS
	if req.Service != "" {
		spec.Service = req.Service
	}
	if req.IdleTimeout != nil {
		spec.IdleTimeout = *req.IdleTimeout
	}
	var r *app.TCPRoute
	taken := 0
	err = entity.Retry(ctx, func() (err error) {
		r, err = s.findTCP(ctx, req.Port)
		switch {
		case errs.Is(err, errs.NotFound):
			r = app.NewTCPRoute()
			r.Project, r.Spec = a.Project, spec
			err = entity.Create(ctx, s.Store, r)
			if taken++; errs.Is(err, errs.AlreadyExists) && taken < maxTaken { // created since find
				return errs.New(errs.Conflict, "%w", err)
			}
			return err
		case err != nil:
			return err
		case r.Project != a.Project:
			return errs.New(errs.AlreadyExists, "port %d belongs to another project", req.Port).WithHint("choose another, or have it deleted there")
		}
		r.Spec = spec
		return entity.AsConflict(entity.UpdateSpec(ctx, s.Store, r)) // it may be deleted since find
	})
	if err != nil {
		return nil, err
	}
	return r, nil
}

// DeleteTCP deletes the route of a port. NotFound if there is none in the project.
func (s *Service) DeleteTCP(ctx context.Context, project string, port int64) error {
	pid, err := projects.Find(ctx, s.Store, project)
	if err != nil {
		return err
	}
	return entity.Retry(ctx, func() error {
		r, err := s.findTCP(ctx, port)
		if err == nil && r.Project != pid {
			err = noTCP(port)
		}
		if err != nil {
			return err
		}
		return entity.Delete(ctx, s.Store, r)
	})
}

func noTCP(port int64) error {
	return errs.New(errs.NotFound, "there is no route of port %d in this project", port).WithHint("`r route list` lists them")
}

func (s *Service) findTCP(ctx context.Context, port int64) (*app.TCPRoute, error) {
	list, _, err := entity.List[app.TCPRoute](ctx, s.Store, entity.Query{})
	if err != nil {
		return nil, err
	}
	for _, r := range list {
		if r.Spec.Port == port {
			return r, nil
		}
	}
	return nil, noTCP(port)
}
