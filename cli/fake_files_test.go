package cli_test

import (
	"archive/tar"
	"bytes"
	"context"
	"io"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
)

// fakeFiles is the files of every sandbox, in memory, and the directory /dir
// with those below it. Other methods than the following are not called.
type fakeFiles struct {
	sandbox.Files
	mu    sync.Mutex
	files map[string]fakeFile
}

type fakeFile struct {
	data []byte
	mode int64
}

func newFakeFiles() *fakeFiles { return &fakeFiles{files: map[string]fakeFile{}} }

func (f *fakeFiles) info(name string) (*sandbox.FileInfo, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	name = path.Clean(name)
	i := &sandbox.FileInfo{Name: path.Base(name), Type: sandbox.FileTypeDirectory, Mode: 0o755, ModifiedAt: time.Now()}
	if file, ok := f.files[name]; ok {
		i.Type, i.Mode, i.SizeBytes = sandbox.FileTypeFile, file.mode, int64(len(file.data))
	} else if name != "/dir" && name != "." {
		return nil, errs.New(errs.NotFound, "%s: no such file or directory", name)
	}
	return i, nil
}

func (f *fakeFiles) put(name string, data []byte, mode int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.files[name] = fakeFile{data, mode}
}

func (f *fakeFiles) Stat(_ context.Context, req *sandbox.FileRequest) (*sandbox.FileInfo, error) {
	return f.info(req.Path)
}

func (f *fakeFiles) List(_ context.Context, req *sandbox.ListFilesRequest) (*sandbox.ListFilesResponse, error) {
	if i, err := f.info(req.Path); err != nil || i.Type == sandbox.FileTypeFile {
		return nil, errs.New(errs.InvalidArgument, "%s: not a directory", req.Path)
	}
	resp := &sandbox.ListFilesResponse{}
	for _, name := range f.names() {
		if dir, base := path.Split(name); path.Clean(dir) == req.Path && base > req.After {
			i, err := f.info(name)
			if err != nil {
				return nil, err
			}
			if len(resp.Files) == 1 { // the caller asks again
				resp.More = true
				break
			}
			resp.Files = append(resp.Files, *i)
		}
	}
	return resp, nil
}

func (f *fakeFiles) names() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var names []string
	for name := range f.files {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (f *fakeFiles) Read(_ context.Context, req *sandbox.ReadFileRequest, s rpc.ServerStream[rpc.None, sandbox.ReadFileOutput]) error {
	i, err := f.info(req.Path)
	if err != nil {
		return err
	}
	if i.Type != sandbox.FileTypeFile {
		return errs.New(errs.InvalidArgument, "%s: is a directory", req.Path)
	}
	if err := s.Send(&sandbox.ReadFileOutput{Info: i}); err != nil {
		return err
	}
	return s.Send(&sandbox.ReadFileOutput{Data: f.files[req.Path].data})
}

func (f *fakeFiles) Write(_ context.Context, req *sandbox.WriteFileRequest, s rpc.ServerStream[rpc.Bytes, sandbox.FileInfo]) error {
	data, err := io.ReadAll(s.Reader())
	if err != nil {
		return err
	}
	mode := int64(0o644)
	if req.Mode != nil {
		mode = *req.Mode
	}
	f.put(req.Path, data, mode)
	i, err := f.info(req.Path)
	if err != nil {
		return err
	}
	return s.Send(i)
}

func (f *fakeFiles) Archive(_ context.Context, req *sandbox.FileRequest, s rpc.ServerStream[rpc.None, rpc.Bytes]) error {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range f.names() {
		rel, ok := strings.CutPrefix(name, path.Clean(req.Path)+"/")
		if !ok {
			continue
		}
		file := f.files[name]
		if err := w.WriteHeader(&tar.Header{Name: rel, Mode: file.mode, Size: int64(len(file.data))}); err != nil {
			return err
		}
		if _, err := w.Write(file.data); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	_, err := s.Writer().Write(b.Bytes())
	return err
}

func (f *fakeFiles) Extract(_ context.Context, req *sandbox.FileRequest, s rpc.ServerStream[rpc.Bytes, rpc.None]) error {
	r := tar.NewReader(s.Reader())
	for {
		h, err := r.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		data, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		if h.Typeflag == tar.TypeReg {
			f.put(path.Join(req.Path, h.Name), data, h.Mode)
		}
	}
}

// Attach continues the process p1, which ends, or p0, whose connection is lost.
func (f fakeSandboxes) Attach(ctx context.Context, req *sandbox.AttachRequest, s rpc.ServerStream[sandbox.ExecInput, sandbox.ExecOutput]) error {
	if req.Process == "p0" {
		if err := s.Send(&sandbox.ExecOutput{Started: req.Sandbox, Process: req.Process}); err != nil {
			return err
		}
		return errs.New(errs.Unavailable, "the connection was lost")
	}
	if req.Process != "p1" {
		return errs.New(errs.NotFound, "no process %s", req.Process)
	}
	return f.Exec(ctx, &sandbox.ExecRequest{Sandbox: req.Sandbox, Command: []string{"both"}}, s)
}

func (f fakeSandboxes) Processes(context.Context, *sandbox.SandboxRequest) (*sandbox.ProcessesResponse, error) {
	yes, code := true, int64(3)
	return &sandbox.ProcessesResponse{Processes: []sandbox.Process{
		{ID: "p2", PID: 12, Command: []string{"make", "all"}, StartedAt: time.Now(), Detached: &yes, ExitCode: &code},
		{ID: "p1", PID: 11, Command: []string{"bash", "-l"}, StartedAt: time.Now(), Detached: &yes},
		{ID: "p0", PID: 10, Command: []string{"sleep", "9"}, StartedAt: time.Now(), Detached: &yes},
	}}, nil
}

func (f fakeSandboxes) Ports(context.Context, *sandbox.SandboxRequest) (*sandbox.PortsResponse, error) {
	return &sandbox.PortsResponse{Ports: []int64{80, 8080}}, nil
}

// Dial answers with what it gets, after its end. Of a connection that begins with
// "reset" it reports the begin and the end.
// DialService is called by the ingress only.
func (f fakeSandboxes) DialService(ctx context.Context, req *sandbox.DialRequest, s rpc.ServerStream[rpc.Bytes, rpc.Bytes]) error {
	return f.Dial(ctx, req, s)
}

func (f fakeSandboxes) Dial(_ context.Context, req *sandbox.DialRequest, s rpc.ServerStream[rpc.Bytes, rpc.Bytes]) error {
	if req.Port != 8080 {
		return errs.New(errs.FailedPrecondition, "nothing listens on port %d", req.Port)
	}
	b := make([]byte, len("reset"))
	if _, err := io.ReadFull(s.Reader(), b); err != nil {
		return err
	}
	reset := string(b) == "reset"
	if reset {
		f.dialed <- struct{}{}
	}
	rest, err := io.ReadAll(s.Reader())
	if reset {
		f.lost <- err
	}
	if err != nil {
		return err
	}
	_, err = s.Writer().Write(slices.Concat([]byte("echo "), b, rest))
	return err
}
