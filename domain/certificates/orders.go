package certificates

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/publicsuffix"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/certificate"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/domain/routes"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// OrderName returns the name of the order of a host, and of its certificate. People
// recognise the host in it; the digits make it unique.
func OrderName(host string) string {
	sum := sha256.Sum256([]byte(host))
	label := strings.Trim(strings.NewReplacer("*.", "wildcard-", ".", "-", "_", "-").Replace(host), "-")
	label = strings.TrimRight(label[:min(len(label), 50)], "-")
	return label + "-" + hex.EncodeToString(sum[:3])
}

// HostsOf returns routes, and one for each server name for which the ingress ends TLS at a port:
// it needs a certificate as a route of HTTP does.
func HostsOf(list []*app.Route, ports []*app.TCPRoute) []*app.Route {
	all := slices.Clone(list)
	for _, p := range ports {
		if p.Spec.Host != "" && p.Spec.TLS {
			all = append(all, &app.Route{Meta: p.Meta, Spec: app.RouteSpec{Host: p.Spec.Host, App: p.Spec.App}})
		}
	}
	return all
}

// Wanted returns the hosts for which certificates are to be ordered, with their
// projects: those of routes, by the project that has the host, which have no
// certificate that a user set. With domains only hosts in them count, otherwise
// public names only.
func Wanted(list []*app.Route, certs []*certificate.Certificate, domains []string, now time.Time) map[string]schema.ID {
	own := map[schema.ID]map[string]bool{} // names of valid certificates of users, by project
	for _, c := range certs {
		if c.Spec.Order != "" || !now.Before(c.Spec.NotAfter) {
			continue
		}
		if own[c.Project] == nil {
			own[c.Project] = map[string]bool{}
		}
		for _, n := range c.Spec.Names {
			own[c.Project][n] = true
		}
	}
	byAge := slices.Clone(list)
	slices.SortFunc(byAge, func(a, b *app.Route) int {
		return cmp.Or(cmp.Compare(a.CreateRevision, b.CreateRevision), strings.Compare(string(a.ID), string(b.ID)))
	})
	var claims routes.Claims
	wanted, count := map[string]schema.ID{}, map[schema.ID]int{}
	for _, r := range byAge {
		host := r.Spec.Host
		if !claims.Add(host, r.Project) || !orderable(host, domains) || wanted[host] != "" || count[r.Project] == certificate.MaxOrders {
			continue
		}
		_, parent, _ := strings.Cut(host, ".")
		if own[r.Project][host] || own[r.Project]["*."+parent] && !strings.HasPrefix(host, "*") {
			continue
		}
		wanted[host] = r.Project
		count[r.Project]++
	}
	return wanted
}

// orderable reports whether an authority may sign a host.
func orderable(host string, domains []string) bool {
	name := strings.TrimPrefix(host, "*.")
	if _, err := netip.ParseAddr(name); err == nil || strings.ContainsAny(name, "*_") {
		return false
	}
	if len(domains) > 0 {
		return slices.ContainsFunc(domains, func(d string) bool {
			d = strings.ToLower(strings.Trim(d, "."))
			return name == d || strings.HasSuffix(name, "."+d)
		})
	}
	suffix, known := publicsuffix.PublicSuffix(name)
	return known && name != suffix
}

// Issue stores the certificate of an order: it makes it, or replaces the one that it
// made before.
func (s *Service) Issue(ctx context.Context, o *certificate.CertificateOrder, chain, key string) (*certificate.Certificate, error) {
	spec, err := parse(chain, key, time.Now())
	if err != nil {
		return nil, errs.Wrap(err, "the authority issued a certificate that cannot be used")
	}
	if !slices.Contains(spec.Names, o.Spec.Host) {
		return nil, errs.New(errs.FailedPrecondition, "the authority issued a certificate for %s, not for %s", strings.Join(spec.Names, ", "), o.Spec.Host)
	}
	if spec.Key, err = s.Sealer.Seal(key); err != nil {
		return nil, err
	}
	spec.Order = o.GetID()
	var c *certificate.Certificate
	err = entity.Retry(ctx, func() error {
		if c, err = s.OfOrder(ctx, o); err != nil {
			return err
		}
		if c == nil {
			c = certificate.NewCertificate()
			c.Project, c.Name, c.Spec = o.Project, o.Name, *spec
			err := entity.Create(ctx, s.Store, c)
			if errs.Is(err, errs.AlreadyExists) {
				return errs.New(errs.Conflict, "%w", err)
			}
			return err
		}
		if c.Spec.Fingerprint == spec.Fingerprint {
			return nil
		}
		c.Spec = *spec
		return entity.AsConflict(entity.UpdateSpec(ctx, s.Store, c))
	})
	return c, err
}

// OfOrder returns the certificate that an order made, nil if there is none.
func (s *Service) OfOrder(ctx context.Context, o *certificate.CertificateOrder) (*certificate.Certificate, error) {
	list, _, err := entity.List[certificate.Certificate](ctx, s.Store, entity.Where(certificate.CertificateAttrOrder, o.GetID()))
	if err != nil || len(list) == 0 {
		return nil, err
	}
	return list[0], nil
}

// Renew has the certificate of a host ordered now. NotFound if none is ordered for
// it.
func (s *Service) Renew(ctx context.Context, project, host string) (*certificate.CertificateOrder, error) {
	pid, err := projects.Find(ctx, s.Store, project)
	if err != nil {
		return nil, err
	}
	o, err := entity.ByName[certificate.CertificateOrder](ctx, s.Store, pid, host)
	if errs.Is(err, errs.NotFound) {
		if h, herr := routes.ParseHost(host); herr == nil {
			o, err = entity.ByName[certificate.CertificateOrder](ctx, s.Store, pid, OrderName(h))
		}
	}
	if errs.Is(err, errs.NotFound) {
		return nil, errs.New(errs.NotFound, "no certificate is ordered for %q", host).
			WithHint("certificates are ordered for public hosts of routes (`r route list`) if the server has acme.directory; those that you set are replaced with `r certificate set`")
	}
	if err != nil {
		return nil, err
	}
	return entity.ModifySpec(ctx, s.Store, o.GetID(), func(o *certificate.CertificateOrder) error {
		o.Spec.Requests++
		return nil
	})
}
