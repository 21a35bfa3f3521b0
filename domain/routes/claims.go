package routes

import (
	"context"
	"strings"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/certificate"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// Claims says which project each host belongs to. A host that a project has a
// route of is claimed by it, whatever the path, and so are all names below S if it
// has a route of *.S. No other project can then have a route of any of these
// names. The host * claims no names, since it only gets what no other route does;
// but its own routes belong to one project.
//
// Claims are added oldest first: the older one counts. The zero value is empty.
type Claims struct {
	hosts     map[string]schema.ID // by host in the form of a route's: exact, *.suffix or *
	below     map[string]schema.ID // the project that has hosts below a suffix (".example.com")
	belowMore map[string]bool      // several projects have
}

// Add claims a host in normal form for a project. It reports false, and claims
// nothing, if it would overlap with a claim of another project.
func (c *Claims) Add(host string, project schema.ID) bool {
	if c.hosts == nil {
		c.hosts, c.below, c.belowMore = map[string]schema.ID{}, map[string]schema.ID{}, map[string]bool{}
	}
	other := func(owner schema.ID, ok bool) bool { return ok && owner != project }
	if owner, ok := c.hosts[host]; other(owner, ok) {
		return false
	}
	suffix, wildcard := strings.CutPrefix(host, "*")
	if wildcard && suffix != "" {
		if owner, ok := c.below[suffix]; other(owner, ok) || c.belowMore[suffix] {
			return false
		}
	}
	parents := parentsOf(strings.TrimPrefix(host, "*."))
	if host == "*" {
		parents = nil
	}
	for _, p := range parents {
		if owner, ok := c.hosts["*"+p]; other(owner, ok) {
			return false
		}
	}
	c.hosts[host] = project
	for _, p := range parents {
		if owner, ok := c.below[p]; other(owner, ok) {
			c.belowMore[p] = true
		} else {
			c.below[p] = project
		}
	}
	return true
}

// parentsOf returns the suffixes that a name is below of, each with its dot.
func parentsOf(name string) []string {
	var out []string
	for {
		i := strings.IndexByte(name, '.')
		if i < 0 {
			return out
		}
		out = append(out, name[i:])
		name = name[i+1:]
	}
}

// overlap reports whether claims of two hosts have a name in common.
func overlap(a, b string) bool {
	var c Claims
	c.Add(a, "a")
	return !c.Add(b, "b")
}

// rival returns a host of a route, also of a port, or a certificate of another project that overlaps
// with host, and is older than a revision (0: of any age); "" if there is none.
func (s *Service) rival(ctx context.Context, project schema.ID, host string, before schema.Revision) (string, error) {
	older := func(m *schema.Meta) bool { return m.Project != project && (before == 0 || m.CreateRevision < before) }
	queries := []entity.Query{entity.Where(app.RouteAttrHost, host)}
	switch {
	case host == "*":
	case strings.HasPrefix(host, "*."):
		queries = []entity.Query{{}} // routes below it
	default:
		for _, p := range parentsOf(host) {
			queries = append(queries, entity.Where(app.RouteAttrHost, "*"+p))
		}
	}
	for _, q := range queries {
		list, _, err := entity.List[app.Route](ctx, s.Store, q)
		if err != nil {
			return "", err
		}
		for _, o := range list {
			if older(&o.Meta) && overlap(o.Spec.Host, host) {
				return o.Spec.Host, nil
			}
		}
	}
	ports, _, err := entity.List[app.TCPRoute](ctx, s.Store, entity.Query{})
	if err != nil {
		return "", err
	}
	for _, o := range ports {
		if o.Spec.Host != "" && older(&o.Meta) && overlap(o.Spec.Host, host) {
			return o.Spec.Host, nil
		}
	}
	list, _, err := entity.List[certificate.Certificate](ctx, s.Store, entity.Query{})
	if err != nil {
		return "", err
	}
	for _, c := range list {
		if !older(&c.Meta) || c.Spec.Order != "" { // one that was ordered for a route goes with it
			continue
		}
		for _, n := range c.Spec.Names {
			if overlap(n, host) {
				return n, nil
			}
		}
	}
	return "", nil
}

// MayClaim refuses a host of a new certificate of a project that belongs to
// another one: AlreadyExists.
func (s *Service) MayClaim(ctx context.Context, project schema.ID, host string) error {
	o, err := s.rival(ctx, project, host, 0)
	if err != nil {
		return err
	}
	if o != "" {
		return taken(host, o)
	}
	return s.localName(ctx, project, host)
}

// HasOlder returns AlreadyExists if another project has a host since before a
// revision.
func (s *Service) HasOlder(ctx context.Context, project schema.ID, host string, revision schema.Revision) error {
	o, err := s.rival(ctx, project, host, revision)
	if err != nil || o == "" {
		return err
	}
	return taken(host, o)
}

// claimed refuses a route that is to be made and whose host another project has.
func (s *Service) claimed(ctx context.Context, r *app.Route) error {
	return s.MayClaim(ctx, r.Project, r.Spec.Host)
}

// settle keeps a route that was made only if no other project has an older one
// whose host overlaps: of two that were made at the same time, both of which
// found no other, the older one stays.
func (s *Service) settle(ctx context.Context, r *app.Route) error {
	o, err := s.rival(ctx, r.Project, r.Spec.Host, r.CreateRevision)
	if err != nil || o == "" {
		return err // the ingress ignores the younger route too
	}
	if err := entity.Delete(ctx, s.Store, r); err != nil && !errs.Is(err, errs.NotFound) {
		return err
	}
	return taken(r.Spec.Host, o)
}

// localName refuses the host <app>.<local domain> of an app of another project,
// since it answers there without a route.
func (s *Service) localName(ctx context.Context, project schema.ID, host string) error {
	for _, d := range s.LocalDomains {
		name, ok := strings.CutSuffix(host, "."+strings.ToLower(strings.Trim(d, ".")))
		if !ok || strings.Contains(name, ".") || name == "*" {
			continue
		}
		all, _, err := entity.List[app.App](ctx, s.Store, entity.Query{Name: name})
		if err != nil {
			return err
		}
		for _, a := range all {
			if a.Project == project {
				return nil
			}
		}
		if len(all) > 0 {
			return errs.New(errs.AlreadyExists, "the host %s is that of an app of another project", host).
				WithHint("every app answers at <app>.%s without a route; choose another host", d)
		}
	}
	return nil
}

func taken(host, by string) error {
	if host == by {
		return errs.New(errs.AlreadyExists, "the host %s belongs to another project", host).
			WithHint("a host belongs to the project that had the first route of it, or a certificate for it; choose another, or have it deleted there")
	}
	return errs.New(errs.AlreadyExists, "the host %s overlaps with %s, which belongs to another project", host, by).
		WithHint("a route of *.S, or a certificate for it, claims every name below S; choose another host, or have that deleted there")
}
