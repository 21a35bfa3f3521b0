package mock

import (
	"archive/tar"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/sandboxfs"
)

type reader struct {
	io.Reader
	file *os.File
	info sandboxfs.Info
}

func (r *reader) Info() sandboxfs.Info { return r.info }
func (r *reader) Close() error         { return r.file.Close() }

// Read implements sandboxfs.FS.
func (f *files) Read(_ context.Context, p string, offset, length int64) (r sandboxfs.Reader, err error) {
	err = f.use(p, f.open, func(x *file) error {
		in, err := x.root.Open(x.name)
		if err != nil {
			return err
		}
		i, err := in.Stat()
		if err == nil && !i.Mode().IsRegular() {
			err = errs.New(errs.InvalidArgument, "%s is not a file", x.abs)
		}
		if err == nil {
			_, err = in.Seek(offset, io.SeekStart)
		}
		if err != nil {
			_ = in.Close()
			return err
		}
		out := &reader{in, in, x.info(x.name, i)}
		if length > 0 {
			out.Reader = io.LimitReader(in, length)
		}
		r = out
		return nil
	})
	return r, err
}

// writer writes a file, under a hidden name if it is to appear at the end.
type writer struct {
	*file
	out    *os.File
	temp   string // "": the file is changed in place
	create bool
	room   int64 // bytes that may be written
	limit  bool  // whether room counts
	done   bool
}

// Write implements sandboxfs.FS.
func (f *files) Write(_ context.Context, p string, o sandboxfs.WriteOptions) (sandboxfs.Writer, error) {
	x, err := f.writable(p)
	if err != nil {
		return nil, err
	}
	w, err := x.write(o)
	if err != nil {
		x.close()
		return nil, fileError(x.abs, err)
	}
	return w, nil
}

func (x *file) write(o sandboxfs.WriteOptions) (*writer, error) {
	if o.Parents {
		if err := x.root.MkdirAll(path.Dir(x.name), 0o755); err != nil {
			return nil, err
		}
	}
	have, err := x.root.Lstat(x.name)
	switch {
	case err == nil && have.IsDir():
		return nil, errs.New(errs.InvalidArgument, "%s is a directory", x.abs)
	case err == nil && o.Mode == sandboxfs.WriteCreate:
		return nil, fs.ErrExist
	}
	perm := o.Perm.Perm()
	if err == nil && perm == 0 {
		perm = have.Mode().Perm()
	}
	perm = cmp.Or(perm, 0o644)
	w := &writer{file: x, create: o.Mode == sandboxfs.WriteCreate}
	if limit := x.b.spec().DiskBytes; limit > 0 {
		w.limit, w.room = true, limit-x.b.size()
	}
	flags, name := os.O_WRONLY|os.O_CREATE, x.name
	switch o.Mode {
	case sandboxfs.WriteAppend:
		flags |= os.O_APPEND
	case sandboxfs.WriteAt:
	default:
		x.b.mu.Lock()
		x.b.uploads++
		w.temp = path.Join(path.Dir(x.name), fmt.Sprint(hidden, x.b.uploads))
		x.b.mu.Unlock()
		flags, name = flags|os.O_TRUNC, w.temp
	}
	if w.out, err = x.root.OpenFile(name, flags, perm); err != nil {
		return nil, err
	}
	if o.Mode == sandboxfs.WriteAt {
		_, err = w.out.Seek(o.Offset, io.SeekStart)
	}
	return w, err
}

// Write implements io.Writer.
func (w *writer) Write(b []byte) (int, error) {
	if w.limit && int64(len(b)) > w.room {
		return 0, errs.New(errs.ResourceExhausted, "%s: no space left on device", w.abs)
	}
	w.room -= int64(len(b))
	n, err := w.out.Write(b)
	return n, fileError(w.abs, err)
}

// Commit implements sandboxfs.Writer.
func (w *writer) Commit(context.Context) (info sandboxfs.Info, err error) {
	i, err := w.out.Stat()
	kind := sandboxfs.Written
	if _, lerr := w.root.Lstat(w.name); lerr != nil {
		kind = sandboxfs.Created
	} else if w.create {
		err = errors.Join(err, fs.ErrExist)
	}
	if err == nil && w.temp != "" {
		err = w.root.Rename(w.temp, w.name)
	}
	if err != nil {
		return info, fileError(w.abs, err)
	}
	w.done = true
	w.b.changed(kind, w.abs, false)
	return w.info(w.name, i), nil
}

// Close implements io.Closer.
func (w *writer) Close() error {
	err := w.out.Close()
	if w.temp != "" && !w.done {
		err = errors.Join(err, w.root.Remove(w.temp))
	}
	w.close()
	return fileError(w.abs, err)
}

// Archive implements sandboxfs.FS.
func (f *files) Archive(_ context.Context, p string) (r io.ReadCloser, err error) {
	x, err := f.open(p)
	if err != nil {
		return nil, err
	}
	i, err := x.root.Stat(x.name)
	if err != nil {
		x.close()
		return nil, fileError(x.abs, err)
	}
	pr, pw := io.Pipe()
	go func() {
		defer x.close()
		tw := tar.NewWriter(pw)
		err := x.archive(tw, i)
		pw.CloseWithError(errors.Join(err, tw.Close()))
	}()
	return pr, nil
}

func (x *file) archive(tw *tar.Writer, i fs.FileInfo) error {
	if i.IsDir() {
		dir, err := x.root.OpenRoot(x.name)
		if err != nil {
			return err
		}
		defer dir.Close()
		return tw.AddFS(dir.FS())
	}
	h, err := tar.FileInfoHeader(i, "")
	if err != nil {
		return err
	}
	in, err := x.root.Open(x.name)
	if err != nil {
		return err
	}
	defer in.Close()
	if err := tw.WriteHeader(h); err != nil {
		return err
	}
	_, err = io.Copy(tw, in)
	return err
}

// extractor is a writer that unpacks an archive.
type extractor struct {
	*io.PipeWriter
	done chan struct{}
	err  error // when done is closed
}

// Extract implements sandboxfs.FS.
func (f *files) Extract(_ context.Context, p string) (sandboxfs.Extractor, error) {
	x, err := f.writable(p)
	if err != nil {
		return nil, err
	}
	if err := x.root.MkdirAll(x.name, 0o755); err != nil {
		x.close()
		return nil, fileError(x.abs, err)
	}
	pr, pw := io.Pipe()
	e := &extractor{PipeWriter: pw, done: make(chan struct{})}
	go func() {
		defer close(e.done)
		defer x.close()
		e.err = fileError(x.abs, x.extract(pr))
		if e.err == nil {
			_, e.err = io.Copy(io.Discard, pr) // what follows the end of the archive
		}
		_ = pr.CloseWithError(cmp.Or(e.err, io.ErrClosedPipe))
	}()
	return e, nil
}

// Finish implements sandboxfs.Extractor.
func (e *extractor) Finish(ctx context.Context) error {
	_ = e.PipeWriter.Close() // of a pipe it does not fail
	select {
	case <-e.done:
		return e.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (x *file) extract(r io.Reader) error {
	dir, err := x.root.OpenRoot(x.name)
	if err != nil {
		return err
	}
	defer dir.Close()
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return errs.New(errs.InvalidArgument, "the archive is not a complete tar file")
		}
		name := path.Clean(strings.TrimPrefix(h.Name, "/"))
		if name == ".." || strings.HasPrefix(name, "../") {
			return errs.New(errs.PermissionDenied, "the entry %q is outside of the directory", h.Name)
		}
		if err := x.entry(dir, name, h, tr); err != nil {
			return err
		}
		x.b.changed(sandboxfs.Created, path.Join(x.abs, name), h.Typeflag == tar.TypeDir)
	}
}

// entry unpacks an entry of an archive.
func (x *file) entry(dir *os.Root, name string, h *tar.Header, r io.Reader) error {
	if h.Typeflag == tar.TypeDir {
		return dir.MkdirAll(name, 0o755)
	}
	if err := dir.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeSymlink:
		_ = dir.Remove(name)
		return dir.Symlink(h.Linkname, name)
	case tar.TypeReg:
		if err := x.b.room(h.Size); err != nil {
			return err
		}
		out, err := dir.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, fs.FileMode(h.Mode).Perm())
		if err != nil {
			return err
		}
		if _, err = io.Copy(out, r); errors.Is(err, io.ErrUnexpectedEOF) {
			err = errs.New(errs.InvalidArgument, "the archive is not a complete tar file")
		}
		return errors.Join(err, out.Close())
	}
	return nil // pipes, devices and the like
}
