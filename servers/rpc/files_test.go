package rpcserver_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/sandboxfs"
	"miren.dev/runtime/testsupport/wait"
)

// hostFiles is a directory whose files stand for those of every sandbox: the
// simulated machine has none. components/agent tests the real ones.
type hostFiles string

func (d hostFiles) Files(string, sandboxfs.View) sandboxfs.FS { return &hostFS{dir: string(d)} }

// hostFS has the methods of sandboxfs.FS that the tests call.
type hostFS struct {
	sandboxfs.FS
	dir string
}

func hostError(err error) error {
	for is, class := range map[error]errs.Class{fs.ErrNotExist: errs.NotFound, fs.ErrExist: errs.AlreadyExists, fs.ErrPermission: errs.PermissionDenied} {
		if errors.Is(err, is) {
			return errs.New(class, "%w", err)
		}
	}
	return err
}

func hostInfo(i fs.FileInfo) sandboxfs.Info {
	return sandboxfs.Info{Name: i.Name(), Mode: i.Mode(), Size: i.Size(), ModTime: i.ModTime(), UID: 1000}
}

func (f *hostFS) at(path string) string { return filepath.Join(f.dir, path) }

func (f *hostFS) Stat(_ context.Context, path string) (sandboxfs.Info, error) {
	i, err := os.Lstat(f.at(path))
	if err != nil {
		return sandboxfs.Info{}, hostError(err)
	}
	return hostInfo(i), nil
}

func (f *hostFS) List(ctx context.Context, path string, o sandboxfs.ListOptions) (list []sandboxfs.Info, more bool, err error) {
	all, err := os.ReadDir(f.at(path))
	for _, e := range all {
		if i, err := e.Info(); err == nil && e.Name() > o.After {
			info := hostInfo(i)
			if o.Attrs {
				info.Attrs, _ = f.Attrs(ctx, filepath.Join(path, e.Name()))
			}
			list = append(list, info)
		}
	}
	if o.Limit > 0 && len(list) > o.Limit {
		return list[:o.Limit], true, nil
	}
	return list, false, hostError(err)
}

// hostAttrs are attributes by path. Not every file system of a host has them.
var hostAttrs = struct {
	sync.Mutex
	of map[string]map[string][]byte
}{of: map[string]map[string][]byte{}}

func (f *hostFS) Attrs(ctx context.Context, path string) (map[string][]byte, error) {
	if _, err := f.Stat(ctx, path); err != nil {
		return nil, err
	}
	hostAttrs.Lock()
	defer hostAttrs.Unlock()
	return maps.Clone(hostAttrs.of[f.at(path)]), nil
}

func (f *hostFS) SetAttr(ctx context.Context, path, name string, value []byte) error {
	if _, err := f.Stat(ctx, path); err != nil {
		return err
	}
	hostAttrs.Lock()
	defer hostAttrs.Unlock()
	attrs := maps.Clone(hostAttrs.of[f.at(path)])
	if value == nil {
		delete(attrs, name)
	} else {
		if attrs == nil {
			attrs = map[string][]byte{}
		}
		attrs[name] = value
	}
	hostAttrs.of[f.at(path)] = attrs
	return nil
}

type hostReader struct {
	io.Reader
	*os.File
}

func (r hostReader) Read(b []byte) (int, error) { return r.Reader.Read(b) }

func (r hostReader) Info() sandboxfs.Info {
	i, _ := r.Stat() // of an open file it does not fail
	return hostInfo(i)
}

func (f *hostFS) Read(_ context.Context, path string, offset, length int64) (sandboxfs.Reader, error) {
	if path == "denied" {
		return nil, errs.New(errs.PermissionDenied, "denied: permission denied")
	}
	file, err := os.Open(f.at(path))
	if err != nil {
		return nil, hostError(err)
	}
	if i, err := file.Stat(); err != nil || i.IsDir() {
		file.Close()
		return nil, errs.New(errs.InvalidArgument, "%s: is a directory", path)
	}
	if length == 0 {
		length = 1 << 40
	}
	return hostReader{io.NewSectionReader(file, offset, length), file}, nil
}

// hostWriter writes a temporary file, which Commit renames.
type hostWriter struct {
	*os.File
	path string
}

func (f *hostFS) Write(_ context.Context, path string, o sandboxfs.WriteOptions) (sandboxfs.Writer, error) {
	file, err := os.OpenFile(f.at(path)+".tmp", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, o.Perm)
	if err != nil {
		return nil, hostError(err)
	}
	return hostWriter{file, f.at(path)}, nil
}

func (w hostWriter) Commit(context.Context) (sandboxfs.Info, error) {
	i, err := w.Stat()
	if err == nil {
		err = os.Rename(w.Name(), w.path)
	}
	if err != nil {
		return sandboxfs.Info{}, hostError(err)
	}
	return hostInfo(i), nil
}

func (w hostWriter) Close() error {
	_ = os.Remove(w.Name()) // it was renamed if it was committed
	return w.File.Close()
}

func (f *hostFS) Archive(_ context.Context, path string) (io.ReadCloser, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := errors.Join(w.AddFS(os.DirFS(f.at(path))), w.Close()); err != nil {
		return nil, hostError(err)
	}
	return io.NopCloser(&b), nil
}

type hostExtractor struct {
	bytes.Buffer
	dir string
}

func (x *hostExtractor) Close() error { return nil }

func (x *hostExtractor) Finish(context.Context) error {
	r := tar.NewReader(&x.Buffer)
	for {
		h, err := r.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return errs.New(errs.InvalidArgument, "the archive is not a complete tar file")
		}
		b, err := io.ReadAll(r)
		if err == io.ErrUnexpectedEOF {
			return errs.New(errs.InvalidArgument, "the archive is not a complete tar file")
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(x.dir, h.Name), b, 0o644)
		}
		if err != nil {
			return err
		}
	}
}

func (f *hostFS) Extract(_ context.Context, path string) (sandboxfs.Extractor, error) {
	return &hostExtractor{dir: f.at(path)}, os.MkdirAll(f.at(path), 0o755)
}

func (f *hostFS) Remove(_ context.Context, path string, _ bool) error {
	return hostError(os.Remove(f.at(path)))
}

func (f *hostFS) Symlink(_ context.Context, target, path string) error {
	return hostError(os.Symlink(target, f.at(path)))
}

func (f *hostFS) Link(_ context.Context, from, to string) error {
	return hostError(os.Link(f.at(from), f.at(to)))
}

func (f *hostFS) Chtimes(_ context.Context, path string, accessed, modified time.Time) error {
	return hostError(os.Chtimes(f.at(path), accessed, modified))
}

func (f *hostFS) Truncate(_ context.Context, path string, size int64) error {
	return hostError(os.Truncate(f.at(path), size))
}

func (f *hostFS) Space(context.Context, string) (sandboxfs.Space, error) {
	return sandboxfs.Space{Bytes: 1 << 20, FreeBytes: 1 << 10}, nil
}

// hostWatcher reports one change and waits for the end of the call.
type hostWatcher struct {
	first  chan sandboxfs.Event
	closed chan struct{}
	once   sync.Once
}

func (w *hostWatcher) Next() (sandboxfs.Event, error) {
	select {
	case e := <-w.first:
		return e, nil
	case <-w.closed:
		return sandboxfs.Event{}, io.ErrClosedPipe
	}
}

func (w *hostWatcher) Close() error {
	w.once.Do(func() { close(w.closed) })
	return nil
}

func (f *hostFS) Watch(context.Context, string, bool) (sandboxfs.Watcher, error) {
	w := &hostWatcher{first: make(chan sandboxfs.Event, 1), closed: make(chan struct{})}
	w.first <- sandboxfs.Event{Change: sandboxfs.Created, Path: "new", Dir: true}
	return w, nil
}

// put writes a file by the RPC method.
func (e *env) put(req *sandbox.WriteFileRequest, content []byte) (*sandbox.FileInfo, error) {
	e.Helper()
	st, err := e.fileCalls.Write(e.ctx(), req)
	e.must(err)
	defer st.Close()
	if _, err := st.Writer().Write(content); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if err := st.CloseSend(); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return st.Recv()
}

// get reads a file by the RPC method.
func (e *env) get(req *sandbox.ReadFileRequest) (info *sandbox.FileInfo, content []byte, err error) {
	e.Helper()
	st, err := e.fileCalls.Read(e.ctx(), req)
	e.must(err)
	defer st.Close()
	for {
		m, err := st.Recv()
		if err != nil {
			if err == io.EOF {
				err = nil
			}
			return info, content, err
		}
		if m.Info != nil {
			info = m.Info
		}
		content = append(content, m.Data...)
	}
}

func TestFiles(t *testing.T) {
	e := newEnv(t)
	sb := e.run("stub").GetID()
	big := bytes.Repeat([]byte("0123456789abcdef"), 100_000)
	info, err := e.put(&sandbox.WriteFileRequest{Sandbox: sb, Path: "big", Mode: ptr(int64(0o640))}, big)
	if err != nil || info.SizeBytes != int64(len(big)) || info.Mode != 0o640 || info.Type != sandbox.FileTypeFile {
		t.Fatalf("%+v, %v", info, err)
	}
	if info, b, err := e.get(&sandbox.ReadFileRequest{Sandbox: sb, Path: "big"}); err != nil || !bytes.Equal(b, big) || info.Name != "big" || info.UID != 1000 {
		t.Errorf("%d of %d bytes of %+v, %v", len(b), len(big), info, err)
	}
	if _, b, err := e.get(&sandbox.ReadFileRequest{Sandbox: sb, Path: "big", Offset: ptr(int64(3)), Length: ptr(int64(4))}); err != nil || string(b) != "3456" {
		t.Errorf("%q, %v", b, err)
	}
	info, err = e.fileCalls.Stat(e.ctx(), &sandbox.FileRequest{Sandbox: sb, Path: "big"})
	if err != nil || info.SizeBytes != int64(len(big)) {
		t.Errorf("%+v, %v", info, err)
	}
	_, err = e.put(&sandbox.WriteFileRequest{Sandbox: sb, Path: "small"}, []byte("text"))
	e.must(err)
	l, err := e.fileCalls.List(e.ctx(), &sandbox.ListFilesRequest{Sandbox: sb, Path: ".", Limit: ptr(int64(1))})
	if err != nil || len(l.Files) != 1 || l.Files[0].Name != "big" || !l.More {
		t.Errorf("%+v, %v", l, err)
	}
	t.Run("attributes", func(t *testing.T) {
		for name, value := range map[string]string{"origin": "here", "empty": "", "other": "thing"} {
			e.must(e.fileCalls.SetAttribute(e.ctx(), &sandbox.SetAttributeRequest{Sandbox: sb, Path: "small", Name: name, Value: []byte(value)}))
		}
		e.must(e.fileCalls.SetAttribute(e.ctx(), &sandbox.SetAttributeRequest{Sandbox: sb, Path: "small", Name: "other", Remove: ptr(true)}))
		want := "[{empty []} {origin [104 101 114 101]}]"
		a, err := e.fileCalls.Attributes(e.ctx(), &sandbox.FileRequest{Sandbox: sb, Path: "small"})
		if err != nil || fmt.Sprint(a.Attributes) != want {
			t.Errorf("%v, %v", a, err)
		}
		l, err := e.fileCalls.List(e.ctx(), &sandbox.ListFilesRequest{Sandbox: sb, Path: ".", Attributes: ptr(true)})
		if err != nil || len(l.Files) != 2 || l.Files[0].Attributes != nil || fmt.Sprint(l.Files[1].Attributes) != want {
			t.Errorf("%+v, %v", l, err)
		}
		if l, err = e.fileCalls.List(e.ctx(), &sandbox.ListFilesRequest{Sandbox: sb, Path: "."}); err != nil || l.Files[1].Attributes != nil {
			t.Errorf("%+v, %v", l, err)
		}
		_, err = e.fileCalls.Attributes(e.ctx(), &sandbox.FileRequest{Sandbox: sb, Path: "none"})
		e.class("attributes of a missing file", err, errs.NotFound)
		for name, size := range map[string]int{"": 1, strings.Repeat("n", 201): 1, "big": 32<<10 + 1} {
			err = e.fileCalls.SetAttribute(e.ctx(), &sandbox.SetAttributeRequest{Sandbox: sb, Path: "small", Name: name, Value: make([]byte, size)})
			e.class("an attribute", err, errs.InvalidArgument)
		}
	})
	t.Run("refused", func(t *testing.T) {
		_, _, err := e.get(&sandbox.ReadFileRequest{Sandbox: sb, Path: "none"})
		e.class("a missing file", err, errs.NotFound)
		// The class PermissionDenied says that the call was refused, which it was not.
		_, _, err = e.get(&sandbox.ReadFileRequest{Sandbox: sb, Path: "denied"})
		e.class("a file of another user", err, errs.FailedPrecondition)
		for _, path := range []string{"", strings.Repeat("x", sandbox.MaxFilePath+1)} {
			_, err = e.fileCalls.Stat(e.ctx(), &sandbox.FileRequest{Sandbox: sb, Path: path})
			e.class("a path", err, errs.InvalidArgument)
		}
		_, err = e.put(&sandbox.WriteFileRequest{Sandbox: sb, Path: "x", Mode: ptr(int64(0o10000))}, nil)
		e.class("a mode", err, errs.InvalidArgument)
		_, err = e.fileCalls.Stat(e.ctx(), &sandbox.FileRequest{Sandbox: id.NewSandbox(), Path: "x"})
		e.class("no sandbox", err, errs.NotFound)
	})
	// A caller that goes before the end of a file leaves nothing of it.
	t.Run("abandoned", func(t *testing.T) {
		st, err := e.fileCalls.Write(e.ctx(), &sandbox.WriteFileRequest{Sandbox: sb, Path: "half"})
		e.must(err)
		_, err = st.Writer().Write(big[:1000])
		e.must(err)
		temporary := filepath.Join(e.files, "half.tmp")
		exists := func() bool { _, err := os.Stat(temporary); return err == nil }
		wait.For(t, "the file is begun", exists)
		st.Close()
		wait.For(t, "the file is removed", func() bool { return !exists() })
		_, err = e.fileCalls.Stat(e.ctx(), &sandbox.FileRequest{Sandbox: sb, Path: "half"})
		e.class("half of a file", err, errs.NotFound)
	})
	t.Run("archive", func(t *testing.T) {
		st, err := e.fileCalls.Archive(e.ctx(), &sandbox.FileRequest{Sandbox: sb, Path: "."})
		e.must(err)
		defer st.Close()
		archive, err := io.ReadAll(st.Reader())
		e.must(err)
		extract := func(b []byte) error {
			st, err := e.fileCalls.Extract(e.ctx(), &sandbox.FileRequest{Sandbox: sb, Path: "copy"})
			e.must(err)
			defer st.Close()
			_, err = st.Writer().Write(b)
			e.must(err)
			e.must(st.CloseSend())
			if _, err = st.Recv(); err == io.EOF {
				return nil
			}
			return err
		}
		e.must(extract(archive))
		if b, err := os.ReadFile(filepath.Join(e.files, "copy", "small")); err != nil || string(b) != "text" {
			t.Errorf("%q, %v", b, err)
		}
		e.class("no archive", extract(archive[:700]), errs.InvalidArgument)
	})
	t.Run("links, times and sizes", func(t *testing.T) {
		e.must(e.fileCalls.MakeLink(e.ctx(), &sandbox.MakeLinkRequest{Sandbox: sb, Path: "text", Target: "../any"}))
		e.must(e.fileCalls.MakeLink(e.ctx(), &sandbox.MakeLinkRequest{Sandbox: sb, Path: "hard", Target: "small", Hard: ptr(true)}))
		e.class("a name that exists", e.fileCalls.MakeLink(e.ctx(), &sandbox.MakeLinkRequest{Sandbox: sb, Path: "hard", Target: "x"}), errs.AlreadyExists)
		then := time.Unix(1_000_000_000, 5000)
		e.must(e.fileCalls.Truncate(e.ctx(), &sandbox.TruncateFileRequest{Sandbox: sb, Path: "hard", SizeBytes: 2}))
		e.must(e.fileCalls.ChangeTimes(e.ctx(), &sandbox.ChangeTimesRequest{Sandbox: sb, Path: "hard", AccessedAt: then, ModifiedAt: then}))
		if target, err := os.Readlink(filepath.Join(e.files, "text")); err != nil || target != "../any" {
			t.Errorf("%q, %v", target, err)
		}
		if i, err := os.Stat(filepath.Join(e.files, "small")); err != nil || i.Size() != 2 || !i.ModTime().Equal(then) {
			t.Errorf("%+v, %v", i, err)
		}
		if s, err := e.fileCalls.Space(e.ctx(), &sandbox.FileRequest{Sandbox: sb, Path: "/"}); err != nil || s.TotalBytes != 1<<20 || s.FreeBytes != 1<<10 || s.TotalFiles != nil {
			t.Errorf("%+v, %v", s, err)
		}
		e.class("a size", e.fileCalls.Truncate(e.ctx(), &sandbox.TruncateFileRequest{Sandbox: sb, Path: "hard", SizeBytes: -1}), errs.InvalidArgument)
	})
	t.Run("watch", func(t *testing.T) {
		ctx, cancel := context.WithCancel(e.ctx())
		defer cancel()
		st, err := e.fileCalls.Watch(ctx, &sandbox.WatchFilesRequest{Sandbox: sb, Path: "."})
		e.must(err)
		defer st.Close()
		if m, err := st.Recv(); err != nil || m.Started == nil || m.Change != "" {
			t.Errorf("%+v, %v", m, err)
		}
		if m, err := st.Recv(); err != nil || m.Change != sandbox.FileChangeCreated || m.Path != "new" || m.Directory == nil {
			t.Errorf("%+v, %v", m, err)
		}
		cancel()
		_, err = st.Recv()
		e.class("canceled", err, errs.Canceled)
	})
	e.must(e.fileCalls.Remove(e.ctx(), &sandbox.RemoveFileRequest{Sandbox: sb, Path: "small"}))
	_, err = e.fileCalls.Stat(e.ctx(), &sandbox.FileRequest{Sandbox: sb, Path: "small"})
	e.class("removed", err, errs.NotFound)
}

// A use of its files resumes a paused sandbox, and is refused once it has ended.
func TestFilesOfAPausedSandbox(t *testing.T) {
	e := newEnv(t)
	sb := e.run("stub")
	_, err := e.sandboxes.Pause(e.ctx(), &sandbox.PauseRequest{Sandbox: sb.GetID(), Wait: ptr(true)})
	e.must(err)
	_, err = e.put(&sandbox.WriteFileRequest{Sandbox: sb.GetID(), Path: "file"}, []byte("text"))
	e.must(err)
	if got := e.until(sb, sandbox.WaitUntilRunning); got.Status.Phase != sandbox.SandboxPhaseRunning {
		t.Errorf("%+v", got.Status)
	}
	_, err = e.sandboxes.Stop(e.ctx(), &sandbox.StopRequest{Sandbox: sb.GetID(), Wait: ptr(true)})
	e.must(err)
	_, err = e.put(&sandbox.WriteFileRequest{Sandbox: sb.GetID(), Path: "file"}, []byte("text"))
	e.class("ended", err, errs.FailedPrecondition)
}

// The files of a program reach its sandbox without a shell, which the simulated
// machine does not have.
func TestRunCodeWritesItsFiles(t *testing.T) {
	e := newEnv(t)
	e.pool(1)
	st, err := e.sandboxes.RunCode(e.ctx(), &sandbox.RunCodeRequest{
		Language: "python", Code: []byte("print(1)"), Files: []sandbox.InputFile{{Path: "data.txt", Data: []byte("text"), Executable: ptr(true)}},
	})
	e.must(err)
	defer st.Close()
	// There is no python3.
	if _, code, err := notes(st); err != nil || code != 127 {
		t.Errorf("%d, %v", code, err)
	}
	for name, want := range map[string]string{"main.py": "print(1)", "data.txt": "text"} {
		if b, err := os.ReadFile(filepath.Join(e.files, name)); err != nil || string(b) != want {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
	e.none()
}
