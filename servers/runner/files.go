package runner

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"time"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/opt"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/pkg/sandboxfs"
)

// files is the files of a sandbox of a runner.
type files struct {
	c    sandbox.FilesClient
	sid  id.Sandbox
	user string
}

var _ sandboxfs.FS = (*files)(nil)

func fileInfo(i *sandbox.FileInfo) sandboxfs.Info {
	mode := sandboxfs.Perm(uint32(i.Mode))
	switch i.Type {
	case sandbox.FileTypeDirectory:
		mode |= fs.ModeDir
	case sandbox.FileTypeSymlink:
		mode |= fs.ModeSymlink
	case sandbox.FileTypeOther:
		mode |= fs.ModeIrregular
	}
	info := sandboxfs.Info{Name: i.Name, Mode: mode, Size: i.SizeBytes, ModTime: i.ModifiedAt, UID: int(i.UID), GID: int(i.GID), Target: i.Target}
	if len(i.Attributes) > 0 {
		info.Attrs = fileAttrs(i.Attributes)
	}
	return info
}

func fileAttrs(list []sandbox.FileAttribute) map[string][]byte {
	attrs := map[string][]byte{}
	for _, a := range list {
		attrs[a.Name] = a.Value
	}
	return attrs
}

func (f *files) request(path string) *sandbox.FileRequest {
	return &sandbox.FileRequest{Sandbox: f.sid, Path: path, User: f.user}
}

// Read implements sandboxfs.FS.
func (f *files) Read(ctx context.Context, path string, offset, length int64) (sandboxfs.Reader, error) {
	var info *sandbox.FileInfo
	st, cancel, err := open(ctx, func(ctx context.Context) (rpc.ClientStream[rpc.None, sandbox.ReadFileOutput], error) {
		return f.c.Read(ctx, &sandbox.ReadFileRequest{Sandbox: f.sid, Path: path, User: f.user, Offset: opt.Of(offset), Length: opt.Of(length)})
	}, func(st rpc.ClientStream[rpc.None, sandbox.ReadFileOutput]) error {
		m, err := st.Recv()
		if err == nil && m.Info == nil {
			err = errs.New(errs.Unavailable, "the runner sent no description of the file")
		}
		if err == nil {
			info = m.Info
		}
		return cut(err)
	})
	if err != nil {
		return nil, err
	}
	return &reader{st: st, cancel: cancel, info: fileInfo(info)}, nil
}

type reader struct {
	st     rpc.ClientStream[rpc.None, sandbox.ReadFileOutput]
	cancel context.CancelFunc
	info   sandboxfs.Info
	rest   []byte
}

func (r *reader) Info() sandboxfs.Info { return r.info }

func (r *reader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		m, err := r.st.Recv()
		if err != nil {
			return 0, err
		}
		r.rest = m.Data
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

func (r *reader) Close() error {
	r.cancel()
	return r.st.Close()
}

var writeModes = map[sandboxfs.WriteMode]sandbox.WriteMode{
	sandboxfs.WriteReplace: sandbox.WriteModeReplace, sandboxfs.WriteCreate: sandbox.WriteModeCreate,
	sandboxfs.WriteAt: sandbox.WriteModeAt, sandboxfs.WriteAppend: sandbox.WriteModeAppend,
}

// Write implements sandboxfs.FS. What is wrong with the path shows when the file
// is written or committed.
func (f *files) Write(ctx context.Context, path string, o sandboxfs.WriteOptions) (sandboxfs.Writer, error) {
	req := &sandbox.WriteFileRequest{
		Sandbox: f.sid, Path: path, User: f.user, Write: writeModes[o.Mode], Offset: opt.Of(o.Offset),
		Mode: opt.Of(int64(sandboxfs.Bits(o.Perm))), Parents: opt.Of(o.Parents),
	}
	st, cancel, err := open(ctx, func(ctx context.Context) (rpc.ClientStream[rpc.Bytes, sandbox.FileInfo], error) {
		return f.c.Write(ctx, req)
	},
		func(rpc.ClientStream[rpc.Bytes, sandbox.FileInfo]) error { return nil })
	if err != nil {
		return nil, err
	}
	return &writer[sandbox.FileInfo]{st: st, cancel: cancel}, nil
}

// writer sends bytes of a file or an archive. Closed before its end, the call
// leaves nothing of a new file.
type writer[Out any] struct {
	st     rpc.ClientStream[rpc.Bytes, Out]
	cancel context.CancelFunc
}

func (w *writer[Out]) Write(p []byte) (int, error) {
	n, err := w.st.Writer().Write(p)
	if errors.Is(err, io.EOF) { // the call has ended, and says why
		if _, rerr := w.st.Recv(); rerr != nil {
			err = cut(rerr)
		}
	}
	return n, err
}

func (w *writer[Out]) Close() error {
	w.cancel()
	return w.st.Close()
}

// finish ends what is sent and returns the answer, nil if there is none.
func (w *writer[Out]) finish(ctx context.Context) (*Out, error) {
	defer context.AfterFunc(ctx, w.cancel)()
	if err := w.st.CloseSend(); err != nil {
		return nil, err
	}
	m, err := w.st.Recv()
	if errors.Is(err, io.EOF) {
		return nil, nil
	}
	return m, err
}

// Commit implements sandboxfs.Writer.
func (w *writer[Out]) Commit(ctx context.Context) (sandboxfs.Info, error) {
	m, err := w.finish(ctx)
	if err != nil {
		return sandboxfs.Info{}, err
	}
	info, ok := any(m).(*sandbox.FileInfo)
	if !ok || info == nil {
		return sandboxfs.Info{}, cut(io.EOF)
	}
	return fileInfo(info), nil
}

// Finish implements sandboxfs.Extractor.
func (w *writer[Out]) Finish(ctx context.Context) error {
	_, err := w.finish(ctx)
	return err
}

// Stat implements sandboxfs.FS.
func (f *files) Stat(ctx context.Context, path string) (sandboxfs.Info, error) {
	i, err := f.c.Stat(ctx, f.request(path))
	if err != nil {
		return sandboxfs.Info{}, err
	}
	return fileInfo(i), nil
}

// List implements sandboxfs.FS.
func (f *files) List(ctx context.Context, path string, o sandboxfs.ListOptions) ([]sandboxfs.Info, bool, error) {
	resp, err := f.c.List(ctx, &sandbox.ListFilesRequest{
		Sandbox: f.sid, Path: path, User: f.user, After: o.After, Limit: opt.Of(int64(min(o.Limit, 1024))), Attributes: opt.Of(o.Attrs),
	})
	if err != nil {
		return nil, false, err
	}
	var list []sandboxfs.Info
	for i := range resp.Files {
		list = append(list, fileInfo(&resp.Files[i]))
	}
	return list, resp.More, nil
}

// Move implements sandboxfs.FS.
func (f *files) Move(ctx context.Context, from, to string, replace bool) error {
	return f.c.Move(ctx, &sandbox.MoveFileRequest{Sandbox: f.sid, Path: from, To: to, User: f.user, Replace: opt.Of(replace)})
}

// Copy implements sandboxfs.FS.
func (f *files) Copy(ctx context.Context, from, to string) error {
	return f.c.Copy(ctx, &sandbox.CopyFileRequest{Sandbox: f.sid, Path: from, To: to, User: f.user})
}

// Remove implements sandboxfs.FS.
func (f *files) Remove(ctx context.Context, path string, recursive bool) error {
	return f.c.Remove(ctx, &sandbox.RemoveFileRequest{Sandbox: f.sid, Path: path, User: f.user, Recursive: opt.Of(recursive)})
}

// Mkdir implements sandboxfs.FS.
func (f *files) Mkdir(ctx context.Context, path string, perm fs.FileMode, parents bool) error {
	return f.c.MakeDirectory(ctx, &sandbox.MakeDirectoryRequest{
		Sandbox: f.sid, Path: path, User: f.user, Mode: opt.Of(int64(sandboxfs.Bits(perm))), Parents: opt.Of(parents),
	})
}

// Chmod implements sandboxfs.FS.
func (f *files) Chmod(ctx context.Context, path string, perm fs.FileMode) error {
	return f.c.ChangeMode(ctx, &sandbox.ChangeModeRequest{Sandbox: f.sid, Path: path, User: f.user, Mode: int64(sandboxfs.Bits(perm))})
}

// Archive implements sandboxfs.FS. What is wrong with the path shows when it is read.
func (f *files) Archive(ctx context.Context, path string) (io.ReadCloser, error) {
	st, cancel, err := open(ctx, func(ctx context.Context) (rpc.ClientStream[rpc.None, rpc.Bytes], error) {
		return f.c.Archive(ctx, f.request(path))
	},
		func(rpc.ClientStream[rpc.None, rpc.Bytes]) error { return nil })
	if err != nil {
		return nil, err
	}
	return &archive{st.Reader(), cancel}, nil
}

type archive struct {
	io.Reader
	cancel context.CancelFunc
}

func (a *archive) Close() error {
	a.cancel()
	return nil
}

// Extract implements sandboxfs.FS.
func (f *files) Extract(ctx context.Context, path string) (sandboxfs.Extractor, error) {
	st, cancel, err := open(ctx, func(ctx context.Context) (rpc.ClientStream[rpc.Bytes, rpc.None], error) {
		return f.c.Extract(ctx, f.request(path))
	},
		func(rpc.ClientStream[rpc.Bytes, rpc.None]) error { return nil })
	if err != nil {
		return nil, err
	}
	return &writer[rpc.None]{st: st, cancel: cancel}, nil
}

var fileChanges = map[sandbox.FileChange]sandboxfs.Change{
	sandbox.FileChangeCreated: sandboxfs.Created, sandbox.FileChangeWritten: sandboxfs.Written, sandbox.FileChangeRemoved: sandboxfs.Removed,
	sandbox.FileChangeAttributes: sandboxfs.Attributes, sandbox.FileChangeMissed: sandboxfs.Missed,
}

// Watch implements sandboxfs.FS.
func (f *files) Watch(ctx context.Context, path string, recursive bool) (sandboxfs.Watcher, error) {
	st, cancel, err := open(ctx, func(ctx context.Context) (rpc.ClientStream[rpc.None, sandbox.FileEvent], error) {
		return f.c.Watch(ctx, &sandbox.WatchFilesRequest{Sandbox: f.sid, Path: path, User: f.user, Recursive: opt.Of(recursive)})
	}, func(st rpc.ClientStream[rpc.None, sandbox.FileEvent]) error {
		_, err := st.Recv()
		return cut(err)
	})
	if err != nil {
		return nil, err
	}
	return &watcher{st, cancel}, nil
}

type watcher struct {
	st     rpc.ClientStream[rpc.None, sandbox.FileEvent]
	cancel context.CancelFunc
}

func (w *watcher) Next() (sandboxfs.Event, error) {
	e, err := w.st.Recv()
	if err != nil {
		return sandboxfs.Event{}, err
	}
	return sandboxfs.Event{Change: fileChanges[e.Change], Path: e.Path, Dir: opt.Value(e.Directory)}, nil
}

func (w *watcher) Close() error {
	w.cancel()
	return nil
}

// Attrs implements sandboxfs.FS.
func (f *files) Attrs(ctx context.Context, path string) (map[string][]byte, error) {
	resp, err := f.c.Attributes(ctx, f.request(path))
	if err != nil {
		return nil, err
	}
	return fileAttrs(resp.Attributes), nil
}

// SetAttr implements sandboxfs.FS.
func (f *files) SetAttr(ctx context.Context, path, name string, value []byte) error {
	return f.c.SetAttribute(ctx, &sandbox.SetAttributeRequest{Sandbox: f.sid, Path: path, User: f.user, Name: name, Value: value, Remove: opt.Of(value == nil)})
}

// Symlink implements sandboxfs.FS.
func (f *files) Symlink(ctx context.Context, target, path string) error {
	return f.c.MakeLink(ctx, &sandbox.MakeLinkRequest{Sandbox: f.sid, Path: path, User: f.user, Target: target})
}

// Link implements sandboxfs.FS.
func (f *files) Link(ctx context.Context, from, to string) error {
	return f.c.MakeLink(ctx, &sandbox.MakeLinkRequest{Sandbox: f.sid, Path: to, User: f.user, Target: from, Hard: opt.Of(true)})
}

// Chtimes implements sandboxfs.FS.
func (f *files) Chtimes(ctx context.Context, path string, accessed, modified time.Time) error {
	return f.c.ChangeTimes(ctx, &sandbox.ChangeTimesRequest{Sandbox: f.sid, Path: path, User: f.user, AccessedAt: accessed, ModifiedAt: modified})
}

// Truncate implements sandboxfs.FS.
func (f *files) Truncate(ctx context.Context, path string, size int64) error {
	return f.c.Truncate(ctx, &sandbox.TruncateFileRequest{Sandbox: f.sid, Path: path, User: f.user, SizeBytes: size})
}

// Space implements sandboxfs.FS.
func (f *files) Space(ctx context.Context, path string) (sandboxfs.Space, error) {
	s, err := f.c.Space(ctx, f.request(path))
	if err != nil {
		return sandboxfs.Space{}, err
	}
	return sandboxfs.Space{Bytes: s.TotalBytes, FreeBytes: s.FreeBytes, Files: opt.Value(s.TotalFiles), FreeFiles: opt.Value(s.FreeFiles)}, nil
}
