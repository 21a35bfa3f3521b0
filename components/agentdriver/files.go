package agentdriver

import (
	"context"
	"io"
	"io/fs"
	"time"

	"miren.dev/runtime/components/agent"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/sandboxfs"
)

// Files returns the files of a sandbox.
func (g *Guests) Files(id string, v sandboxfs.View) sandboxfs.FS {
	return &sandboxFiles{g, id, v}
}

var _ execution.FileDriver = (*Guests)(nil)

// sandboxFiles finds the agent for each call.
type sandboxFiles struct {
	g  *Guests
	id string
	v  sandboxfs.View
}

func use[T any](ctx context.Context, s *sandboxFiles, f func(*agent.Files) (T, error)) (T, error) {
	c, err := s.g.Conn(ctx, s.id)
	if err != nil {
		var none T
		return none, err
	}
	return f(c.Files(s.v))
}

func (s *sandboxFiles) change(ctx context.Context, f func(*agent.Files) error) error {
	_, err := use(ctx, s, func(a *agent.Files) (struct{}, error) { return struct{}{}, f(a) })
	return err
}

func (s *sandboxFiles) Read(ctx context.Context, path string, offset, length int64) (sandboxfs.Reader, error) {
	return use(ctx, s, func(a *agent.Files) (sandboxfs.Reader, error) { return a.Read(ctx, path, offset, length) })
}

func (s *sandboxFiles) Write(ctx context.Context, path string, o sandboxfs.WriteOptions) (sandboxfs.Writer, error) {
	return use(ctx, s, func(a *agent.Files) (sandboxfs.Writer, error) { return a.Write(ctx, path, o) })
}

func (s *sandboxFiles) Stat(ctx context.Context, path string) (sandboxfs.Info, error) {
	return use(ctx, s, func(a *agent.Files) (sandboxfs.Info, error) { return a.Stat(ctx, path) })
}

func (s *sandboxFiles) List(ctx context.Context, path string, o sandboxfs.ListOptions) (list []sandboxfs.Info, more bool, err error) {
	err = s.change(ctx, func(a *agent.Files) (err error) {
		list, more, err = a.List(ctx, path, o)
		return err
	})
	return list, more, err
}

func (s *sandboxFiles) Move(ctx context.Context, from, to string, replace bool) error {
	return s.change(ctx, func(a *agent.Files) error { return a.Move(ctx, from, to, replace) })
}

func (s *sandboxFiles) Copy(ctx context.Context, from, to string) error {
	return s.change(ctx, func(a *agent.Files) error { return a.Copy(ctx, from, to) })
}

func (s *sandboxFiles) Remove(ctx context.Context, path string, recursive bool) error {
	return s.change(ctx, func(a *agent.Files) error { return a.Remove(ctx, path, recursive) })
}

func (s *sandboxFiles) Mkdir(ctx context.Context, path string, perm fs.FileMode, parents bool) error {
	return s.change(ctx, func(a *agent.Files) error { return a.Mkdir(ctx, path, perm, parents) })
}

func (s *sandboxFiles) Chmod(ctx context.Context, path string, perm fs.FileMode) error {
	return s.change(ctx, func(a *agent.Files) error { return a.Chmod(ctx, path, perm) })
}

func (s *sandboxFiles) Archive(ctx context.Context, path string) (io.ReadCloser, error) {
	return use(ctx, s, func(a *agent.Files) (io.ReadCloser, error) { return a.Archive(ctx, path) })
}

func (s *sandboxFiles) Extract(ctx context.Context, path string) (sandboxfs.Extractor, error) {
	return use(ctx, s, func(a *agent.Files) (sandboxfs.Extractor, error) { return a.Extract(ctx, path) })
}

func (s *sandboxFiles) Watch(ctx context.Context, path string, recursive bool) (sandboxfs.Watcher, error) {
	return use(ctx, s, func(a *agent.Files) (sandboxfs.Watcher, error) { return a.Watch(ctx, path, recursive) })
}

func (s *sandboxFiles) Attrs(ctx context.Context, path string) (map[string][]byte, error) {
	return use(ctx, s, func(a *agent.Files) (map[string][]byte, error) { return a.Attrs(ctx, path) })
}

func (s *sandboxFiles) SetAttr(ctx context.Context, path, name string, value []byte) error {
	return s.change(ctx, func(a *agent.Files) error { return a.SetAttr(ctx, path, name, value) })
}

func (s *sandboxFiles) Symlink(ctx context.Context, target, path string) error {
	return s.change(ctx, func(a *agent.Files) error { return a.Symlink(ctx, target, path) })
}

func (s *sandboxFiles) Link(ctx context.Context, from, to string) error {
	return s.change(ctx, func(a *agent.Files) error { return a.Link(ctx, from, to) })
}

func (s *sandboxFiles) Chtimes(ctx context.Context, path string, accessed, modified time.Time) error {
	return s.change(ctx, func(a *agent.Files) error { return a.Chtimes(ctx, path, accessed, modified) })
}

func (s *sandboxFiles) Truncate(ctx context.Context, path string, size int64) error {
	return s.change(ctx, func(a *agent.Files) error { return a.Truncate(ctx, path, size) })
}

func (s *sandboxFiles) Space(ctx context.Context, path string) (sandboxfs.Space, error) {
	return use(ctx, s, func(a *agent.Files) (sandboxfs.Space, error) { return a.Space(ctx, path) })
}
