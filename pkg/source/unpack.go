package source

import (
	"archive/tar"
	"bufio"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"

	"miren.dev/runtime/pkg/errs"
)

// Unpacked is a source that is made of tar archives. It is for one goroutine.
type Unpacked struct {
	limits Limits
	root   *os.Root
	files  map[string]File // by path
	paths  map[Digest]string
	bytes  int64
	kept   int   // contents that were written
	left   int64 // bytes of archives that may still be read
}

// perEntry is what an entry takes in an archive, besides its content, in bytes. An archive
// may have four entries for each file that a source may have.
const perEntry = 2 << 10

// archived is an archive without its compression.
type archived struct {
	u *Unpacked
	r io.Reader
}

// Read bounds the decompressed bytes of an archive, with its headers.
func (a *archived) Read(p []byte) (int, error) {
	if a.u.left <= 0 {
		return 0, errs.New(errs.ResourceExhausted, "the archives of the source have too many entries, or more than %d bytes", a.u.limits.Bytes)
	}
	n, err := a.r.Read(p[:min(int64(len(p)), a.u.left)])
	a.u.left -= int64(n)
	return n, err
}

// NewUnpacked returns a source without files. Contents are kept in dir, an empty
// folder, below names of their own.
func NewUnpacked(dir string, limits Limits) (*Unpacked, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, errs.New(errs.Unavailable, "open %s: %w", dir, err)
	}
	limits = limits.orDefault()
	return &Unpacked{limits: limits, root: root, files: map[string]File{}, paths: map[Digest]string{}, left: limits.Bytes + 4*perEntry*int64(limits.Files)}, nil
}

// Add adds the files and links of an archive, which may be compressed with gzip,
// below prefix. Of two with the same path the later one counts. InvalidArgument
// for a damaged archive and for devices, ResourceExhausted beyond the limits.
func (u *Unpacked) Add(prefix string, r io.Reader) error {
	b := bufio.NewReader(r)
	if magic, _ := b.Peek(2); string(magic) == "\x1f\x8b" {
		z, err := gzip.NewReader(b)
		if err != nil {
			return badArchive(err)
		}
		b = bufio.NewReader(z)
	}
	t := tar.NewReader(&archived{u, b})
	for {
		h, err := t.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return badArchive(err)
		}
		if err := u.add(prefix, h, t); err != nil {
			return err
		}
	}
}

func badArchive(err error) error {
	if errs.Is(err, errs.ResourceExhausted) {
		return err
	}
	return errs.New(errs.InvalidArgument, "read the archive: %w", err)
}

func (u *Unpacked) add(prefix string, h *tar.Header, r io.Reader) error {
	f := File{Path: path.Join(prefix, h.Name), Mode: Regular}
	if h.Mode&0o111 != 0 {
		f.Mode = Executable
	}
	switch h.Typeflag {
	case tar.TypeDir, tar.TypeXGlobalHeader:
		return nil
	}
	if !validPath(f.Path) { // here already, since names fill the memory
		return errs.New(errs.InvalidArgument, "the archive has a file %.200q, which is not a path below the root", h.Name)
	}
	switch h.Typeflag {
	case tar.TypeSymlink:
		if f.Mode, f.Target = Symlink, h.Linkname; !confined(f.Path, f.Target) {
			return errs.New(errs.InvalidArgument, "the archive has a link %s, whose target %.200q is not inside the source", h.Name, h.Linkname)
		}
	case tar.TypeLink:
		to, ok := u.files[path.Join(prefix, h.Linkname)]
		if !ok {
			return errs.New(errs.InvalidArgument, "the archive has %s as a link to %s, which is not before it", h.Name, h.Linkname)
		}
		f.Mode, f.Size, f.Digest, f.Target = to.Mode, to.Size, to.Digest, to.Target
	case tar.TypeReg:
		if err := u.write(&f, h, r); err != nil {
			return err
		}
	default:
		return errs.New(errs.InvalidArgument, "the archive has %s, which is neither a file, a folder nor a link", h.Name)
	}
	if u.files[f.Path] = f; len(u.files) > u.limits.Files {
		return errs.New(errs.ResourceExhausted, "the source has more than %d files", u.limits.Files)
	}
	return nil
}

// write keeps the content of a file.
func (u *Unpacked) write(f *File, h *tar.Header, r io.Reader) (err error) {
	if u.bytes += h.Size; h.Size > u.limits.FileBytes || u.bytes > u.limits.Bytes {
		return errs.New(errs.ResourceExhausted, "%s: the source has more than %d bytes, or that file more than %d", h.Name, u.limits.Bytes, u.limits.FileBytes)
	}
	name := strconv.Itoa(u.kept)
	u.kept++
	w, err := u.root.Create(name)
	if err != nil {
		return errs.New(errs.Unavailable, "keep %s: %w", h.Name, err)
	}
	sum := sha256.New()
	f.Size, err = io.Copy(io.MultiWriter(w, sum), r)
	if cerr := w.Close(); err != nil || cerr != nil {
		return errs.New(errs.InvalidArgument, "unpack %s: %w", h.Name, cmp.Or(err, cerr))
	}
	f.Digest = Digest(hex.EncodeToString(sum.Sum(nil)))
	if _, ok := u.paths[f.Digest]; ok {
		if err := u.root.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
			return errs.New(errs.Unavailable, "unpack %s: %w", h.Name, err)
		}
		return nil
	}
	u.paths[f.Digest] = name
	return nil
}

// Tree returns the source. InvalidArgument if a path or a link leads out of it.
// Closing the tree closes what it is made of.
func (u *Unpacked) Tree() (*Tree, error) {
	m := &Manifest{Files: slices.SortedFunc(maps.Values(u.files), func(a, b File) int { return cmp.Compare(a.Path, b.Path) })}
	return &Tree{Manifest: m, root: u.root, paths: u.paths}, m.Validate(u.limits)
}

// Close ends the use of a source whose tree was not taken.
func (u *Unpacked) Close() error { return u.root.Close() }
