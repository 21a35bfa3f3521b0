package apps

import (
	"context"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
)

// Maintain has the ingress answer for an app with a page that has a message, or no
// longer. Its sandboxes go on. Errors: NotFound, InvalidArgument for a message that
// is too long.
func (s *Service) Maintain(ctx context.Context, project, name string, on bool, message string) (a *app.App, err error) {
	if len(message) > app.MaxMessage {
		return nil, errs.New(errs.InvalidArgument, "the message is longer than %d bytes", app.MaxMessage)
	}
	err = entity.Retry(ctx, func() error {
		if a, err = s.Find(ctx, project, name); err != nil {
			return err
		}
		a.Spec.Maintenance = nil
		if on {
			a.Spec.Maintenance = &app.Maintenance{Message: message}
		}
		return entity.AsConflict(entity.UpdateSpec(ctx, s.Store, a))
	})
	return a, err
}
