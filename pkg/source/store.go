package source

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"miren.dev/runtime/pkg/atomicfile"
	"miren.dev/runtime/pkg/errs"
)

// StoreConfig of a Store.
type StoreConfig struct {
	Dir    string // absolute
	Limits Limits // limits of one source
	// MaxBytes and MaxAge bound the stored contents; 0: 10 GiB and 30 days.
	MaxBytes int64
	MaxAge   time.Duration
	Logger   *slog.Logger
}

// Store keeps manifests and contents on the server. Its methods may be called
// concurrently.
type Store struct {
	cfg StoreConfig
	// mu is held for reading while contents are looked up and used, and for
	// writing while they are collected.
	mu sync.RWMutex
}

// NewStore returns a store without touching the disk.
func NewStore(cfg StoreConfig) *Store {
	if cfg.MaxBytes == 0 {
		cfg.MaxBytes = 10 << 30
	}
	if cfg.MaxAge == 0 {
		cfg.MaxAge = 30 * 24 * time.Hour
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	cfg.Limits = cfg.Limits.orDefault()
	return &Store{cfg: cfg}
}

func (s *Store) manifestFile(d Digest) string {
	return filepath.Join(s.cfg.Dir, "manifests", string(d))
}
func (s *Store) blobFile(d Digest) string {
	return filepath.Join(s.cfg.Dir, "blobs", string(d[:2]), string(d))
}
func (s *Store) tmpDir() string { return filepath.Join(s.cfg.Dir, "tmp") }

func (s *Store) makeDirs(more ...string) error {
	for _, d := range append([]string{filepath.Join(s.cfg.Dir, "manifests"), filepath.Join(s.cfg.Dir, "blobs"), s.tmpDir()}, more...) {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return errs.New(errs.FailedPrecondition, "source store: %w", err)
		}
	}
	return nil
}

// CheckUploaded fails unless all of a source was uploaded: NotFound, or
// FailedPrecondition if contents of it are missing.
func (s *Store) CheckUploaded(digest Digest) error {
	m, err := s.Manifest(digest)
	if err != nil {
		return errs.Wrap(err, "source")
	}
	b, err := m.Encode()
	if err != nil {
		return errs.Wrap(err, "source")
	}
	_, missing, err := s.Missing(b)
	if err != nil {
		return errs.Wrap(err, "source")
	}
	if len(missing) > 0 {
		return errs.New(errs.FailedPrecondition, "%d contents of source %s were not uploaded", len(missing), digest).
			WithHint("send it again; the contents that the server has are not sent again")
	}
	return nil
}

// Missing stores the encoded manifest and returns its digest and the contents
// that the store lacks, each once, in the order of the manifest.
func (s *Store) Missing(encoded []byte) (Digest, []Digest, error) {
	m, err := Decode(encoded, s.cfg.Limits)
	if err != nil {
		return "", nil, err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if err := s.makeDirs(); err != nil {
		return "", nil, err
	}
	d := digestOf(encoded)
	if err := s.keepManifest(d, encoded); err != nil {
		return "", nil, errs.New(errs.Unavailable, "keep manifest: %w", err)
	}
	missing, err := s.missing(m)
	return d, missing, err
}

// keepManifest leaves out the syncs, which would slow down every deployment. A
// manifest is checked when it is read, and stored again by the next deployment.
func (s *Store) keepManifest(d Digest, encoded []byte) error {
	f, err := atomicfile.CreateIn(s.tmpDir(), s.manifestFile(d), 0o600, atomicfile.Volatile)
	if err != nil {
		return err
	}
	defer f.Abort()
	if _, err := f.Write(encoded); err != nil {
		return err
	}
	return f.Commit()
}

func (s *Store) missing(m *Manifest) ([]Digest, error) {
	var out []Digest
	seen := map[Digest]int64{}
	for _, f := range m.Files {
		if f.Mode == Symlink {
			continue
		}
		if size, ok := seen[f.Digest]; ok {
			if size != f.Size {
				return nil, errs.New(errs.InvalidArgument, "manifest entry %q: its content has another size elsewhere", f.Path)
			}
			continue
		}
		seen[f.Digest] = f.Size
		info, err := os.Lstat(s.blobFile(f.Digest))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			out = append(out, f.Digest)
		case err != nil:
			return nil, errs.New(errs.Unavailable, "source store: %w", err)
		case info.Size() != f.Size:
			damaged, err := s.removeDamaged(f.Digest)
			if err != nil {
				return nil, err
			}
			if damaged {
				out = append(out, f.Digest)
				continue
			}
			return nil, errs.New(errs.InvalidArgument, "manifest entry %q: content %s has %d bytes, not %d", f.Path, f.Digest, info.Size(), f.Size)
		}
	}
	return out, nil
}

// removeDamaged removes a content that does not match its digest, as a crash of
// the machine during an upload can leave one.
func (s *Store) removeDamaged(d Digest) (bool, error) {
	f, err := os.Open(s.blobFile(d))
	if err != nil {
		return false, errs.New(errs.Unavailable, "source store: %w", err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return false, errs.New(errs.Unavailable, "source store: %w", err)
	}
	if Digest(hex.EncodeToString(h.Sum(nil))) == d {
		return false, nil
	}
	if err := os.Remove(f.Name()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, errs.New(errs.Unavailable, "source store: %w", err)
	}
	return true, nil
}

// Manifest returns a manifest that Missing stored, and marks it as used.
func (s *Store) Manifest(d Digest) (*Manifest, error) {
	if !d.Valid() {
		return nil, errs.New(errs.InvalidArgument, "digest %q", d)
	}
	b, err := os.ReadFile(s.manifestFile(d))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errs.New(errs.NotFound, "source %s is not in the store", d).WithHint("deploy again: it was collected, or never sent")
	}
	if err != nil {
		return nil, errs.New(errs.Unavailable, "read manifest: %w", err)
	}
	if digestOf(b) != d {
		return nil, errs.New(errs.Corrupt, "manifest %s is damaged", d)
	}
	now := time.Now()
	if err := os.Chtimes(s.manifestFile(d), now, now); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, errs.New(errs.Unavailable, "mark manifest: %w", err)
	}
	return Decode(b, s.cfg.Limits)
}

// ReadPack stores the contents of a manifest from a pack, durably when it returns
// without an error. It returns how many it stored. After an error the contents
// stored before it stay.
func (s *Store) ReadPack(ctx context.Context, manifest Digest, r io.Reader) (int, error) {
	m, err := s.Manifest(manifest)
	if err != nil {
		return 0, err
	}
	sizes := make(map[Digest]int64, len(m.Files))
	for _, f := range m.Files {
		if f.Mode != Symlink {
			sizes[f.Digest] = f.Size
		}
	}
	n := 0
	err = ReadPack(r, func(d Digest) (int64, bool) {
		size, ok := sizes[d]
		delete(sizes, d) // each once
		return size, ok
	}, func(d Digest, size int64, body io.Reader) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		n++
		return s.put(d, size, body)
	})
	if err == nil && n > 0 {
		if err = syncFileSystem(s.cfg.Dir); err != nil {
			err = errs.New(errs.Unavailable, "sync the source store: %w", err)
		}
	}
	return n, err
}

// put stores one content, which must match its digest.
func (s *Store) put(d Digest, size int64, r io.Reader) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	file := s.blobFile(d)
	if err := s.makeDirs(filepath.Dir(file)); err != nil {
		return err
	}
	// Thousands of syncs would slow down a deployment: ReadPack makes one.
	f, err := atomicfile.CreateIn(s.tmpDir(), file, 0o644, atomicfile.Volatile)
	if err != nil {
		return errs.New(errs.FailedPrecondition, "source store: %w", err)
	}
	defer f.Abort()
	h := sha256.New()
	n, err := io.Copy(io.MultiWriter(f, h), r)
	if err != nil {
		return readError(err)
	}
	if n != size {
		return errs.New(errs.InvalidArgument, "source pack: content %s ends after %d of %d bytes", d, n, size)
	}
	if Digest(hex.EncodeToString(h.Sum(nil))) != d {
		return errs.New(errs.InvalidArgument, "source pack: content %s is not what its digest says", d)
	}
	if err := f.Commit(); err != nil {
		return errs.New(errs.Unavailable, "source store: %w", err)
	}
	return nil
}
