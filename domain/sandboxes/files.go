package sandboxes

import (
	"context"
	"io"
	"io/fs"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/pkg/errs"
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

// Open opens a file for reading, or a directory as a tar archive of its contents;
// the mode of the info says which. It follows a symbolic link.
func Open(ctx context.Context, files sandboxfs.FS, path string) (sandboxfs.Info, io.ReadCloser, error) {
	r, err := files.Read(ctx, path, 0, 0)
	if err == nil {
		return r.Info(), r, nil
	}
	if !errs.Is(err, errs.InvalidArgument) {
		return sandboxfs.Info{}, nil, err
	}
	// It is no file.
	if _, _, lerr := files.List(ctx, path, sandboxfs.ListOptions{Limit: 1}); lerr != nil {
		return sandboxfs.Info{}, nil, err
	}
	a, err := files.Archive(ctx, path)
	return sandboxfs.Info{Mode: fs.ModeDir | 0o755}, a, err
}
