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
	TLS           bool   // the ingress ends TLS
	Host          string // server name of TLS, exact or *.suffix; "": every connection
	Passthrough   bool   // the service ends TLS; needs Host
}

// SetTCP creates the route of a port, or of a server name at a port, or replaces what it says.
// A port has either one route, which gets every connection, or routes of server names, also of
// several projects. Errors: FailedPrecondition for a port that the operator does not give to
// projects, AlreadyExists if the port or the name belongs to another project, or the port has
// routes of the other form, NotFound if the app does not exist, InvalidArgument for a network,
// time, name or combination that it cannot have.
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
	host, err := req.host()
	if err != nil {
		return nil, err
	}
	spec := app.NewTCPRoute().Spec
	spec.Port, spec.Host, spec.Key, spec.App, spec.Allow = req.Port, host, tcpKey(req.Port, host), a.GetID(), req.Allow
	spec.ProxyProtocol, spec.TLS, spec.Passthrough = req.ProxyProtocol, req.TLS && !req.Passthrough, req.Passthrough
	if req.Service != "" {
		spec.Service = req.Service
	}
	if req.IdleTimeout != nil {
		spec.IdleTimeout = *req.IdleTimeout
	}
	var r *app.TCPRoute
	tries := 0
	err = entity.Retry(ctx, func() (err error) {
		r, err = s.findTCP(ctx, req.Port, host)
		switch {
		case errs.Is(err, errs.NotFound):
			r = app.NewTCPRoute()
			r.Project, r.Spec = a.Project, spec
			if err := s.claimedTCP(ctx, r); err != nil {
				return err
			}
			err = entity.Create(ctx, s.Store, r)
			if tries++; errs.Is(err, errs.AlreadyExists) && tries < maxTaken { // created since find
				return errs.New(errs.Conflict, "%w", err)
			}
			if err != nil {
				return err
			}
			return s.settleTCP(ctx, r)
		case err != nil:
			return err
		case r.Project != a.Project && host != "":
			return taken(host, host)
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

// host returns the server name of a request in normal form, "" if it has none.
func (req *SetTCPRequest) host() (string, error) {
	if req.Host == "" {
		if req.Passthrough {
			return "", errs.New(errs.InvalidArgument, "TLS is passed through by server name, and the route names no host").
				WithHint("a route without a host and without TLS passes on whatever clients send")
		}
		return "", nil
	}
	host, _, err := normalize(req.Host, "")
	switch {
	case err != nil:
		return "", err
	case host == "*":
		return "", errs.New(errs.InvalidArgument, "the host * is for HTTP").WithHint("a route of a port without a host gets every connection")
	case !req.TLS && !req.Passthrough:
		return "", errs.New(errs.InvalidArgument, "the route of %s at port %d has no TLS, by which clients name the host", host, req.Port).
			WithHint("the ingress ends TLS (--tls), or the service does (--passthrough)")
	}
	return host, nil
}

func tcpKey(port int64, host string) string {
	key := strconv.FormatInt(port, 10)
	if host != "" {
		key += "/" + host
	}
	return key
}

// claimedTCP refuses a route of a port that is to be made and contradicts others.
func (s *Service) claimedTCP(ctx context.Context, r *app.TCPRoute) error {
	if err := s.otherForm(ctx, r); err != nil || r.Spec.Host == "" {
		return err
	}
	return s.MayClaim(ctx, r.Project, r.Spec.Host)
}

// settleTCP keeps a route that was made only if it contradicts no older one: of two that were
// made at the same time the older one stays.
func (s *Service) settleTCP(ctx context.Context, r *app.TCPRoute) error {
	why := s.otherForm(ctx, r)
	if why == nil && r.Spec.Host != "" {
		why = s.HasOlder(ctx, r.Project, r.Spec.Host, r.CreateRevision)
	}
	if !errs.Is(why, errs.AlreadyExists) {
		return why // the ingress ignores the younger route too
	}
	if err := entity.Delete(ctx, s.Store, r); err != nil && !errs.Is(err, errs.NotFound) {
		return err
	}
	return why
}

// otherForm returns AlreadyExists if the port of a route has an older one of the other form:
// for every connection, or by server name.
func (s *Service) otherForm(ctx context.Context, r *app.TCPRoute) error {
	list, err := s.ofPort(ctx, r.Spec.Port)
	if err != nil {
		return err
	}
	for _, o := range list {
		if (o.Spec.Host == "") == (r.Spec.Host == "") || r.CreateRevision != 0 && o.CreateRevision > r.CreateRevision {
			continue
		}
		if o.Spec.Host == "" {
			return errs.New(errs.AlreadyExists, "port %d has a route without a host, which gets every connection", r.Spec.Port).
				WithHint("choose another port, or have that route deleted (`r route delete --tcp %d`)", r.Spec.Port)
		}
		return errs.New(errs.AlreadyExists, "port %d has routes by server name, so no route can get every connection", r.Spec.Port).
			WithHint("give --host, or choose another port")
	}
	return nil
}

// DeleteTCP deletes the route of a port, or of a server name at it. NotFound if there is none in
// the project.
func (s *Service) DeleteTCP(ctx context.Context, project string, port int64, host string) error {
	if host != "" {
		var err error
		if host, _, err = normalize(host, ""); err != nil {
			return err
		}
	}
	pid, err := projects.Find(ctx, s.Store, project)
	if err != nil {
		return err
	}
	return entity.Retry(ctx, func() error {
		r, err := s.findTCP(ctx, port, host)
		if err == nil && r.Project != pid {
			err = noTCP(port, host)
		}
		if err != nil {
			return err
		}
		return entity.Delete(ctx, s.Store, r)
	})
}

func noTCP(port int64, host string) error {
	e := errs.New(errs.NotFound, "there is no route of port %d in this project", port)
	if host != "" {
		e = errs.New(errs.NotFound, "there is no route of %s at port %d in this project", host, port)
	}
	return e.WithHint("`r route list` lists them")
}

func (s *Service) findTCP(ctx context.Context, port int64, host string) (*app.TCPRoute, error) {
	list, err := s.ofPort(ctx, port)
	if err != nil {
		return nil, err
	}
	for _, r := range list {
		if r.Spec.Host == host {
			return r, nil
		}
	}
	return nil, noTCP(port, host)
}

// ofPort returns the routes of a port.
func (s *Service) ofPort(ctx context.Context, port int64) (list []*app.TCPRoute, err error) {
	all, _, err := entity.List[app.TCPRoute](ctx, s.Store, entity.Query{})
	for _, r := range all {
		if r.Spec.Port == port {
			list = append(list, r)
		}
	}
	return list, err
}
