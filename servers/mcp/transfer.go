package mcpserver

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/pkg/errs"
)

// hasFiles reports whether files of this machine may be copied.
func hasFiles(s *session) bool { return s.Files != "" }

type uploadInput struct {
	Sandbox string `json:"sandbox" jsonschema:"id or name of the sandbox"`
	Local   string `json:"local" jsonschema:"path of the file on the user's machine, below the folder that the server permits"`
	Path    string `json:"path" jsonschema:"path in the sandbox; a relative one is below the working directory"`
}

type transferOutput struct {
	Local string `json:"local"`
	Path  string `json:"path"`
	Bytes int64  `json:"bytes"`
}

// folder opens the folder from and to which files are copied. No path in it
// leads out of it.
func (s *session) folder() (*os.Root, error) {
	root, err := os.OpenRoot(s.Files)
	if err != nil {
		return nil, errs.New(errs.FailedPrecondition, "the folder of --files: %w", err)
	}
	return root, nil
}

// localError returns an error of a path of this machine.
func localError(err error) error {
	return errs.New(errs.InvalidArgument, "%w", err).WithHint("give a path below the folder of --files, as a relative one")
}

func (s *session) uploadFile(ctx context.Context, c *call, in *uploadInput) (*transferOutput, error) {
	sb, err := s.find(ctx, in.Sandbox)
	if err != nil {
		return nil, err
	}
	root, err := s.folder()
	if err != nil {
		return nil, err
	}
	defer root.Close()
	f, err := root.Open(in.Local)
	if err != nil {
		return nil, localError(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, localError(err)
	}
	if !info.Mode().IsRegular() {
		return nil, errs.New(errs.InvalidArgument, "%s is not a file", in.Local).WithHint("upload its files one by one, or an archive")
	}
	if err := s.fits(info.Size()); err != nil {
		return nil, err
	}
	c.say("uploading %s", in.Local)
	req := &sandbox.WriteFileRequest{Sandbox: sb.GetID(), Path: in.Path, Parents: new(true)}
	if info.Mode()&0o111 != 0 {
		req.Mode = new(int64(0o755))
	}
	st, err := s.files.Write(ctx, req)
	if err != nil {
		return nil, err
	}
	defer st.Close()
	from := &source{Reader: f}
	if _, err := io.Copy(st.Writer(), from); from.err != nil {
		return nil, errs.New(errs.Unavailable, "read %s: %w", in.Local, from.err)
	} else if err == nil {
		_ = st.CloseSend() // the reason of a failed write is what Recv returns
	}
	written, err := st.Recv()
	if err != nil {
		return nil, err
	}
	return &transferOutput{in.Local, in.Path, written.SizeBytes}, nil
}

// source keeps the error of a reader apart from that of its writer.
type source struct {
	io.Reader
	err error
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = err
	}
	return n, err
}

type downloadInput struct {
	Sandbox string `json:"sandbox" jsonschema:"id or name of the sandbox"`
	Path    string `json:"path" jsonschema:"path in the sandbox; a relative one is below the working directory"`
	Local   string `json:"local" jsonschema:"path of the new file on the user's machine, below the folder that the server permits; it must not exist"`
}

func (s *session) downloadFile(ctx context.Context, c *call, in *downloadInput) (*transferOutput, error) {
	sb, err := s.find(ctx, in.Sandbox)
	if err != nil {
		return nil, err
	}
	root, err := s.folder()
	if err != nil {
		return nil, err
	}
	defer root.Close()
	c.say("downloading %s", in.Path)
	st, err := s.files.Read(ctx, &sandbox.ReadFileRequest{Sandbox: sb.GetID(), Path: in.Path})
	if err != nil {
		return nil, err
	}
	defer st.Close()
	about, err := st.Recv()
	if err == nil && about.Info != nil {
		err = s.fits(about.Info.SizeBytes)
	}
	if err != nil {
		return nil, err
	}
	if err := root.MkdirAll(filepath.Dir(in.Local), 0o755); err != nil {
		return nil, localError(err)
	}
	f, err := root.OpenFile(in.Local, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return nil, localError(err)
	}
	n, err := s.receive(f, st.Recv)
	if err = errors.Join(err, f.Close()); err != nil {
		_ = root.Remove(in.Local) // a part of a file is of no use
		return nil, err
	}
	return &transferOutput{in.Local, in.Path, n}, nil
}

// receive writes what is left of a file to w.
func (s *session) receive(w io.Writer, recv func() (*sandbox.ReadFileOutput, error)) (n int64, err error) {
	for {
		m, err := recv()
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
		if err := s.fits(n + int64(len(m.Data))); err != nil { // it grows
			return n, err
		}
		k, err := w.Write(m.Data)
		if n += int64(k); err != nil {
			return n, err
		}
	}
}
