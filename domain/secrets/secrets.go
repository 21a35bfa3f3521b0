// Package secrets has the operations on secrets that have a name.
//
//	Set, Delete   what users do
//	Value         what the egress proxy adds to a request
//
// A value leaves the store by Value only. No call of a user returns it.
package secrets

import (
	"context"
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

// Set makes a secret or replaces its value. InvalidArgument, without the value,
// for one that no header of a request can have.
func (s *Service) Set(ctx context.Context, project, name, value string) (*secret.Secret, error) {
	if len(value) > secret.MaxValue {
		return nil, errs.New(errs.InvalidArgument, "the secret has %d bytes, more than %d", len(value), secret.MaxValue)
	}
	if _, err := (egress.Injection{Format: egress.Placeholder}).Value(value); err != nil {
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
	sec.Project, sec.Name, sec.Spec.Value, sec.Spec.ChangedAt = pid, name, sealed, now
	err = entity.Create(ctx, s.Store, sec)
	if !errs.Is(err, errs.AlreadyExists) {
		return sec, err
	}
	if sec, err = s.Find(ctx, pid, name); err != nil {
		return nil, err
	}
	return entity.ModifySpec(ctx, s.Store, sec.GetID(), func(sec *secret.Secret) error {
		sec.Spec.Value, sec.Spec.ChangedAt = sealed, now
		return nil
	})
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

// Value returns the value of the secret that a Reference names, as the store has
// it now. NotFound if it was deleted.
func (s *Service) Value(ctx context.Context, reference string) (string, error) {
	project, name, ok := strings.Cut(reference, "/")
	if !ok {
		return "", errs.New(errs.Internal, "%q is not a reference to a secret", reference)
	}
	sec, err := s.Find(ctx, schema.ID(project), name)
	if err != nil {
		return "", err
	}
	return s.Sealer.Open(sec.Spec.Value)
}
