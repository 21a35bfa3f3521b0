package sandboxes

import (
	"context"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/pkg/sandboxfs"
)

// Files returns the files of a sandbox, waiting until it runs; a paused one is
// resumed. user is the user[:group] of the sandbox whose permissions hold; "":
// the sandbox's. FailedPrecondition if the sandbox has ended.
func (s *Service) Files(ctx context.Context, sid id.Sandbox, user string) (sandboxfs.FS, error) {
	sb, err := s.Running(ctx, sid)
	if err != nil {
		return nil, err
	}
	return s.Node.Files(sb.GetID(), sandboxfs.View{User: user}), nil
}
