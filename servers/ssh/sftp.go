package sshserver

import (
	"context"
	"encoding/binary"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"github.com/pkg/sftp"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/pkg/errs"
)

const (
	// homeTime bounds the question for the directory in which a session begins.
	homeTime = 10 * time.Second
	// maxLinks bounds the symbolic links that a path leads through.
	maxLinks = 16
)

// sftpFiles serves the requests of an SFTP session by the RPC service of files.
type sftpFiles struct {
	ctx     context.Context
	files   sandbox.FilesClient
	sandbox id.Sandbox
}

// sftp serves the subsystem sftp, which scp uses too, until the client ends it.
func (s *session) sftp(ctx context.Context) {
	f := &sftpFiles{ctx: ctx, files: sandbox.NewFilesClient(s.c.rpc), sandbox: s.c.sandbox}
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
	out := ""
	for {
		m, err := st.Recv()
		if err != nil {
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
	}
	return err
}

// Fileread opens a file for reading.
func (f *sftpFiles) Fileread(r *sftp.Request) (io.ReaderAt, error) {
	if _, err := f.stat(r.Filepath); err != nil {
		return nil, sftpError(err)
	}
	return &reader{f: f, path: r.Filepath}, nil
}

// Filewrite opens a file for writing.
func (f *sftpFiles) Filewrite(r *sftp.Request) (io.WriterAt, error) {
	flags := r.Pflags()
	if flags.Append {
		return nil, sftp.ErrSSHFxOpUnsupported
	}
	_, err := f.stat(r.Filepath)
	exists := err == nil
	switch {
	case err != nil && !errs.Is(err, errs.NotFound):
		return nil, sftpError(err)
	case !exists && !flags.Creat:
		return nil, sftp.ErrSSHFxNoSuchFile
	case exists && flags.Excl:
		return nil, sftp.ErrSSHFxFailure
	case !exists || flags.Trunc:
		req := &sandbox.WriteFileRequest{Sandbox: f.sandbox, Path: r.Filepath}
		if len(r.Attrs) == 4 { // only the permissions
			bits := int64(binary.BigEndian.Uint32(r.Attrs) & 0o777)
			req.Mode = &bits
		}
		if err := f.truncate(req); err != nil {
			return nil, sftpError(err)
		}
	}
	return &writer{f: f, path: r.Filepath}, nil
}

// truncate makes a file empty, or makes an empty one.
func (f *sftpFiles) truncate(req *sandbox.WriteFileRequest) error {
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

// Filecmd changes files.
func (f *sftpFiles) Filecmd(r *sftp.Request) error {
	switch r.Method {
	case "Setstat":
		return sftpError(f.setstat(r))
	case "Rename":
		return sftpError(f.files.Move(f.ctx, &sandbox.MoveFileRequest{Sandbox: f.sandbox, Path: r.Filepath, To: r.Target}))
	case "Mkdir":
		return sftpError(f.files.MakeDirectory(f.ctx, &sandbox.MakeDirectoryRequest{Sandbox: f.sandbox, Path: r.Filepath}))
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

// setstat changes permissions. Owners stay, and so do times, which RPC cannot
// change; a size is set to 0 only, or stays.
func (f *sftpFiles) setstat(r *sftp.Request) error {
	flags, attrs := r.AttrFlags(), r.Attributes()
	if flags.Size {
		i, err := f.stat(r.Filepath)
		if err != nil {
			return err
		}
		if uint64(i.Size()) != attrs.Size {
			if attrs.Size != 0 {
				return sftp.ErrSSHFxOpUnsupported
			}
			if err := f.truncate(&sandbox.WriteFileRequest{Sandbox: f.sandbox, Path: r.Filepath}); err != nil {
				return err
			}
		}
	}
	if flags.Permissions {
		if err := f.files.ChangeMode(f.ctx, &sandbox.ChangeModeRequest{Sandbox: f.sandbox, Path: r.Filepath, Mode: int64(attrs.Mode & 0o777)}); err != nil {
			return err
		}
	}
	if flags.UidGid || flags.Acmodtime {
		return sftp.ErrSSHFxOpUnsupported
	}
	return nil
}

// Filelist lists a directory, or describes a file.
func (f *sftpFiles) Filelist(r *sftp.Request) (sftp.ListerAt, error) {
	if r.Method == "List" {
		return &directory{f: f, path: r.Filepath}, nil
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
	for i := range resp.Files {
		to[i] = info{&resp.Files[i]}
		d.last = resp.Files[i].Name
	}
	if d.done = !resp.More; d.done {
		return len(resp.Files), io.EOF
	}
	return len(resp.Files), nil
}
