package sshserver

import (
	"context"
	"encoding/binary"
	"io"
	"io/fs"
	"math"
	"os"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/pkg/sftp"
	"golang.org/x/sys/unix"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
)

const (
	// homeTime bounds the question for the directory in which a session begins.
	homeTime = 10 * time.Second
	// maxOpen bounds the files that a session has open: each has a window.
	maxOpen = 128
	// maxLinks bounds the symbolic links that a path leads through.
	maxLinks = 16
	// blockSize is the unit in which the room of a file system is told, in bytes;
	// maxName the longest name of a file.
	blockSize, maxName = 4096, 255
)

// sftpFiles serves the requests of an SFTP session by the RPC service of files.
type sftpFiles struct {
	ctx     context.Context
	files   sandbox.FilesClient
	sandbox id.Sandbox

	mu   sync.Mutex
	open map[io.Closer]struct{} // readers and writers
}

// sftp serves the subsystem sftp, which scp uses too, until the client ends it.
func (s *session) sftp(ctx context.Context) {
	f := &sftpFiles{ctx: ctx, files: sandbox.NewFilesClient(s.c.rpc), sandbox: s.c.sandbox, open: map[io.Closer]struct{}{}}
	srv := sftp.NewRequestServer(s.ch, sftp.Handlers{FileGet: f, FilePut: f, FileCmd: f, FileList: f}, sftp.WithStartDirectory(s.c.home(ctx)))
	if err := srv.Serve(); err != nil && err != io.EOF {
		s.exit(failed)
		return
	}
	s.exit(0)
}

// home returns the working directory of the sandbox's processes, in which
// relative paths begin; the root if it has no program that says.
func (c *conn) home(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, homeTime)
	defer cancel()
	st, err := sandbox.NewSandboxesClient(c.rpc).Exec(ctx, &sandbox.ExecRequest{Sandbox: c.sandbox, Command: []string{"pwd"}})
	if err != nil {
		return "/"
	}
	defer st.Close()
	return readHome(st)
}

// readHome returns the path that a program of the sandbox prints, or the root if the
// output is longer than a path.
func readHome(st rpc.ClientStream[sandbox.ExecInput, sandbox.ExecOutput]) string {
	out := ""
	for {
		m, err := st.Recv()
		if err != nil || len(out)+len(m.Stdout) > unix.PathMax {
			return "/"
		}
		out += string(m.Stdout)
		if dir := strings.TrimSuffix(out, "\n"); m.ExitCode != nil {
			if *m.ExitCode != 0 || !path.IsAbs(dir) {
				return "/"
			}
			return dir
		}
	}
}

// sftpError returns the error that a client gets.
func sftpError(err error) error {
	switch errs.ClassOf(err) {
	case errs.NotFound:
		return sftp.ErrSSHFxNoSuchFile
	case errs.PermissionDenied, errs.FailedPrecondition:
		return sftp.ErrSSHFxPermissionDenied
	case errs.Unimplemented: // by the agent of an older sandbox
		return sftp.ErrSSHFxOpUnsupported
	}
	return err
}

// Fileread opens a file for reading.
func (f *sftpFiles) Fileread(r *sftp.Request) (io.ReaderAt, error) {
	if _, err := f.stat(r.Filepath); err != nil {
		return nil, sftpError(err)
	}
	x := &reader{f: f, path: r.Filepath}
	return x, f.keep(x)
}

// Filewrite opens a file for writing.
func (f *sftpFiles) Filewrite(r *sftp.Request) (io.WriterAt, error) {
	flags := r.Pflags()
	w := &writer{f: f, path: r.Filepath, append: flags.Append}
	if err := f.keep(w); err != nil {
		return nil, err
	}
	_, err := f.stat(r.Filepath)
	exists := err == nil
	switch {
	case err != nil && !errs.Is(err, errs.NotFound):
	case !exists && !flags.Creat:
	case exists && flags.Excl:
		err = sftp.ErrSSHFxFailure
	case !exists:
		err = f.create(r, flags.Excl)
	case flags.Trunc:
		err = f.truncate(r.Filepath, 0)
	}
	if err != nil {
		f.forget(w)
		return nil, sftpError(err)
	}
	return w, nil
}

// create makes an empty file.
func (f *sftpFiles) create(r *sftp.Request, exclusive bool) error {
	req := &sandbox.WriteFileRequest{Sandbox: f.sandbox, Path: r.Filepath}
	if exclusive {
		req.Write = sandbox.WriteModeCreate
	}
	if len(r.Attrs) == 4 { // only the permissions
		bits := int64(binary.BigEndian.Uint32(r.Attrs) & 0o777)
		req.Mode = &bits
	}
	st, err := f.files.Write(f.ctx, req)
	if err != nil {
		return err
	}
	defer st.Close()
	if err := st.CloseSend(); err != nil && err != io.EOF {
		return err
	}
	_, err = st.Recv()
	return err
}

func (f *sftpFiles) truncate(path string, size int64) error {
	return f.files.Truncate(f.ctx, &sandbox.TruncateFileRequest{Sandbox: f.sandbox, Path: path, SizeBytes: size})
}

// settle writes what the client has written to a file that is still open, so
// that a later request for the same path comes after it.
func (f *sftpFiles) settle(path string) error {
	var open []*writer
	f.mu.Lock()
	for x := range f.open {
		if w, ok := x.(*writer); ok && w.path == path {
			open = append(open, w)
		}
	}
	f.mu.Unlock()
	for _, w := range open {
		if err := w.settle(); err != nil {
			return err
		}
	}
	return nil
}

// keep records a file that is opened.
func (f *sftpFiles) keep(x io.Closer) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.open) >= maxOpen {
		return errs.New(errs.ResourceExhausted, "the session has %d files open, and may not have more", maxOpen)
	}
	f.open[x] = struct{}{}
	return nil
}

// forget ends the record of an open file.
func (f *sftpFiles) forget(x io.Closer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.open, x)
}

// Filecmd changes files.
func (f *sftpFiles) Filecmd(r *sftp.Request) error {
	switch r.Method {
	case "Setstat":
		return sftpError(f.setstat(r))
	case "Rename":
		return sftpError(f.files.Move(f.ctx, &sandbox.MoveFileRequest{Sandbox: f.sandbox, Path: r.Filepath, To: r.Target}))
	case "Mkdir":
		return sftpError(f.files.MakeDirectory(f.ctx, &sandbox.MakeDirectoryRequest{Sandbox: f.sandbox, Path: r.Filepath}))
	case "Symlink": // Filepath is the text of the link, as the client sent it
		return sftpError(f.files.MakeLink(f.ctx, &sandbox.MakeLinkRequest{Sandbox: f.sandbox, Path: r.Target, Target: r.Filepath}))
	case "Link":
		yes := true
		return sftpError(f.files.MakeLink(f.ctx, &sandbox.MakeLinkRequest{Sandbox: f.sandbox, Path: r.Target, Target: r.Filepath, Hard: &yes}))
	case "Remove", "Rmdir":
		return sftpError(f.files.Remove(f.ctx, &sandbox.RemoveFileRequest{Sandbox: f.sandbox, Path: r.Filepath}))
	}
	return sftp.ErrSSHFxOpUnsupported
}

// PosixRename replaces a file that has the new name.
func (f *sftpFiles) PosixRename(r *sftp.Request) error {
	yes := true
	return sftpError(f.files.Move(f.ctx, &sandbox.MoveFileRequest{Sandbox: f.sandbox, Path: r.Filepath, To: r.Target, Replace: &yes}))
}

// StatVFS describes the file system of a path.
func (f *sftpFiles) StatVFS(r *sftp.Request) (*sftp.StatVFS, error) {
	s, err := f.files.Space(f.ctx, &sandbox.FileRequest{Sandbox: f.sandbox, Path: r.Filepath})
	if err != nil {
		return nil, sftpError(err)
	}
	files, freeFiles := uint64(value(s.TotalFiles)), uint64(value(s.FreeFiles))
	free := uint64(s.FreeBytes) / blockSize
	return &sftp.StatVFS{
		Bsize: blockSize, Frsize: blockSize, Blocks: uint64(s.TotalBytes) / blockSize, Bfree: free, Bavail: free,
		Files: files, Ffree: freeFiles, Favail: freeFiles, Namemax: maxName,
	}, nil
}

// setstat changes size, permissions and times. Owners stay.
func (f *sftpFiles) setstat(r *sftp.Request) error {
	flags, attrs := r.AttrFlags(), r.Attributes()
	if attrs == nil || flags.Size && attrs.Size > math.MaxInt64 {
		return sftp.ErrSSHFxBadMessage
	}
	if err := f.settle(r.Filepath); err != nil {
		return err
	}
	if flags.Size {
		if err := f.truncate(r.Filepath, int64(attrs.Size)); err != nil {
			return err
		}
	}
	if flags.Permissions {
		if err := f.files.ChangeMode(f.ctx, &sandbox.ChangeModeRequest{Sandbox: f.sandbox, Path: r.Filepath, Mode: int64(attrs.Mode & 0o777)}); err != nil {
			return err
		}
	}
	if flags.Acmodtime {
		req := &sandbox.ChangeTimesRequest{Sandbox: f.sandbox, Path: r.Filepath, AccessedAt: attrs.AccessTime(), ModifiedAt: attrs.ModTime()}
		if err := f.files.ChangeTimes(f.ctx, req); err != nil {
			return err
		}
	}
	if flags.UidGid {
		return sftp.ErrSSHFxOpUnsupported
	}
	return nil
}

// Filelist lists a directory, or describes a file.
func (f *sftpFiles) Filelist(r *sftp.Request) (sftp.ListerAt, error) {
	if r.Method == "List" {
		return &directory{f: f, path: r.Filepath}, nil
	}
	if err := f.settle(r.Filepath); err != nil {
		return nil, err
	}
	i, err := f.stat(r.Filepath)
	return one{i}, sftpError(err)
}

// Lstat describes a file, or the symbolic link itself.
func (f *sftpFiles) Lstat(r *sftp.Request) (sftp.ListerAt, error) {
	i, err := f.lstat(r.Filepath)
	return one{i}, sftpError(err)
}

// Readlink returns the target of a symbolic link.
func (f *sftpFiles) Readlink(name string) (string, error) {
	i, err := f.lstat(name)
	if err != nil {
		return "", sftpError(err)
	}
	return i.f.Target, nil
}

func (f *sftpFiles) lstat(name string) (info, error) {
	i, err := f.files.Stat(f.ctx, &sandbox.FileRequest{Sandbox: f.sandbox, Path: name})
	if err != nil {
		return info{}, err
	}
	return info{i}, nil
}

// stat describes the file that a path leads to.
func (f *sftpFiles) stat(name string) (info, error) {
	for range maxLinks {
		i, err := f.lstat(name)
		if err != nil || i.f.Type != sandbox.FileTypeSymlink {
			return i, err
		}
		if name = path.Join(path.Dir(name), i.f.Target); path.IsAbs(i.f.Target) {
			name = i.f.Target
		}
	}
	return info{}, errs.New(errs.NotFound, "%s leads through too many symbolic links", name)
}

// info is a description of a file.
type info struct{ f *sandbox.FileInfo }

func (i info) Name() string       { return i.f.Name }
func (i info) Size() int64        { return i.f.SizeBytes }
func (i info) ModTime() time.Time { return i.f.ModifiedAt }
func (i info) IsDir() bool        { return i.f.Type == sandbox.FileTypeDirectory }
func (i info) Sys() any           { return nil }
func (i info) Uid() uint32        { return uint32(i.f.UID) }
func (i info) Gid() uint32        { return uint32(i.f.GID) }
func (i info) Mode() fs.FileMode {
	m := fs.FileMode(i.f.Mode & 0o777)
	switch i.f.Type {
	case sandbox.FileTypeDirectory:
		m |= fs.ModeDir
	case sandbox.FileTypeSymlink:
		m |= fs.ModeSymlink
	case sandbox.FileTypeOther:
		m |= fs.ModeIrregular
	}
	return m
}

// one is the answer that describes one file.
type one struct{ i info }

func (o one) ListAt(to []os.FileInfo, offset int64) (int, error) {
	if offset > 0 || len(to) == 0 {
		return 0, io.EOF
	}
	to[0] = o.i
	return 1, nil
}

// directory lists a directory page by page.
type directory struct {
	f    *sftpFiles
	path string
	last string
	done bool
}

func (d *directory) ListAt(to []os.FileInfo, _ int64) (int, error) {
	if d.done {
		return 0, io.EOF
	}
	limit := int64(min(len(to), 1024))
	resp, err := d.f.files.List(d.f.ctx, &sandbox.ListFilesRequest{Sandbox: d.f.sandbox, Path: d.path, After: d.last, Limit: &limit})
	if err != nil {
		return 0, sftpError(err)
	}
	if len(resp.Files) > len(to) { // a hostile sandbox or runner may send any number
		return 0, errs.New(errs.Unavailable, "the sandbox listed %d files of %s, not at most %d", len(resp.Files), d.path, len(to))
	}
	for i := range resp.Files {
		to[i] = info{&resp.Files[i]}
		d.last = resp.Files[i].Name
	}
	if d.done = !resp.More; d.done {
		return len(resp.Files), io.EOF
	}
	return len(resp.Files), nil
}

func value(p *int64) int64 {
	if p == nil {
		return 0
	}
	return *p
}
