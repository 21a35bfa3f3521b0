// Package certificate orders certificates for the hosts of routes, by ACME.
//
//	Hosts    decides for which hosts, and makes and deletes their orders
//	Orders   orders each from the authority, and again before it expires
//
// The ingress answers the authority: it watches the orders and their challenges. An
// order can be continued at every step, by the next server too: what it takes is
// stored before the authority hears of it. One server at a time works on an order
// (status.server).
package certificate

import (
	"context"
	"log/slog"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/certificate"
	"miren.dev/runtime/controllers/kit"
	"miren.dev/runtime/domain/certificates"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// hostsKey is the only key of Hosts.
const hostsKey = schema.ID("hosts")

// lookAgain is how often Hosts looks for certificates of users that have expired.
const lookAgain = time.Hour

// Hosts makes an order for each host that is to have a certificate, and deletes
// those of other hosts.
type Hosts struct {
	Store     entity.Store
	Informers *informer.Set
	Enabled   bool     // otherwise it changes nothing
	Domains   []string // acme.domains
	Logger    *slog.Logger

	routes informer.Informer[app.Route, *app.Route]
	ports  informer.Informer[app.TCPRoute, *app.TCPRoute]
	certs  informer.Informer[certificate.Certificate, *certificate.Certificate]
	orders informer.Informer[certificate.CertificateOrder, *certificate.CertificateOrder]
}

// Controller describes it to the controller runtime.
func (h *Hosts) Controller() kit.Controller {
	h.routes = informer.Of[app.Route](h.Informers)
	h.ports = informer.Of[app.TCPRoute](h.Informers)
	h.certs = informer.Of[certificate.Certificate](h.Informers)
	h.orders = informer.Of[certificate.CertificateOrder](h.Informers)
	key := kit.Key(hostsKey)
	return kit.Controller{
		Name: "certificate-host", Reconcile: h.Reconcile,
		Watches: []kit.Source{
			kit.Map(func(*app.Route) []schema.ID { return key }),
			kit.Map(func(*app.TCPRoute) []schema.ID { return key }),
			kit.Map(func(*certificate.Certificate) []schema.ID { return key }),
			kit.Map(func(*certificate.CertificateOrder) []schema.ID { return key }),
		},
		Access: kit.Access{
			Creates: []*schema.Kind{certificate.CertificateOrderKind},
			Deletes: []*schema.Kind{certificate.CertificateOrderKind},
		},
	}
}

// Reconcile compares the orders with the routes.
func (h *Hosts) Reconcile(ctx context.Context, _ schema.ID) (time.Duration, error) {
	if !h.Enabled {
		return 0, nil
	}
	// The informers show one revision: an order that is there was made for a route
	// that was there before it.
	wanted := certificates.Wanted(certificates.HostsOf(h.routes.List(), h.ports.List()), h.certs.List(), h.Domains, time.Now())
	for _, o := range h.orders.List() {
		if wanted[o.Spec.Host] == o.Project {
			delete(wanted, o.Spec.Host)
			continue
		}
		last := *o // objects of informers are shared
		switch err := entity.Delete(ctx, h.Store, &last); {
		case errs.Is(err, errs.NotFound):
		case err != nil:
			return 0, err
		default:
			h.Logger.Info("no certificate is ordered for a host any more", "host", o.Spec.Host)
		}
	}
	for host, project := range wanted {
		o := certificate.NewCertificateOrder()
		o.Project, o.Name, o.Spec.Host = project, certificates.OrderName(host), host
		err := entity.Create(ctx, h.Store, o)
		if err != nil && !errs.Is(err, errs.AlreadyExists) && !errs.Is(err, errs.NotFound) { // another server made it, or the project is gone
			return 0, err
		}
	}
	return lookAgain, nil
}
