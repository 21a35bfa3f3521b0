package sandboxes

import (
	"context"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/schema"
)

// Wait waits until a sandbox has reached the state until, or has ended, and
// returns it. NotFound if it does not exist or is deleted.
func (s *Service) Wait(ctx context.Context, sid id.Sandbox, until sandbox.WaitUntil) (*sandbox.Sandbox, error) {
	return informer.Of[sandbox.Sandbox](s.Informers).Await(ctx, schema.ID(sid), func(sb *sandbox.Sandbox) (bool, error) {
		return reached(sb, until), nil
	})
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
