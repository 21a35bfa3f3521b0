package templates

import (
	"context"
	"errors"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// keepRenewed is how many versions of a template that comes with the system stay when its image was made again: the new
// one and the previous one. Those with a tag stay too.
const keepRenewed = 2

// Renew gives the templates that come with the system a new version each if their image was made again since, and
// returns their names. newer returns the image that a base image has now, if image is an earlier one that this machine
// made of it; "" if it is not. Sandboxes that exist keep their image, and sandboxes that are made from now on get the
// new one. Earlier versions are deleted, except the previous one and those with a tag.
//
// A template changes in one transaction. Templates that failed do not keep others from their new version; the error is
// that of all of them.
func (s *Service) Renew(ctx context.Context, newer func(ctx context.Context, base, image string) (string, error)) ([]string, error) {
	system, err := projects.Find(ctx, s.Store, System)
	if err != nil {
		return nil, err
	}
	list, _, err := entity.List[sandbox.Template](ctx, s.Store, entity.Query{Project: system})
	if err != nil {
		return nil, err
	}
	var renewed []string
	var failed []error
	for _, t := range sorted(list) {
		changed := false
		err := entity.Retry(ctx, func() (err error) {
			changed, err = s.renew(ctx, t.ID, newer)
			return err
		})
		switch {
		case ctx.Err() != nil:
			return renewed, ctx.Err()
		case err != nil && !errs.Is(err, errs.NotFound):
			failed = append(failed, errs.Wrap(err, "template %s", t.Name))
		case err == nil && changed:
			renewed = append(renewed, t.Name)
		}
	}
	return renewed, errors.Join(failed...)
}

func (s *Service) renew(ctx context.Context, tid schema.ID, newer func(ctx context.Context, base, image string) (string, error)) (bool, error) {
	t, err := entity.Get[sandbox.Template](ctx, s.Store, tid)
	if err != nil || t.Status.Version == "" {
		return false, err
	}
	current, err := entity.Get[sandbox.TemplateVersion](ctx, s.Store, t.Status.Version)
	if err != nil || current.Spec.Base == "" || current.Status.Image == "" {
		return false, err // its image is no base image, or no sandbox had it made yet
	}
	image, err := newer(ctx, current.Spec.Base, current.Status.Image)
	if err != nil || image == "" {
		return false, err
	}
	v := sandbox.NewTemplateVersion()
	v.Project, v.Spec = current.Project, current.Spec
	v.Status.Phase, v.Status.Image = sandbox.TemplatePhaseReady, image
	if v.Status.Bytes, err = s.size(ctx, image); err != nil {
		return false, err
	}
	versions, err := s.Versions(ctx, t)
	if err != nil {
		return false, err
	}
	versions = append([]*sandbox.TemplateVersion{v}, versions...)
	// publish gives the template its new version; until then the previous one counts as in use.
	return true, s.publish(ctx, t, v, t.Spec.Title, surplus(t, versions, v, keepRenewed)...)
}
