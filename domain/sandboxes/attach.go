package sandboxes

import (
	"context"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/pkg/errs"
)

// Attach continues a detached process of a sandbox, which it resumes if it is
// paused. Output begins at the given offsets, or where it is still kept. The caller
// closes the process, or detaches it. note, if set, is called with the reason if
// the sandbox ended and the process with it. NotFound if the sandbox does not know
// the process.
func (s *Service) Attach(ctx context.Context, sid id.Sandbox, name string, stdout, stderr int64, note func(string)) (Process, error) {
	if _, err := s.Running(ctx, sid); err != nil {
		return nil, err
	}
	p, err := s.Node.Attach(ctx, sid, name, stdout, stderr)
	if errs.Is(err, errs.NotFound) {
		return nil, errs.New(errs.NotFound, "sandbox %s has no detached process %q", sid, name).WithHint("`r sandbox ps %s` lists its processes", sid)
	}
	if err != nil {
		return nil, err
	}
	return &process{Process: p, s: s, sid: sid, note: note}, nil
}

// Dial connects to a TCP port of a sandbox, which it resumes if it is paused.
// FailedPrecondition if no process listens on the port, or the sandbox has ended.
func (s *Service) Dial(ctx context.Context, sid id.Sandbox, port int) (Conn, error) {
	if _, err := s.Running(ctx, sid); err != nil {
		return nil, err
	}
	return s.Node.Dial(ctx, sid, port)
}
