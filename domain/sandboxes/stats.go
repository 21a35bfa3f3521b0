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
	return observe(ctx, s, sid, func() (*sandbox.Stats, error) {
		st, err := s.Node.Stats(ctx, sid)
		return &st, err
	})
}

// Processes lists the processes of a sandbox beside the main one.
// FailedPrecondition if the sandbox does not run.
func (s *Service) Processes(ctx context.Context, sid id.Sandbox) ([]sandbox.Process, error) {
	return observe(ctx, s, sid, func() ([]sandbox.Process, error) { return s.Node.Processes(ctx, sid) })
}

// Ports lists the TCP ports on which processes of a sandbox listen.
// FailedPrecondition if the sandbox does not run.
func (s *Service) Ports(ctx context.Context, sid id.Sandbox) ([]int64, error) {
	return observe(ctx, s, sid, func() ([]int64, error) { return s.Node.Ports(ctx, sid) })
}

// observe reads the state of a sandbox from its node. It does not resume a
// paused one.
func observe[T any](ctx context.Context, s *Service, sid id.Sandbox, read func() (T, error)) (T, error) {
	var none T
	sb, err := entity.Get[sandbox.Sandbox](ctx, s.Store, sid)
	if err != nil {
		return none, err
	}
	if sb.Status.Phase.Ended() {
		return none, errEnded(sb)
	}
	idle := errs.New(errs.FailedPrecondition, "sandbox %s is %s: nothing of it runs", sb.ID, sb.Status.Phase)
	if sb.Status.Phase == sandbox.SandboxPhasePaused {
		return none, idle
	}
	v, err := read()
	if errs.Is(err, errs.NotFound) {
		return none, idle
	}
	if err != nil {
		return none, err
	}
	return v, nil
}
