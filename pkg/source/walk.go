package source

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"miren.dev/runtime/pkg/errs"
)

// Names that are part of a source even if a rule ignores them, since builds read them.
var needed = []string{".runtime/app.toml", "app.toml", "Procfile", "Dockerfile", ".dockerignore"}

const (
	// maxSkipped bounds Tree.Skipped.
	maxSkipped = 100
	// maxRules bounds the files of rules that hold at a time, in bytes, since each rule is
	// compared with each path.
	maxRules = 1 << 20
)

// WalkOptions are the options of a walk.
type WalkOptions struct {
	Limits Limits
	// Cache has the digests of earlier walks; nil: the walk reads every file.
	Cache *Cache
	// Top is the root of the repository that the folder is in; "": the nearest folder
	// with .git, if there is one.
	Top string
}

// Tree is the result of a walk.
type Tree struct {
	Manifest *Manifest
	// Ignored counts the files and folders that rules left out (the contents of an ignored folder are not counted).
	Ignored int
	// Skipped lists files that cannot be part of a source, with the reason: "run.sock: a socket".
	Skipped []string
	// Hashed counts the files that had to be read.
	Hashed int

	root  *os.Root
	paths map[Digest]string
}

// Close closes the folder.
func (t *Tree) Close() error { return t.root.Close() }

// Walk reads a folder and makes its manifest. Nothing outside of the folder is
// read, except the .gitignore files between it and the root of its repository.
func Walk(ctx context.Context, dir string, opt WalkOptions) (*Tree, error) {
	return walkFolder(ctx, dir, opt, modeBits)
}

// walkFolder is Walk; modeBits reports whether permission bits mark executable
// files.
func walkFolder(ctx context.Context, dir string, opt WalkOptions, modeBits bool) (*Tree, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, errs.New(errs.InvalidArgument, "source folder: %w", err)
	}
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, errs.New(errs.NotFound, "there is no folder %s", dir)
	case err != nil:
		return nil, errs.New(errs.Unavailable, "source folder: %w", err)
	case !info.IsDir():
		return nil, errs.New(errs.InvalidArgument, "%s is not a folder", dir)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, errs.New(errs.Unavailable, "open source folder: %w", err)
	}
	w := &walker{ctx: ctx, root: root, limits: opt.Limits.orDefault(), cache: opt.Cache, m: matcher{git: slices.Clone(defaults)}, modeBits: modeBits}
	w.tree = &Tree{Manifest: &Manifest{Files: []File{}}, root: root, paths: map[Digest]string{}}
	if err := w.run(dir, opt.Top); err != nil {
		root.Close()
		return nil, err
	}
	return w.tree, nil
}

// Open opens the content of a digest.
func (t *Tree) Open(d Digest) (*os.File, error) {
	p, ok := t.paths[d]
	if !ok {
		return nil, errs.New(errs.NotFound, "content %s is not in the source", d)
	}
	f, err := t.root.Open(p)
	if err != nil {
		return nil, errs.New(errs.Conflict, "open %s: %w", p, err).WithHint("the source changed meanwhile; try again")
	}
	return f, nil
}

type walker struct {
	ctx      context.Context
	root     *os.Root
	limits   Limits
	cache    *Cache
	m        matcher
	tree     *Tree
	found    []entry
	bytes    int64
	rules    int  // bytes of the files whose rules m.git has
	modeBits bool // files have permission bits for execution
}

// entry is a file before its digest is known.
type entry struct {
	File
	info fs.FileInfo
}

func (w *walker) run(dir, top string) error {
	if err := w.rulesAbove(dir, top); err != nil {
		return err
	}
	if b, err := readRules(w.root, ".dockerignore"); err != nil {
		return err
	} else if b != nil {
		if w.m.docker, err = parseDockerignore(b); err != nil {
			return err
		}
	}
	if err := w.dir("."); err != nil {
		return err
	}
	slices.SortFunc(w.found, func(a, b entry) int { return strings.Compare(a.Path, b.Path) })
	if err := w.hash(); err != nil {
		return err
	}
	for _, e := range w.found {
		w.tree.Manifest.Files = append(w.tree.Manifest.Files, e.File)
		if e.Mode != Symlink {
			w.tree.paths[e.Digest] = e.Path
		}
	}
	return w.tree.Manifest.Validate(w.limits)
}

// rulesAbove reads the rules of the repository that the folder is in.
func (w *walker) rulesAbove(dir, top string) error {
	for d := dir; top == ""; d = filepath.Dir(d) {
		if _, err := os.Lstat(filepath.Join(d, ".git")); err == nil {
			top = d
			if b, err := os.ReadFile(filepath.Join(d, ".git", "info", "exclude")); err == nil {
				w.m.git = append(w.m.git, parseGitignore("", b)...)
			}
		} else if d == filepath.Dir(d) {
			return nil
		}
	}
	rel, err := filepath.Rel(top, dir)
	if err != nil || rel == "." {
		return nil
	}
	root, err := os.OpenRoot(top)
	if err != nil {
		return errs.New(errs.Unavailable, "open the repository of the source: %w", err)
	}
	defer root.Close()
	w.m.above = filepath.ToSlash(rel)
	at := ""
	for _, e := range strings.Split(w.m.above, "/") {
		if err := w.addRules(root, path.Join(at, ".gitignore"), at); err != nil {
			return err
		}
		at = path.Join(at, e)
	}
	return nil
}

// addRules adds the rules of a file, if it exists; at is the folder that they are for, from
// the root of the repository.
func (w *walker) addRules(root *os.Root, name, at string) error {
	b, err := readRules(root, name)
	if err != nil || b == nil {
		return err
	}
	if w.rules += len(b); w.rules > maxRules {
		return errs.New(errs.ResourceExhausted, "%s and the .gitignore files of the folders above it have more than %d bytes", name, maxRules)
	}
	w.m.git = append(w.m.git, parseGitignore(at, b)...)
	return nil
}

// readRules returns a file below root, nil when there is none.
func readRules(root *os.Root, name string) ([]byte, error) {
	info, err := root.Lstat(name)
	if err != nil || !info.Mode().IsRegular() {
		return nil, nil
	}
	if info.Size() > maxRules {
		return nil, errs.New(errs.InvalidArgument, "%s is larger than %d bytes", name, maxRules)
	}
	b, err := root.ReadFile(name)
	if err != nil {
		return nil, errs.New(errs.Unavailable, "read %s: %w", name, err)
	}
	return b, nil
}

func (w *walker) skip(p, why string) {
	if len(w.tree.Skipped) < maxSkipped {
		w.tree.Skipped = append(w.tree.Skipped, p+": "+why)
	}
}

// dir walks one folder.
func (w *walker) dir(dir string) error {
	if err := w.ctx.Err(); err != nil {
		return err
	}
	f, err := w.root.Open(dir)
	if err != nil {
		return errs.New(errs.Unavailable, "read source: %w", err)
	}
	entries, err := f.ReadDir(w.limits.Files*4 + 1)
	f.Close()
	if err != nil && !errors.Is(err, io.EOF) {
		return errs.New(errs.Unavailable, "read source: %w", err)
	}
	if len(entries) > w.limits.Files*4 {
		return errs.New(errs.ResourceExhausted, "folder %s has more than %d entries", dir, w.limits.Files*4)
	}
	kept, rules := len(w.m.git), w.rules
	at := path.Join(w.m.above, dir)
	if at == "." {
		at = ""
	}
	if err := w.addRules(w.root, path.Join(dir, ".gitignore"), at); err != nil {
		return err
	}
	for _, e := range entries {
		if err := w.entry(path.Join(dir, e.Name()), e); err != nil {
			return err
		}
	}
	w.m.git, w.rules = w.m.git[:kept], rules
	return nil
}

func (w *walker) entry(p string, e fs.DirEntry) error {
	if err := w.ctx.Err(); err != nil {
		return err
	}
	if slices.Contains(always, p) || slices.Contains(always[:3], path.Base(p)) {
		return nil
	}
	keep := slices.Contains(needed, p) || p == ".runtime"
	if !keep && w.m.gitIgnored(p, e.IsDir()) {
		w.tree.Ignored++
		return nil
	}
	out, err := w.m.dockerIgnored(p)
	if err != nil {
		return errs.New(errs.InvalidArgument, ".dockerignore: %w", err)
	}
	if e.IsDir() {
		if out && !keep && !w.m.dockerMayReenter(p) {
			w.tree.Ignored++
			return nil
		}
		return w.dir(p)
	}
	if out && !keep {
		w.tree.Ignored++
		return nil
	}
	info, err := e.Info()
	if errors.Is(err, fs.ErrNotExist) {
		return nil // removed meanwhile
	}
	if err != nil {
		return errs.New(errs.Unavailable, "read source: %w", err)
	}
	return w.leaf(p, info)
}

func what(t fs.FileMode) string {
	switch t {
	case fs.ModeSocket:
		return "a socket"
	case fs.ModeNamedPipe:
		return "a pipe"
	case fs.ModeDevice, fs.ModeDevice | fs.ModeCharDevice:
		return "a device"
	}
	return "neither a file nor a link"
}

func (w *walker) leaf(p string, info fs.FileInfo) error {
	if !validPath(p) {
		w.skip(fmt.Sprintf("%q", p), "not a usable name")
		return nil
	}
	x := entry{File: File{Path: p}, info: info}
	switch t := info.Mode().Type(); t {
	case 0:
		x.Mode, x.Size = Regular, info.Size()
		if w.modeBits && info.Mode()&0o111 != 0 {
			x.Mode = Executable
		}
		if x.Size > w.limits.FileBytes {
			return errs.New(errs.ResourceExhausted, "%s has %d MiB, at most %d MiB are allowed in one file", p, x.Size>>20, w.limits.FileBytes>>20).
				WithHint("ignore it in .gitignore or .dockerignore")
		}
		w.bytes += x.Size
	case fs.ModeSymlink:
		target, err := w.root.Readlink(p)
		if err != nil {
			return errs.New(errs.Unavailable, "read source: %w", err)
		}
		outside := filepath.VolumeName(target) != "" // a drive of Windows
		target = filepath.ToSlash(target)
		if outside || !confined(p, target) {
			w.skip(p, fmt.Sprintf("a link to %s, outside of the source", target))
			return nil
		}
		x.Mode, x.Target = Symlink, target
	default:
		w.skip(p, what(t))
		return nil
	}
	w.found = append(w.found, x)
	if len(w.found) > w.limits.Files {
		return errs.New(errs.ResourceExhausted, "the source has more than %d files; %s is one of them", w.limits.Files, p).
			WithHint("ignore what is not needed in .gitignore or .dockerignore")
	}
	if w.bytes > w.limits.Bytes {
		return errs.New(errs.ResourceExhausted, "the source has more than %d MiB; %s is one of its files", w.limits.Bytes>>20, p).
			WithHint("ignore what is not needed in .gitignore or .dockerignore")
	}
	return nil
}

// hash computes the digests that the cache lacks.
func (w *walker) hash() error {
	var g errgroup.Group
	g.SetLimit(max(2, runtime.NumCPU()))
	for i := range w.found {
		e := &w.found[i]
		if e.Mode == Symlink {
			continue
		}
		if d, ok := w.cache.lookup(e.Path, e.info); ok {
			e.Digest = d
			continue
		}
		w.tree.Hashed++
		g.Go(func() error {
			if err := w.ctx.Err(); err != nil {
				return err
			}
			return w.hashFile(e)
		})
	}
	return g.Wait()
}

func (w *walker) hashFile(e *entry) error {
	f, err := w.root.OpenFile(e.Path, os.O_RDONLY|openFlags, 0)
	if err != nil {
		return errs.New(errs.Unavailable, "read source: %w", err)
	}
	defer f.Close()
	h := sha256.New()
	in := io.LimitReader(f, w.limits.FileBytes+1)
	if !w.modeBits {
		var head bytes.Buffer
		_, err = io.CopyN(&head, in, 4)
		if err != nil && !errors.Is(err, io.EOF) {
			return errs.New(errs.Unavailable, "read %s: %w", e.Path, err)
		}
		if isProgram(head.Bytes()) {
			e.Mode = Executable
		}
		in = io.MultiReader(&head, in)
	}
	n, err := io.Copy(h, in)
	if err != nil {
		return errs.New(errs.Unavailable, "read %s: %w", e.Path, err)
	}
	if n != e.Size {
		return errs.New(errs.Conflict, "%s changed while it was read", e.Path).WithHint("try again")
	}
	e.Digest = Digest(hex.EncodeToString(h.Sum(nil)))
	w.cache.remember(e.Path, e.info, e.Digest)
	return nil
}

// isProgram reports whether a file that begins with head can be executed: a
// script that names its interpreter, or an ELF program.
func isProgram(head []byte) bool {
	return bytes.HasPrefix(head, []byte("#!")) || bytes.HasPrefix(head, []byte("\x7fELF"))
}
