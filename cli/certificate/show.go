package certificate

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"miren.dev/runtime/api/certificate"
	"miren.dev/runtime/cli/command"
	"miren.dev/runtime/cli/console"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// item is a certificate, and the order by which it came or is to come.
type item struct {
	Certificate *certificate.Certificate      `json:"certificate,omitempty"` // nil: it was not issued yet
	Order       *certificate.CertificateOrder `json:"order,omitempty"`       // nil: a user set it
}

func (i *item) name() string {
	if i.Certificate != nil {
		return i.Certificate.Name
	}
	return i.Order.Name
}

func (i *item) hosts() []string {
	if i.Certificate != nil {
		return i.Certificate.Spec.Names
	}
	return []string{i.Order.Spec.Host}
}

// state says until when the certificate is valid, and how its order is.
func (i *item) state(e *command.Env) string {
	var parts []string
	if i.Certificate != nil {
		parts = append(parts, state(e, i.Certificate))
	}
	if o := i.Order; o != nil && (o.Status.Phase != certificate.OrderPhaseIssued || i.Certificate == nil) {
		parts = append(parts, orderState(e, o, i.Certificate != nil))
	}
	return strings.Join(parts, ", ")
}

// orderState says how an order is.
func orderState(e *command.Env, o *certificate.CertificateOrder, renewal bool) string {
	what := "order"
	if renewal {
		what = "renewal"
	}
	switch st := &o.Status; {
	case st.Phase == certificate.OrderPhaseRefused:
		return e.Paint(console.Red, "not ordered: "+st.Message)
	case st.Phase == certificate.OrderPhaseOrdering:
		return e.Paint(console.Yellow, what+" under way")
	case st.Attempts > 0:
		next := ""
		if st.NextAttempt != nil {
			next = ", next attempt " + st.NextAttempt.Format(time.DateTime)
		}
		return e.Paint(console.Red, fmt.Sprintf("%s failed (%d): %s%s", what, st.Attempts, st.Message, next))
	default:
		return e.Paint(console.Yellow, "to be ordered")
	}
}

// items returns the certificates and orders of the project.
func items(ctx context.Context, e *command.Env) ([]*item, error) {
	certs, _, err := command.All[certificate.Certificate](ctx, e, entity.Query{})
	if err != nil {
		return nil, err
	}
	orders, _, err := command.All[certificate.CertificateOrder](ctx, e, entity.Query{})
	if err != nil {
		return nil, err
	}
	var all []*item
	byOrder := map[schema.ID]*item{}
	for _, c := range certs {
		i := &item{Certificate: c}
		all = append(all, i)
		if c.Spec.Order != "" {
			byOrder[schema.ID(c.Spec.Order)] = i
		}
	}
	for _, o := range orders {
		if i := byOrder[o.ID]; i != nil {
			i.Order = o
		} else {
			all = append(all, &item{Order: o})
		}
	}
	slices.SortFunc(all, func(a, b *item) int { return cmp.Compare(a.name(), b.name()) })
	return all, nil
}

func newList(e *command.Env) *cobra.Command {
	load := func(ctx context.Context) ([]*item, error) { return items(ctx, e) }
	return command.List(e, "List the certificates", []string{certificate.KindCertificate, certificate.KindCertificateOrder}, load, func(_ context.Context, all []*item) error {
		if len(all) == 0 && e.Terminal {
			e.Notef("there are no certificates: r certificate set makes one\n")
			return nil
		}
		var rows [][]string
		for _, i := range all {
			set := ""
			if i.Certificate != nil {
				set = schema.CellAge(i.Certificate.Spec.ChangedAt, time.Now())
			}
			rows = append(rows, []string{i.name(), strings.Join(i.hosts(), ","), i.state(e), set})
		}
		e.Table([]string{"NAME", "HOSTS", "STATE", "SET"}, rows)
		return nil
	})
}

func newShow(e *command.Env) *cobra.Command {
	return &cobra.Command{
		Use:               "show NAME|HOST",
		Short:             "Show a certificate",
		Long:              "Shows a certificate, without its key, and how its order is if the server orders it for a route.",
		Example:           "  r certificate show shop\n  r certificate show shop.example.com",
		Args:              command.Args(1, 1, "NAME"),
		ValidArgsFunction: command.CompleteFirst(e, certificate.CertificateKind),
		RunE:              func(cmd *cobra.Command, args []string) error { return show(cmd.Context(), e, args[0]) },
	}
}

func show(ctx context.Context, e *command.Env, name string) error {
	all, err := items(ctx, e)
	if err != nil {
		return err
	}
	at := slices.IndexFunc(all, func(i *item) bool { return i.name() == name })
	if at < 0 {
		at = slices.IndexFunc(all, func(i *item) bool { return slices.Contains(i.hosts(), strings.ToLower(name)) })
	}
	if at < 0 {
		return errs.New(errs.NotFound, "there is no certificate %q", name).WithHint("`r certificate list` lists those that exist")
	}
	i := all[at]
	if e.JSON {
		return e.PrintJSON(i)
	}
	rows := [][]string{{"certificate", i.name()}, {"hosts", strings.Join(i.hosts(), ", ")}, {"state", i.state(e)}}
	if c := i.Certificate; c != nil {
		rows = append(rows, []string{"issuer", c.Spec.Issuer}, []string{"valid from", c.Spec.NotBefore.Format(time.DateTime)},
			[]string{"expires", c.Spec.NotAfter.Format(time.DateTime)}, []string{"sha256", c.Spec.Fingerprint},
			[]string{"set", schema.CellAge(c.Spec.ChangedAt, time.Now())})
	}
	if o := i.Order; o != nil {
		if o.Status.Directory != "" {
			rows = append(rows, []string{"ordered from", o.Status.Directory})
		}
		if o.Status.RenewAt != nil {
			rows = append(rows, []string{"renewed at", o.Status.RenewAt.Format(time.DateTime)})
		}
	}
	e.Table(nil, rows)
	return nil
}

func newRenew(e *command.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "renew HOST",
		Short: "Order a certificate now",
		Long: `Has the server order the certificate of a route's host now: after an attempt that failed, or before its time. Authorities
bound how often they may be asked.`,
		Example: "  r certificate renew shop.example.com",
		Args:    command.Args(1, 1, "HOST"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := e.Connect(cmd.Context())
			if err != nil {
				return err
			}
			resp, err := certificate.NewCertificatesClient(c).Renew(cmd.Context(), &certificate.RenewRequest{Project: e.Project(), Host: args[0]})
			if err != nil {
				return err
			}
			o, err := entity.Decode[certificate.CertificateOrder](&resp.Order)
			if err != nil {
				return err
			}
			if e.JSON {
				return e.PrintJSON(o)
			}
			e.Printf("%s the certificate of %s is ordered: r certificate show %s\n", e.Paint(console.Green, "✓"), o.Spec.Host, o.Name)
			return nil
		},
	}
}
