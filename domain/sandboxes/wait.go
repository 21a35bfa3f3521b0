package sandboxes

import (
	"context"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/schema"
)

// Wait waits until a sandbox has reached the state until, or has ended, and
// returns it. NotFound if it does not exist or is deleted; FailedPrecondition if its
// node refused the pause for which the caller waits, and the sandbox goes on.
func (s *Service) Wait(ctx context.Context, sid id.Sandbox, until sandbox.WaitUntil) (*sandbox.Sandbox, error) {
	var asked schema.Revision // an older state may have the refusal of an earlier pause
	if until == sandbox.WaitUntilPaused {
		sb, err := entity.Get[sandbox.Sandbox](ctx, s.Store, sid)
		if err != nil {
			return nil, err
		}
		asked = sb.SpecRevision
	}
	return informer.Of[sandbox.Sandbox](s.Informers).Await(ctx, schema.ID(sid), func(sb *sandbox.Sandbox) (bool, error) {
		if until == sandbox.WaitUntilPaused && sb.SpecRevision >= asked && refused(sb) {
			return false, errRefused(sb)
		}
		return reached(sb, until), nil
	})
}

// refused reports whether the last pause of a sandbox was refused, and it was put back.
func refused(sb *sandbox.Sandbox) bool {
	return sb.Status.PauseRefused != "" && sb.Spec.Desired == sandbox.DesiredStateRunning && !sb.Status.Phase.Ended()
}

// reached reports whether a sandbox has reached a state, or has ended. One with
// a start command runs, for its users, when that is ready.
func reached(sb *sandbox.Sandbox, until sandbox.WaitUntil) bool {
	if sb.Status.Phase.Ended() {
		return true
	}
	switch until {
	case sandbox.WaitUntilRunning:
		return sb.Status.Phase == sandbox.SandboxPhaseRunning && (len(sb.Spec.Template.Start) == 0 || sb.Status.ReadyAt != nil)
	case sandbox.WaitUntilPaused:
		return sb.Status.Phase == sandbox.SandboxPhasePaused
	case sandbox.WaitUntilReady:
		return sb.Status.Ready
	}
	return false
}
