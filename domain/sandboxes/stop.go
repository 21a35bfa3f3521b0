package sandboxes

import (
	"context"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
)

// Stop asks a sandbox to end and returns at once; see Wait. NotFound if it does
// not exist.
func (s *Service) Stop(ctx context.Context, sid id.Sandbox) (*sandbox.Sandbox, error) {
	return entity.ModifySpec(ctx, s.Store, sid, func(sb *sandbox.Sandbox) error {
		if sb.Spec.Desired != sandbox.DesiredStateStopped {
			sb.Spec.Desired, sb.Spec.StopReason = sandbox.DesiredStateStopped, sandbox.EndReasonUser
		}
		return nil
	})
}

// Delete deletes a sandbox; its node stops and removes it. NotFound if it does
// not exist.
func (s *Service) Delete(ctx context.Context, sid id.Sandbox) error {
	return entity.Remove[sandbox.Sandbox](ctx, s.Store, sid)
}
