package mock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/sandboxfs"
)

// hidden begins the names of files that are being written.
const hidden = ".runtime-mock-"

// maxList is the largest number of entries of one List.
const maxList = 1024

// system are the directories in which only root writes.
var system = []string{"bin", "boot", "dev", "etc", "lib", "lib64", "proc", "root", "run", "sbin", "sys", "usr", "var"}

// Files implements execution.FileDriver: the files of a sandbox are those of a
// directory of the machine, out of which no path and no link leads. Absolute
// symbolic links are not followed. Files belong to the sandbox's user, and those of
// the system to root.
func (d *Driver) Files(id string, v sandboxfs.View) sandboxfs.FS { return &files{m: d.m, id: id, v: v} }

var _ execution.FileDriver = (*Driver)(nil)

// files finds the sandbox for each call, unless it is given.
type files struct {
	m   *Machine
	id  string
	b   *box
	dir string // of relative paths; "": the sandbox's
	v   sandboxfs.View
}

// file is a path in the files of a running sandbox. Its user closes root.
type file struct {
	f    *files
	b    *box
	root *os.Root
	abs  string // in the sandbox
	name string // in root
}

// open returns the file at a path.
func (f *files) open(p string) (*file, error) {
	b := f.b
	if b == nil {
		if b = f.m.box(f.id); b == nil {
			return nil, gone(f.id)
		}
		switch b.instance().Phase {
		case execution.Exited:
			return nil, errs.New(errs.FailedPrecondition, "sandbox %s has ended", f.id)
		case execution.Paused:
			return nil, pausedError(f.id)
		}
	}
	if b.files == "" {
		return nil, errs.New(errs.Unimplemented, "the sandboxes of this machine have no files")
	}
	b.used()
	if strings.ContainsRune(p, 0) {
		return nil, errs.New(errs.InvalidArgument, "the path has a zero byte")
	}
	if !path.IsAbs(p) {
		p = path.Join(cmp.Or(f.dir, b.workDir()), p)
	}
	p = path.Clean(p)
	if len(f.v.Roots) > 0 && !slices.ContainsFunc(f.v.Roots, func(r string) bool { return within(path.Clean(r), p) }) {
		return nil, errs.New(errs.PermissionDenied, "%s is outside of the directories that may be used", p)
	}
	if p == "/proc" || strings.HasPrefix(p, "/proc/") {
		return nil, errs.New(errs.PermissionDenied, "%s is a file of procfs", p)
	}
	root, err := os.OpenRoot(b.files)
	if err != nil {
		return nil, errs.New(errs.Unavailable, "files of sandbox %s: %w", b.spec().ID, err)
	}
	return &file{f: f, b: b, root: root, abs: p, name: cmp.Or(strings.TrimPrefix(p, "/"), ".")}, nil
}

// within reports whether a path is dir or below it.
func within(dir, p string) bool {
	return dir == "/" || p == dir || strings.HasPrefix(p, dir+"/")
}

// writable opens a path that is to be changed.
func (f *files) writable(p string) (*file, error) {
	x, err := f.open(p)
	if err != nil {
		return nil, err
	}
	if f.uid(x.b) != 0 && ofSystem(x.name) {
		x.close()
		return nil, errs.New(errs.PermissionDenied, "%s: permission denied", x.abs)
	}
	return x, nil
}

func ofSystem(name string) bool {
	first, _, _ := strings.Cut(name, "/")
	return name == "." || slices.Contains(system, first)
}

func (x *file) close() { _ = x.root.Close() } // it was only used to open others

// uid returns the number of the user who uses the files: 0 for root, 1000 for any other.
func (f *files) uid(b *box) int { return uidOf(cmp.Or(f.v.User, b.claim().User, b.spec().User)) }

func uidOf(user string) int {
	name, _, _ := strings.Cut(user, ":")
	if name == "" || name == "root" || name == "0" {
		return 0
	}
	return 1000
}

// workDir is the directory of relative paths.
func (b *box) workDir() string {
	if dir := cmp.Or(b.claim().WorkDir, b.spec().WorkDir); dir != "" {
		return dir
	}
	name, _, _ := strings.Cut(cmp.Or(b.claim().User, b.spec().User), ":")
	if uidOf(name) == 0 {
		return "/root"
	}
	return "/home/" + name
}

// fileError classifies an error of the file system. It does not name the machine's directory.
func fileError(p string, err error) error {
	if err == nil || errs.ClassOf(err) != errs.Internal {
		return err
	}
	class := errs.InvalidArgument
	switch {
	case errors.Is(err, fs.ErrNotExist):
		class = errs.NotFound
	case errors.Is(err, fs.ErrExist):
		class = errs.AlreadyExists
	case errors.Is(err, fs.ErrPermission):
		class = errs.PermissionDenied
	case errors.Is(err, syscall.ENOSPC):
		class = errs.ResourceExhausted
	}
	for {
		pe, lerr := (*fs.PathError)(nil), (*os.LinkError)(nil)
		if errors.As(err, &pe) {
			err = pe.Err
		} else if errors.As(err, &lerr) {
			err = lerr.Err
		} else {
			break
		}
	}
	return errs.New(class, "%s: %w", p, err)
}

// info describes a file.
func (x *file) info(name string, i fs.FileInfo) sandboxfs.Info {
	out := sandboxfs.Info{Name: path.Base("/" + name), Mode: i.Mode(), Size: i.Size(), ModTime: i.ModTime()}
	if !ofSystem(name) {
		out.UID = uidOf(cmp.Or(x.b.claim().User, x.b.spec().User))
		out.GID = out.UID
	}
	if i.Mode()&fs.ModeSymlink != 0 {
		out.Target, _ = x.root.Readlink(name) // "": it was removed meanwhile
	}
	return out
}

// use calls do with a file, and returns its error classified.
func (f *files) use(p string, open func(string) (*file, error), do func(*file) error) error {
	x, err := open(p)
	if err != nil {
		return err
	}
	defer x.close()
	return fileError(x.abs, do(x))
}

// Stat implements sandboxfs.FS.
func (f *files) Stat(_ context.Context, p string) (info sandboxfs.Info, err error) {
	err = f.use(p, f.open, func(x *file) error {
		i, err := x.root.Lstat(x.name)
		if err == nil {
			info = x.info(x.name, i)
		}
		return err
	})
	return info, err
}

// List implements sandboxfs.FS.
func (f *files) List(_ context.Context, p string, o sandboxfs.ListOptions) (list []sandboxfs.Info, more bool, err error) {
	limit := maxList
	if o.Limit > 0 && o.Limit < maxList {
		limit = o.Limit
	}
	err = f.use(p, f.open, func(x *file) error {
		all, err := fs.ReadDir(x.root.FS(), x.name)
		if err != nil {
			return err
		}
		for _, e := range all {
			i, err := e.Info()
			if err != nil || e.Name() <= o.After || strings.HasPrefix(e.Name(), hidden) {
				continue // it was removed meanwhile, or is not wanted
			}
			if len(list) == limit {
				more = true
				break
			}
			info := x.info(path.Join(x.name, e.Name()), i)
			if o.Attrs {
				info.Attrs = x.b.attrs(path.Join(x.abs, e.Name()))
			}
			list = append(list, info)
		}
		return nil
	})
	return list, more, err
}

// Move implements sandboxfs.FS.
func (f *files) Move(_ context.Context, from, to string, replace bool) error {
	return f.use(from, f.writable, func(a *file) error {
		return f.use(to, f.writable, func(b *file) error {
			if _, err := b.root.Lstat(b.name); err == nil && !replace {
				return fs.ErrExist
			}
			if err := a.root.Rename(a.name, b.name); err != nil {
				return err
			}
			a.b.moveAttrs(a.abs, b.abs)
			a.b.changed(sandboxfs.Removed, a.abs, false)
			b.b.changed(sandboxfs.Created, b.abs, false)
			return nil
		})
	})
}

// Copy implements sandboxfs.FS.
func (f *files) Copy(_ context.Context, from, to string) error {
	return f.use(from, f.open, func(a *file) error {
		return f.use(to, f.writable, func(b *file) error {
			if within(a.abs, b.abs) {
				return errs.New(errs.InvalidArgument, "%s is in %s", b.abs, a.abs)
			}
			if _, err := b.root.Lstat(b.name); err == nil {
				return fs.ErrExist
			}
			if err := copyTree(a.root, a.name, b.name); err != nil {
				return err
			}
			b.b.changed(sandboxfs.Created, b.abs, false)
			return nil
		})
	})
}

// copyTree copies a file, or a directory with its files.
func copyTree(root *os.Root, from, to string) error {
	i, err := root.Lstat(from)
	if err != nil {
		return err
	}
	switch {
	case i.Mode()&fs.ModeSymlink != 0:
		target, err := root.Readlink(from)
		if err != nil {
			return err
		}
		return root.Symlink(target, to)
	case !i.IsDir():
		b, err := root.ReadFile(from)
		if err != nil {
			return err
		}
		return root.WriteFile(to, b, i.Mode().Perm())
	}
	if err := root.Mkdir(to, i.Mode().Perm()); err != nil {
		return err
	}
	all, err := fs.ReadDir(root.FS(), from)
	for _, e := range all {
		if err == nil {
			err = copyTree(root, path.Join(from, e.Name()), path.Join(to, e.Name()))
		}
	}
	return err
}

// Remove implements sandboxfs.FS.
func (f *files) Remove(_ context.Context, p string, recursive bool) error {
	return f.use(p, f.writable, func(x *file) error {
		i, err := x.root.Lstat(x.name)
		if err != nil {
			return err
		}
		if recursive {
			err = x.root.RemoveAll(x.name)
		} else {
			err = x.root.Remove(x.name)
		}
		if err != nil {
			return err
		}
		x.b.moveAttrs(x.abs, "")
		x.b.changed(sandboxfs.Removed, x.abs, i.IsDir())
		return nil
	})
}

// Mkdir implements sandboxfs.FS.
func (f *files) Mkdir(_ context.Context, p string, perm fs.FileMode, parents bool) error {
	return f.use(p, f.writable, func(x *file) error {
		perm = cmp.Or(perm.Perm(), 0o755)
		make := x.root.Mkdir
		if i, err := x.root.Stat(x.name); parents && err == nil && i.IsDir() {
			return nil
		}
		if parents {
			make = x.root.MkdirAll
		}
		if err := make(x.name, perm); err != nil {
			return err
		}
		x.b.changed(sandboxfs.Created, x.abs, true)
		return nil
	})
}

// Chmod implements sandboxfs.FS.
func (f *files) Chmod(_ context.Context, p string, perm fs.FileMode) error {
	return f.use(p, f.writable, func(x *file) error { return x.attributes(x.root.Chmod(x.name, perm)) })
}

// attributes reports a change of attributes, unless it failed.
func (x *file) attributes(err error) error {
	if err == nil {
		x.b.changed(sandboxfs.Attributes, x.abs, false)
	}
	return err
}

// Symlink implements sandboxfs.FS.
func (f *files) Symlink(_ context.Context, target, p string) error {
	return f.use(p, f.writable, func(x *file) error {
		if err := x.root.Symlink(target, x.name); err != nil {
			return err
		}
		x.b.changed(sandboxfs.Created, x.abs, false)
		return nil
	})
}

// Link implements sandboxfs.FS.
func (f *files) Link(_ context.Context, from, to string) error {
	return f.use(from, f.writable, func(a *file) error {
		return f.use(to, f.writable, func(b *file) error {
			if err := a.root.Link(a.name, b.name); err != nil {
				return err
			}
			b.b.changed(sandboxfs.Created, b.abs, false)
			return nil
		})
	})
}

// Chtimes implements sandboxfs.FS.
func (f *files) Chtimes(_ context.Context, p string, accessed, modified time.Time) error {
	return f.use(p, f.writable, func(x *file) error { return x.attributes(x.root.Chtimes(x.name, accessed, modified)) })
}

// Truncate implements sandboxfs.FS.
func (f *files) Truncate(_ context.Context, p string, size int64) error {
	return f.use(p, f.writable, func(x *file) error {
		i, err := x.root.Stat(x.name)
		if err != nil {
			return err
		}
		if err := x.b.room(size - i.Size()); err != nil {
			return err
		}
		w, err := x.root.OpenFile(x.name, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		if err := errors.Join(w.Truncate(size), w.Close()); err != nil {
			return err
		}
		x.b.changed(sandboxfs.Written, x.abs, false)
		return nil
	})
}

// Space implements sandboxfs.FS.
func (f *files) Space(_ context.Context, p string) (s sandboxfs.Space, err error) {
	err = f.use(p, f.open, func(x *file) error {
		if _, err := x.root.Stat(x.name); err != nil {
			return err
		}
		s.Bytes = cmp.Or(x.b.spec().DiskBytes, 1<<40)
		s.FreeBytes = max(0, s.Bytes-x.b.size())
		return nil
	})
	return s, err
}

// size returns the bytes of all files.
func (b *box) size() (n int64) {
	_ = filepath.WalkDir(b.files, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return nil // it was removed meanwhile
		}
		if i, err := e.Info(); err == nil {
			n += i.Size()
		}
		return nil
	})
	return n
}

// room returns ResourceExhausted if the disk of the sandbox has no room for more bytes.
func (b *box) room(more int64) error {
	limit := b.spec().DiskBytes
	if more <= 0 || limit == 0 || b.size()+more <= limit {
		return nil
	}
	return errs.New(errs.ResourceExhausted, "no space left on device")
}

// makeFiles makes the files that every sandbox has, in its directory.
func (b *box) makeFiles() error {
	root, err := os.OpenRoot(b.files)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, dir := range []string{"tmp", "etc", strings.TrimPrefix(path.Clean(b.workDir()), "/")} {
		if dir == "" {
			continue
		}
		if err := root.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	host := cmp.Or(b.spec().Hostname, b.spec().ID)
	if err := root.WriteFile("etc/hostname", []byte(host+"\n"), 0o644); err != nil {
		return err
	}
	return root.WriteFile("etc/hosts", fmt.Appendf(nil, "127.0.0.1\tlocalhost\n%s\t%s\n", cmp.Or(b.address, "127.0.1.1"), host), 0o644)
}
