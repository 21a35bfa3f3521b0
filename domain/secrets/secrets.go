// Package secrets has the operations on secrets that have a name.
//
//	Set, Delete   what users do
//	Permit        what is checked of a network policy
//	Value         what the egress proxy adds to a request
//
// A value leaves the store by Value only, and for the secret's hosts only. No call
// of a user returns it. Hosts are set together with a value, never alone: a user
// who does not know a value cannot have it sent to another host.
package secrets

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"miren.dev/runtime/api/secret"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/egress"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// Service is the operations on the secrets of one store. It is safe for
// concurrent use.
type Service struct {
	Store  entity.Store
	Sealer *schema.Sealer
}

// Find returns the named secret of a project. NotFound if there is none.
func (s *Service) Find(ctx context.Context, project schema.ID, name string) (*secret.Secret, error) {
	sec, err := entity.ByName[secret.Secret](ctx, s.Store, project, name)
	if errs.Is(err, errs.NotFound) {
		return nil, errs.New(errs.NotFound, "there is no secret %q", name).WithHint("`r secret set %s` makes it, `r secret list` lists those that exist", name)
	}
	return sec, err
}

// Set makes a secret or replaces its value and hosts. InvalidArgument, without the
// value, for one that no header of a request can have, and for hosts that are none.
func (s *Service) Set(ctx context.Context, project, name, value string, hosts []string) (*secret.Secret, error) {
	if len(value) > secret.MaxValue {
		return nil, errs.New(errs.InvalidArgument, "the secret has %d bytes, more than %d", len(value), secret.MaxValue)
	}
	if _, err := (egress.Injection{Format: egress.Placeholder}).Value(value); err != nil {
		return nil, err
	}
	hosts, err := canonical(hosts)
	if err != nil {
		return nil, err
	}
	pid, err := projects.Find(ctx, s.Store, project)
	if err != nil {
		return nil, err
	}
	sealed, err := s.Sealer.Seal(value)
	if err != nil {
		return nil, err
	}
	now := time.Now().UTC()
	sec := secret.NewSecret()
	sec.Project, sec.Name, sec.Spec.Value, sec.Spec.Hosts, sec.Spec.ChangedAt = pid, name, sealed, hosts, now
	err = entity.Create(ctx, s.Store, sec)
	if !errs.Is(err, errs.AlreadyExists) {
		return sec, err
	}
	if sec, err = s.Find(ctx, pid, name); err != nil {
		return nil, err
	}
	return entity.ModifySpec(ctx, s.Store, sec.GetID(), func(sec *secret.Secret) error {
		sec.Spec.Value, sec.Spec.Hosts, sec.Spec.ChangedAt = sealed, hosts, now
		return nil
	})
}

// canonical returns hosts as they are compared, each once.
func canonical(hosts []string) ([]string, error) {
	if len(hosts) == 0 || len(hosts) > secret.MaxHosts {
		return nil, errs.New(errs.InvalidArgument, "a secret has 1 to %d hosts, not %d", secret.MaxHosts, len(hosts)).
			WithHint("name the hosts whose requests may get it: --hosts api.example.com,'*.example.org'")
	}
	var out []string
	for _, h := range hosts {
		r, err := egress.ParseDomain(h)
		if err != nil {
			return nil, errs.Wrap(err, "hosts")
		}
		out = append(out, r.String())
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// Permit returns PermissionDenied if a secret may not be sent to a host, or to some
// of the names below a domain; NotFound if there is no such secret.
func (s *Service) Permit(ctx context.Context, project schema.ID, name string, host egress.Rule) error {
	sec, err := s.Find(ctx, project, name)
	if err != nil {
		return err
	}
	return permit(sec, host)
}

func permit(sec *secret.Secret, host egress.Rule) error {
	for _, h := range sec.Spec.Hosts {
		if r, err := egress.ParseDomain(h); err == nil && r.Covers(host) {
			return nil
		}
	}
	return errs.New(errs.PermissionDenied, "the secret %s is for %s, not for %s", sec.Name, cmp.Or(strings.Join(sec.Spec.Hosts, ", "), "no host"), host).
		WithHint("`r secret set %s --hosts` sets its value and the hosts that it is for", sec.Name)
}

// Delete deletes a secret. Requests to which it would be added are refused from
// then on. NotFound if there is none.
func (s *Service) Delete(ctx context.Context, project, name string) error {
	pid, err := projects.Find(ctx, s.Store, project)
	if err != nil {
		return err
	}
	sec, err := s.Find(ctx, pid, name)
	if err != nil {
		return err
	}
	return entity.Remove[secret.Secret](ctx, s.Store, sec.GetID())
}

// Reference names a secret of a project in the network policy of a sandbox.
func Reference(project schema.ID, name string) string { return string(project) + "/" + name }

// Value returns the value, for a request to a host, of the secret that a Reference
// names, as the store has it now. NotFound if it was deleted, PermissionDenied if
// the host is not one of its hosts.
func (s *Service) Value(ctx context.Context, reference, host string) (string, error) {
	project, name, ok := strings.Cut(reference, "/")
	if !ok {
		return "", errs.New(errs.Internal, "%q is not a reference to a secret", reference)
	}
	sec, err := s.Find(ctx, schema.ID(project), name)
	if err != nil {
		return "", err
	}
	r, err := egress.ParseDomain(host)
	if err != nil {
		return "", err
	}
	if err := permit(sec, r); err != nil {
		return "", err
	}
	return s.Sealer.Open(sec.Spec.Value)
}
