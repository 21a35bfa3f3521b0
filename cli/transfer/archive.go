package transfer

import (
	"archive/tar"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"miren.dev/runtime/pkg/errs"
)

// pack writes a tar archive of what is in a directory. It leaves out sockets,
// pipes and devices.
func pack(w io.Writer, dir string, count func(n int)) error {
	t := tar.NewWriter(w)
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == dir {
			return err
		}
		return packFile(t, dir, name, d, count)
	})
	if err == nil {
		err = t.Close()
	}
	return err
}

func packFile(t *tar.Writer, dir, name string, d fs.DirEntry, count func(n int)) error {
	info, err := d.Info()
	if err != nil {
		return err
	}
	target := ""
	switch info.Mode().Type() {
	case 0, fs.ModeDir:
	case fs.ModeSymlink:
		if target, err = os.Readlink(name); err != nil {
			return err
		}
	default:
		return nil
	}
	h, err := tar.FileInfoHeader(info, target)
	if err != nil {
		return err
	}
	rel, err := filepath.Rel(dir, name)
	if err != nil {
		return err
	}
	h.Name, h.Format = filepath.ToSlash(rel), tar.FormatPAX
	if d.IsDir() {
		h.Name += "/"
	}
	if err := t.WriteHeader(h); err != nil || !info.Mode().IsRegular() {
		return err
	}
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(t, CountReader(f, count))
	return err
}

// CountReader calls count with the number of bytes of each read.
func CountReader(r io.Reader, count func(n int)) io.Reader { return counter{r, count} }

type counter struct {
	io.Reader
	count func(n int)
}

func (c counter) Read(b []byte) (int, error) {
	n, err := c.Reader.Read(b)
	c.count(n)
	return n, err
}

// unpack writes what is in a tar archive of a sandbox below to. A sandbox may
// send any archive: no entry gets outside that directory, by whatever name or link.
func unpack(r io.Reader, to string) error {
	root, err := os.OpenRoot(to)
	if err != nil {
		return errs.New(errs.FailedPrecondition, "%w", err)
	}
	defer root.Close()
	t := tar.NewReader(r)
	type dir struct {
		name string
		mode fs.FileMode
	}
	var dirs []dir // their modes are set at the end, since they may forbid to write into them
	for {
		h, err := t.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		if err := unpackEntry(root, t, h); err != nil {
			return errs.New(errs.FailedPrecondition, "unpack %q: %w", h.Name, err)
		}
		if h.Typeflag == tar.TypeDir {
			dirs = append(dirs, dir{filepath.FromSlash(h.Name), h.FileInfo().Mode().Perm()})
		}
	}
	for _, d := range slices.Backward(dirs) {
		if err := root.Chmod(d.name, d.mode); err != nil {
			return errs.New(errs.FailedPrecondition, "%w", err)
		}
	}
	_, err = io.Copy(io.Discard, r) // what follows the end; it also ends the call
	return err
}

func unpackEntry(root *os.Root, t *tar.Reader, h *tar.Header) error {
	name := filepath.FromSlash(h.Name)
	if h.Typeflag == tar.TypeDir {
		return root.MkdirAll(name, 0o755)
	}
	if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	switch h.Typeflag {
	case tar.TypeSymlink:
		return root.Symlink(h.Linkname, name)
	case tar.TypeReg:
	default:
		return errs.New(errs.InvalidArgument, "entries of type %q are not unpacked", h.Typeflag)
	}
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, t)
	if err == nil {
		err = f.Chmod(h.FileInfo().Mode().Perm())
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil && !h.ModTime.IsZero() {
		err = root.Chtimes(name, h.ModTime, h.ModTime)
	}
	return err
}
