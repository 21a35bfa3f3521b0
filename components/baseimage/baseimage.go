// Package baseimage makes base images on this machine, without any registry:
// Debian from the host's package sources, and Go, Node.js, Python and a static
// file server on top of it, from the registries of their ecosystems. The images
// of sandboxes have a language's tools and what agents expect besides.
//
// An image is an OCI image layout directory, <dir>/<name>-<version>-<key>, made
// once and never changed; it appears complete or not at all. The key is a
// hash of everything that the image is made from, so a changed recipe makes
// another image. The directory is shared by all instances of a machine: a
// file lock per image makes the second process that wants it wait for the first.
// Layers are zstd-compressed; images share the file of a common layer.
//
//	<dir>/<name>-<version>-<key>/   OCI image layout
//	<dir>/locks/                    one lock file per image
//	<dir>/rounds.json               how often the images of a release were made again, for newer packages (Refresh)
//	<dir>/versions.json             which versions the registries offered, and when that was asked
//
// Names are understood by Lookup: our own ("runtime/go:1.26"), which generated
// Dockerfiles use, and the well-known ones of Docker Hub ("golang:1.26-bookworm").
package baseimage

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"miren.dev/runtime/pkg/atomicfile"
	"miren.dev/runtime/pkg/errs"
)

// DefaultDir is where images are kept by default.
const DefaultDir = "/var/cache/runtime/baseimages"

// locksDir is the folder, below that of the images, of their locks.
const locksDir = "locks"

// generation changes when images must be made again although no recipe changed.
const generation = "2"

// Config of a Store.
type Config struct {
	// Dir keeps the images. It is outside of any instance's state, so that
	// instances share them; empty: DefaultDir.
	Dir string
	// BinDir is the directory of the toolchain, with static-server and versitygw.
	BinDir string
	// Registry says when images are pulled instead; empty: RegistryAuto.
	Registry Policy
	// Groups limits the programs that make images; nil: they have no limits.
	Groups Groups
	Logger *slog.Logger
}

// Image is a base image in its layout directory.
type Image struct {
	Name    string `json:"name"`    // "go"
	Version string `json:"version"` // "1.26.8"
	Dir     string `json:"dir"`
	Digest  string `json:"digest"` // digest of the manifest
}

// Store makes images and remembers them. Its methods may be called concurrently.
type Store struct {
	cfg   Config
	ahead map[string]int // rounds by release, instead of the rounds in rounds.json; never changed

	mu           sync.Mutex // guards the fields below; not held while images are made or looked up
	done         map[string]*Image
	hubAsked     time.Time
	hubReachable bool
}

// New returns a store without touching the disk.
func New(cfg Config) *Store {
	if cfg.Dir == "" {
		cfg.Dir = DefaultDir
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Store{cfg: cfg, done: map[string]*Image{}}
}

// recipe describes how to make one image.
type recipe struct {
	name    string
	version string
	parent  *recipe  // image whose layers and configuration it extends; nil: none
	inputs  []string // all other inputs of the result
	env     []string
	workdir string
	user    string // whom processes run as; empty: root
	cmd     []string
	make    func(ctx context.Context, b *builder) error
}

func (r *recipe) key() string {
	h := sha256.New()
	fmt.Fprintf(h, "%s\n%s %s %s\n%q\n%q %q %q\n", generation, r.name, r.version, runtime.GOARCH, r.inputs, r.env, r.workdir, r.cmd)
	if r.user != "" {
		fmt.Fprintf(h, "user %s\n", r.user)
	}
	if r.parent != nil {
		fmt.Fprintln(h, r.parent.key())
	}
	return hex.EncodeToString(h.Sum(nil))[:16]
}

func (r *recipe) dirName() string { return r.name + "-" + r.version + "-" + r.key() }

// Ensure returns the image of a reference that Lookup understands, and makes it
// first if necessary. progress gets a line per step, for people; it may be nil.
func (s *Store) Ensure(ctx context.Context, ref Ref, progress func(string)) (*Image, error) {
	if progress == nil {
		progress = func(string) {}
	}
	r, err := s.recipe(ctx, ref)
	if err != nil {
		return nil, errs.Wrap(err, "base image %s", ref)
	}
	img, err := s.ensure(ctx, r, progress)
	if err != nil {
		return nil, errs.Wrap(err, "base image %s", ref)
	}
	return img, nil
}

func (s *Store) ensure(ctx context.Context, r *recipe, progress func(string)) (*Image, error) {
	dir := filepath.Join(s.cfg.Dir, r.dirName())
	s.mu.Lock()
	img := s.done[dir]
	s.mu.Unlock()
	if img != nil {
		if _, err := os.Stat(filepath.Join(dir, "index.json")); err == nil {
			return img, nil
		}
	}
	img, err := load(dir, r)
	if errors.Is(err, os.ErrNotExist) {
		img, err = s.build(ctx, r, dir, progress)
	}
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.done[dir] = img
	s.mu.Unlock()
	return img, nil
}

func (s *Store) build(ctx context.Context, r *recipe, dir string, progress func(string)) (*Image, error) {
	var parent *Image
	if r.parent != nil {
		var err error
		if parent, err = s.ensure(ctx, r.parent, progress); err != nil {
			return nil, err
		}
	}
	if err := os.MkdirAll(filepath.Join(s.cfg.Dir, locksDir), 0o755); err != nil {
		return nil, errs.New(errs.FailedPrecondition, "image cache: %w", err)
	}
	unlock, err := lock(ctx, filepath.Join(s.cfg.Dir, locksDir, r.dirName()), func() {
		progress("waiting for another build of base image " + r.name)
	})
	if err != nil {
		return nil, err
	}
	defer unlock()
	if img, err := load(dir, r); !errors.Is(err, os.ErrNotExist) {
		return img, err // another process made it
	}

	// An interrupted removal leaves a directory without index.json, which would be in the way.
	if err := os.RemoveAll(dir); err != nil {
		return nil, errs.New(errs.FailedPrecondition, "image cache: %w", err)
	}

	progress(fmt.Sprintf("making base image %s %s", r.name, r.version))
	tmp, err := s.scratch(r.dirName())
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(tmp)
	b := &builder{store: s, recipe: r, dir: filepath.Join(tmp, "layout"), scratch: filepath.Join(tmp, "scratch"), progress: progress}
	if err := b.begin(parent); err != nil {
		return nil, errs.New(errs.FailedPrecondition, "begin layout: %w", err)
	}
	if err := r.make(ctx, b); err != nil {
		return nil, err
	}
	progress(fmt.Sprintf("%s: writing the image", r.name))
	if err := b.finish(); err != nil {
		return nil, errs.New(errs.FailedPrecondition, "finish layout: %w", err)
	}
	if err = atomicfile.SyncTree(b.dir); err == nil {
		err = atomicfile.Rename(b.dir, dir)
	}
	if errors.Is(err, os.ErrExist) {
		// It was copied there without the lock. It has the same key, so it is
		// the same image.
		if img, lerr := load(dir, r); lerr == nil {
			return img, nil
		}
	}
	if err != nil {
		return nil, errs.New(errs.FailedPrecondition, "keep image: %w", err)
	}
	return load(dir, r)
}

// load reads a finished image; os.ErrNotExist when there is none.
func load(dir string, r *recipe) (*Image, error) {
	b, err := os.ReadFile(filepath.Join(dir, "index.json"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	if err != nil {
		return nil, errs.New(errs.Unavailable, "read image: %w", err)
	}
	var index struct {
		Manifests []struct {
			Digest string `json:"digest"`
		} `json:"manifests"`
	}
	if err := json.Unmarshal(b, &index); err != nil || len(index.Manifests) != 1 {
		return nil, errs.New(errs.Corrupt, "image %s: its index.json is not ours", dir).WithHint("remove the directory; it is made again")
	}
	return &Image{Name: r.name, Version: r.version, Dir: dir, Digest: index.Manifests[0].Digest}, nil
}

// lock takes the file lock at path, and calls waiting if another process holds
// it.
func lock(ctx context.Context, path string, waiting func()) (unlock func(), err error) {
	for first := true; ; first = false {
		unlock, err := tryLock(path)
		if err != nil || unlock != nil {
			return unlock, err
		}
		if first {
			waiting()
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}
