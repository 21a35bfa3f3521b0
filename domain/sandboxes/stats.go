package sandboxes

import (
	"context"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
)

// Stats reads the resource use of a sandbox. FailedPrecondition if no process
// of it runs.
func (s *Service) Stats(ctx context.Context, sid id.Sandbox) (*sandbox.Stats, error) {
	sb, err := entity.Get[sandbox.Sandbox](ctx, s.Store, sid)
	if err != nil {
		return nil, err
	}
	if sb.Status.Phase.Ended() {
		return nil, errEnded(sb)
	}
	st, err := s.Node.Stats(ctx, sid)
	if errs.Is(err, errs.NotFound) {
		return nil, errs.New(errs.FailedPrecondition, "sandbox %s is %s: nothing of it runs yet", sb.ID, sb.Status.Phase)
	}
	if err != nil {
		return nil, err
	}
	return &st, nil
}
