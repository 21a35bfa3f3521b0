// Package transfer copies files and directories between this machine and a
// sandbox. Directories travel as tar archives.
package transfer

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/pkg/atomicfile"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/pkg/sandboxfs"
)

// Client copies files from and to one sandbox.
type Client struct {
	Files   sandbox.FilesClient
	Sandbox id.Sandbox
	User    string // whose permissions hold; "": the sandbox's
}

// Content is a file, or a directory as a tar archive of its contents.
type Content struct {
	io.Reader
	Dir  bool
	Mode fs.FileMode // permissions of a file
	Size int64       // of a file
	end  func() error
}

// Close ends the transfer.
func (c *Content) Close() error { return c.end() }

// Get opens a file or directory of the sandbox. The caller closes it.
func (c *Client) Get(ctx context.Context, name string) (*Content, error) {
	st, err := c.Files.Read(ctx, &sandbox.ReadFileRequest{Sandbox: c.Sandbox, Path: name, User: c.User})
	if err != nil {
		return nil, err
	}
	m, err := st.Recv()
	if err == nil && m.Info != nil {
		return &Content{Reader: &dataReader{st: st}, Mode: ModeOf(m.Info), Size: m.Info.SizeBytes, end: st.Close}, nil
	}
	st.Close()
	if !errs.Is(err, errs.InvalidArgument) {
		return nil, err
	}
	// It is no file.
	if dir, derr := c.IsDir(ctx, name); derr != nil || !dir {
		return nil, err
	}
	at, err := c.Files.Archive(ctx, &sandbox.FileRequest{Sandbox: c.Sandbox, Path: name, User: c.User})
	if err != nil {
		return nil, err
	}
	return &Content{Reader: at.Reader(), Dir: true, end: at.Close}, nil
}

// ModeOf returns the permissions of a file, without those of setuid and setgid:
// the sandbox has users of its own.
func ModeOf(i *sandbox.FileInfo) fs.FileMode { return sandboxfs.Perm(uint32(i.Mode)).Perm() }

// dataReader reads the data of a file.
type dataReader struct {
	st   rpc.ClientStream[rpc.None, sandbox.ReadFileOutput]
	rest []byte
}

func (r *dataReader) Read(b []byte) (int, error) {
	for len(r.rest) == 0 {
		m, err := r.st.Recv()
		if err != nil {
			return 0, err
		}
		r.rest = m.Data
	}
	n := copy(b, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// IsDir reports whether a path of the sandbox is a directory, or leads to one.
func (c *Client) IsDir(ctx context.Context, name string) (bool, error) {
	i, err := c.Files.Stat(ctx, &sandbox.FileRequest{Sandbox: c.Sandbox, Path: name, User: c.User})
	switch {
	case errs.Is(err, errs.NotFound):
		return false, nil
	case err != nil:
		return false, err
	case i.Type == sandbox.FileTypeSymlink:
		one := int64(1)
		_, err := c.Files.List(ctx, &sandbox.ListFilesRequest{Sandbox: c.Sandbox, Path: name, User: c.User, Limit: &one})
		if errs.Is(err, errs.InvalidArgument) || errs.Is(err, errs.NotFound) { // it leads to a file, or nowhere
			return false, nil
		}
		return err == nil, err
	}
	return i.Type == sandbox.FileTypeDirectory, nil
}

// PutFile writes a file of the sandbox, which appears when it is complete.
// Missing directories are made. A mode of 0 is 0644, or that of the replaced file.
func (c *Client) PutFile(ctx context.Context, r io.Reader, name string, mode fs.FileMode) error {
	bits, parents := int64(mode.Perm()), true
	req := &sandbox.WriteFileRequest{Sandbox: c.Sandbox, Path: name, User: c.User, Parents: &parents}
	if bits != 0 {
		req.Mode = &bits
	}
	st, err := c.Files.Write(ctx, req)
	if err != nil {
		return err
	}
	defer st.Close()
	_, err = io.Copy(st.Writer(), r)
	return sent(st, err)
}

// PutDir copies a directory of this machine to one of the sandbox, which is made
// if it is missing.
func (c *Client) PutDir(ctx context.Context, local, name string, count func(n int)) error {
	return c.putArchive(ctx, name, func(w io.Writer) error { return pack(w, local, count) })
}

// PutArchive unpacks a tar archive in a directory of the sandbox.
func (c *Client) PutArchive(ctx context.Context, r io.Reader, name string) error {
	return c.putArchive(ctx, name, func(w io.Writer) error { _, err := io.Copy(w, r); return err })
}

func (c *Client) putArchive(ctx context.Context, name string, write func(io.Writer) error) error {
	st, err := c.Files.Extract(ctx, &sandbox.FileRequest{Sandbox: c.Sandbox, Path: name, User: c.User})
	if err != nil {
		return err
	}
	defer st.Close()
	return sent(st, write(st.Writer()))
}

// sent ends the upload of bytes, after whose sending err happened, and waits for
// the server's answer.
func sent[Out any](st rpc.ClientStream[rpc.Bytes, Out], err error) error {
	if err == nil {
		err = st.CloseSend()
	}
	if err != nil && !errors.Is(err, io.EOF) { // io.EOF: the call has ended
		return err
	}
	if _, err = st.Recv(); errors.Is(err, io.EOF) { // the answer has no message
		return nil
	}
	return err
}

// Base returns the last element of a path of a sandbox under which a copy of it
// is put into a directory. It is empty for a path whose contents are copied: "/",
// "." and what ends with "/.".
func Base(name string) string {
	switch b := path.Base(name); b {
	case ".", "..", "/":
		return ""
	default:
		return b
	}
}

// Save writes content to a path of this machine: into it under the name base if
// it is a directory or ends with a separator, else as that path.
func (c *Content) Save(to, base string) error {
	info, err := os.Stat(to)
	inside := err == nil && info.IsDir() || strings.HasSuffix(to, "/") || strings.HasSuffix(to, string(filepath.Separator))
	if inside {
		to = filepath.Join(to, base)
	}
	if c.Dir {
		if err := os.MkdirAll(to, 0o755); err != nil {
			return errs.New(errs.FailedPrecondition, "%w", err)
		}
		return unpack(c, to)
	}
	return c.saveFile(to)
}

// saveFile writes a file, which appears when it is complete. A device or pipe
// gets the bytes.
func (c *Content) saveFile(to string) error {
	if info, err := os.Stat(to); err == nil && !info.Mode().IsRegular() {
		f, err := os.OpenFile(to, os.O_WRONLY, 0)
		if err != nil {
			return errs.New(errs.FailedPrecondition, "%w", err)
		}
		_, err = io.Copy(f, c)
		return errors.Join(err, f.Close())
	}
	f, err := atomicfile.Create(to, c.Mode)
	if err != nil {
		return errs.New(errs.FailedPrecondition, "%w", err)
	}
	defer f.Abort()
	if _, err := io.Copy(f, c); err != nil {
		return err
	}
	return f.Commit()
}
