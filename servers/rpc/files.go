package rpcserver

import (
	"context"
	"io"
	"io/fs"
	"maps"
	"slices"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/policies"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/opt"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/pkg/sandboxfs"
)

// fileChunk bounds the bytes of a file in one message.
const fileChunk = 128 << 10

// fileHandler serves sandbox.Files.
type fileHandler struct {
	// files returns the files of a sandbox for a user of it; "": its own.
	files func(ctx context.Context, sid id.Sandbox, user string) (sandboxfs.FS, error)
}

// fileError returns an error of a file. PermissionDenied is about a user of the
// sandbox, unless a policy refused it. For the caller of RPC that class means that
// the call itself was refused.
func fileError(err error) error {
	if errs.Is(err, errs.PermissionDenied) && !policies.Refused(err) {
		return errs.New(errs.FailedPrecondition, "the sandbox does not permit it: %s", err)
	}
	return err
}

func fileInfo(i sandboxfs.Info) sandbox.FileInfo {
	return sandbox.FileInfo{
		Name: i.Name, Type: fileType(i.Mode), Mode: int64(sandboxfs.Bits(i.Mode)), SizeBytes: i.Size, ModifiedAt: i.ModTime,
		UID: int64(i.UID), GID: int64(i.GID), Target: i.Target, Attributes: fileAttributes(i.Attrs),
	}
}

// fileAttributes returns attributes by name.
func fileAttributes(attrs map[string][]byte) []sandbox.FileAttribute {
	var list []sandbox.FileAttribute
	for _, name := range slices.Sorted(maps.Keys(attrs)) {
		list = append(list, sandbox.FileAttribute{Name: name, Value: attrs[name]})
	}
	return list
}

func fileType(m fs.FileMode) sandbox.FileType {
	switch m.Type() {
	case 0:
		return sandbox.FileTypeFile
	case fs.ModeDir:
		return sandbox.FileTypeDirectory
	case fs.ModeSymlink:
		return sandbox.FileTypeSymlink
	}
	return sandbox.FileTypeOther
}

// Stat describes a file.
func (h *fileHandler) Stat(ctx context.Context, req *sandbox.FileRequest) (*sandbox.FileInfo, error) {
	f, err := h.files(ctx, req.Sandbox, req.User)
	if err != nil {
		return nil, err
	}
	i, err := f.Stat(ctx, req.Path)
	if err != nil {
		return nil, fileError(err)
	}
	info := fileInfo(i)
	return &info, nil
}

// List lists a directory.
func (h *fileHandler) List(ctx context.Context, req *sandbox.ListFilesRequest) (*sandbox.ListFilesResponse, error) {
	f, err := h.files(ctx, req.Sandbox, req.User)
	if err != nil {
		return nil, err
	}
	list, more, err := f.List(ctx, req.Path, sandboxfs.ListOptions{After: req.After, Limit: int(opt.Value(req.Limit)), Attrs: opt.Value(req.Attributes)})
	if err != nil {
		return nil, fileError(err)
	}
	resp := &sandbox.ListFilesResponse{More: more}
	for _, i := range list {
		resp.Files = append(resp.Files, fileInfo(i))
	}
	return resp, nil
}

// Read sends the content of a file.
func (h *fileHandler) Read(ctx context.Context, req *sandbox.ReadFileRequest, st rpc.ServerStream[rpc.None, sandbox.ReadFileOutput]) error {
	f, err := h.files(ctx, req.Sandbox, req.User)
	if err != nil {
		return err
	}
	r, err := f.Read(ctx, req.Path, opt.Value(req.Offset), opt.Value(req.Length))
	if err != nil {
		return fileError(err)
	}
	defer closing(ctx, r)()
	info := fileInfo(r.Info())
	if err := st.Send(&sandbox.ReadFileOutput{Info: &info}); err != nil {
		return err
	}
	return ended(ctx, sendAll(r, func(b []byte) error { return st.Send(&sandbox.ReadFileOutput{Data: b}) }))
}

// sendAll calls send with the bytes of r until its end.
func sendAll(r io.Reader, send func([]byte) error) error {
	buf := make([]byte, fileChunk)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			if err := send(buf[:n]); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// closing closes c when the call ends or is canceled, since its reads and writes
// wait for the sandbox.
func closing(ctx context.Context, c io.Closer) func() {
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	return func() {
		stop()
		_ = c.Close() // a file that was not committed is removed
	}
}

// ended returns the error of a call that moves the content of files: its
// cancellation, which closed the file, or err.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fileError(err)
}

var writeModes = map[sandbox.WriteMode]sandboxfs.WriteMode{
	sandbox.WriteModeCreate: sandboxfs.WriteCreate, sandbox.WriteModeAt: sandboxfs.WriteAt, sandbox.WriteModeAppend: sandboxfs.WriteAppend,
}

// Write writes a file from the bytes of the caller. A canceled call leaves no
// new file.
func (h *fileHandler) Write(ctx context.Context, req *sandbox.WriteFileRequest, st rpc.ServerStream[rpc.Bytes, sandbox.FileInfo]) error {
	f, err := h.files(ctx, req.Sandbox, req.User)
	if err != nil {
		return err
	}
	w, err := f.Write(ctx, req.Path, sandboxfs.WriteOptions{
		Mode: writeModes[req.Write], Offset: opt.Value(req.Offset), Perm: sandboxfs.Perm(uint32(opt.Value(req.Mode))), Parents: opt.Value(req.Parents),
	})
	if err != nil {
		return fileError(err)
	}
	defer closing(ctx, w)()
	if _, err := io.CopyBuffer(w, st.Reader(), make([]byte, fileChunk)); err != nil {
		return ended(ctx, err)
	}
	i, err := w.Commit(ctx)
	if err != nil {
		return fileError(err)
	}
	info := fileInfo(i)
	return st.Send(&info)
}

// change carries out an operation on files that answers nothing.
func (h *fileHandler) change(ctx context.Context, sid id.Sandbox, user string, op func(sandboxfs.FS) error) error {
	f, err := h.files(ctx, sid, user)
	if err != nil {
		return err
	}
	return fileError(op(f))
}

// MakeDirectory makes a directory.
func (h *fileHandler) MakeDirectory(ctx context.Context, req *sandbox.MakeDirectoryRequest) error {
	return h.change(ctx, req.Sandbox, req.User, func(f sandboxfs.FS) error {
		return f.Mkdir(ctx, req.Path, sandboxfs.Perm(uint32(opt.Value(req.Mode))), opt.Value(req.Parents))
	})
}

// Remove removes a file or directory.
func (h *fileHandler) Remove(ctx context.Context, req *sandbox.RemoveFileRequest) error {
	return h.change(ctx, req.Sandbox, req.User, func(f sandboxfs.FS) error { return f.Remove(ctx, req.Path, opt.Value(req.Recursive)) })
}

// Move moves a file or directory.
func (h *fileHandler) Move(ctx context.Context, req *sandbox.MoveFileRequest) error {
	return h.change(ctx, req.Sandbox, req.User, func(f sandboxfs.FS) error { return f.Move(ctx, req.Path, req.To, opt.Value(req.Replace)) })
}

// Copy copies a file or directory.
func (h *fileHandler) Copy(ctx context.Context, req *sandbox.CopyFileRequest) error {
	return h.change(ctx, req.Sandbox, req.User, func(f sandboxfs.FS) error { return f.Copy(ctx, req.Path, req.To) })
}

// ChangeMode changes the permissions of a file.
func (h *fileHandler) ChangeMode(ctx context.Context, req *sandbox.ChangeModeRequest) error {
	return h.change(ctx, req.Sandbox, req.User, func(f sandboxfs.FS) error { return f.Chmod(ctx, req.Path, sandboxfs.Perm(uint32(req.Mode))) })
}

// Attributes reads the extended attributes of a file.
func (h *fileHandler) Attributes(ctx context.Context, req *sandbox.FileRequest) (*sandbox.FileAttributes, error) {
	f, err := h.files(ctx, req.Sandbox, req.User)
	if err != nil {
		return nil, err
	}
	attrs, err := f.Attrs(ctx, req.Path)
	if err != nil {
		return nil, fileError(err)
	}
	return &sandbox.FileAttributes{Attributes: fileAttributes(attrs)}, nil
}

// SetAttribute sets or removes an extended attribute of a file.
func (h *fileHandler) SetAttribute(ctx context.Context, req *sandbox.SetAttributeRequest) error {
	v := append([]byte{}, req.Value...)
	if opt.Value(req.Remove) {
		v = nil
	}
	return h.change(ctx, req.Sandbox, req.User, func(f sandboxfs.FS) error { return f.SetAttr(ctx, req.Path, req.Name, v) })
}

// MakeLink makes a symbolic link, or another name of a file.
func (h *fileHandler) MakeLink(ctx context.Context, req *sandbox.MakeLinkRequest) error {
	return h.change(ctx, req.Sandbox, req.User, func(f sandboxfs.FS) error {
		if opt.Value(req.Hard) {
			return f.Link(ctx, req.Target, req.Path)
		}
		return f.Symlink(ctx, req.Target, req.Path)
	})
}

// ChangeTimes changes the times of a file.
func (h *fileHandler) ChangeTimes(ctx context.Context, req *sandbox.ChangeTimesRequest) error {
	return h.change(ctx, req.Sandbox, req.User, func(f sandboxfs.FS) error { return f.Chtimes(ctx, req.Path, req.AccessedAt, req.ModifiedAt) })
}

// Truncate changes the size of a file.
func (h *fileHandler) Truncate(ctx context.Context, req *sandbox.TruncateFileRequest) error {
	return h.change(ctx, req.Sandbox, req.User, func(f sandboxfs.FS) error { return f.Truncate(ctx, req.Path, req.SizeBytes) })
}

// Space describes a file system.
func (h *fileHandler) Space(ctx context.Context, req *sandbox.FileRequest) (*sandbox.FileSpace, error) {
	f, err := h.files(ctx, req.Sandbox, req.User)
	if err != nil {
		return nil, err
	}
	s, err := f.Space(ctx, req.Path)
	if err != nil {
		return nil, fileError(err)
	}
	return &sandbox.FileSpace{TotalBytes: s.Bytes, FreeBytes: s.FreeBytes, TotalFiles: opt.Of(s.Files), FreeFiles: opt.Of(s.FreeFiles)}, nil
}

var fileChanges = map[sandboxfs.Change]sandbox.FileChange{
	sandboxfs.Created: sandbox.FileChangeCreated, sandboxfs.Written: sandbox.FileChangeWritten, sandboxfs.Removed: sandbox.FileChangeRemoved,
	sandboxfs.Attributes: sandbox.FileChangeAttributes, sandboxfs.Missed: sandbox.FileChangeMissed,
}

// Watch sends the changes in a directory.
func (h *fileHandler) Watch(ctx context.Context, req *sandbox.WatchFilesRequest, st rpc.ServerStream[rpc.None, sandbox.FileEvent]) error {
	f, err := h.files(ctx, req.Sandbox, req.User)
	if err != nil {
		return err
	}
	w, err := f.Watch(ctx, req.Path, opt.Value(req.Recursive))
	if err != nil {
		return fileError(err)
	}
	defer closing(ctx, w)()
	yes := true
	if err := st.Send(&sandbox.FileEvent{Started: &yes}); err != nil {
		return err
	}
	for {
		e, err := w.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return ended(ctx, err)
		}
		if err := st.Send(&sandbox.FileEvent{Change: fileChanges[e.Change], Path: e.Path, Directory: opt.Of(e.Dir)}); err != nil {
			return err
		}
	}
}

// Archive sends a tar archive of a directory or a file.
func (h *fileHandler) Archive(ctx context.Context, req *sandbox.FileRequest, st rpc.ServerStream[rpc.None, rpc.Bytes]) error {
	f, err := h.files(ctx, req.Sandbox, req.User)
	if err != nil {
		return err
	}
	r, err := f.Archive(ctx, req.Path)
	if err != nil {
		return fileError(err)
	}
	defer closing(ctx, r)()
	_, err = io.CopyBuffer(st.Writer(), r, make([]byte, fileChunk))
	return ended(ctx, err)
}

// Extract unpacks the tar archive of the caller into a directory.
func (h *fileHandler) Extract(ctx context.Context, req *sandbox.FileRequest, st rpc.ServerStream[rpc.Bytes, rpc.None]) error {
	f, err := h.files(ctx, req.Sandbox, req.User)
	if err != nil {
		return err
	}
	x, err := f.Extract(ctx, req.Path)
	if err != nil {
		return fileError(err)
	}
	defer closing(ctx, x)()
	if _, err := io.CopyBuffer(x, st.Reader(), make([]byte, fileChunk)); err != nil {
		return ended(ctx, err)
	}
	return fileError(x.Finish(ctx))
}
