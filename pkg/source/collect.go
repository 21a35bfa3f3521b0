package source

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"miren.dev/runtime/pkg/errs"
)

// grace is how long a manifest or content without references is kept: an upload or build may be about to refer to it.
const grace = time.Hour

// Collected is the result of Collect.
type Collected struct {
	Manifests int   // manifests removed
	Blobs     int   // contents removed
	Bytes     int64 // bytes freed
	Kept      int64 // bytes that remain
}

// Collect removes manifests that were not used for MaxAge, then the least
// recently used ones until the contents fit into MaxBytes, and then the
// contents that no manifest names. It removes a manifest that does not match its
// digest, and no contents when it cannot read a manifest.
func (s *Store) Collect(ctx context.Context) (Collected, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.collect(ctx, time.Now())
}

type kept struct {
	digest Digest
	used   time.Time
	blobs  map[Digest]int64
}

func (s *Store) collect(ctx context.Context, now time.Time) (c Collected, err error) {
	fail := func(err error) (Collected, error) {
		return c, errs.New(errs.Unavailable, "collect sources: %w", err)
	}
	entries, err := os.ReadDir(filepath.Join(s.cfg.Dir, "manifests"))
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return fail(err)
	}
	var all []kept
	references := map[Digest]int{}
	sizes := map[Digest]int64{}
	for _, e := range entries {
		if err := ctx.Err(); err != nil {
			return c, err
		}
		d := Digest(e.Name())
		b, err := os.ReadFile(s.manifestFile(d))
		if err != nil {
			return fail(err)
		}
		info, err := e.Info()
		if err != nil {
			return fail(err)
		}
		k := kept{digest: d, used: info.ModTime(), blobs: map[Digest]int64{}}
		if digestOf(b) != d { // by a power loss, since it is not synced: its source is sent again
			if err := os.Remove(s.manifestFile(d)); err != nil {
				return fail(err)
			}
			c.Manifests++
			continue
		}
		m, err := Decode(b, s.cfg.Limits)
		if err != nil {
			return c, errs.Wrap(err, "collect sources: manifest %s", d)
		}
		for _, f := range m.Files {
			if _, seen := k.blobs[f.Digest]; f.Mode != Symlink && !seen {
				k.blobs[f.Digest] = f.Size
				references[f.Digest]++
				sizes[f.Digest] = f.Size
			}
		}
		all = append(all, k)
	}
	var total int64
	for _, n := range sizes {
		total += n
	}
	slices.SortFunc(all, func(a, b kept) int { return a.used.Compare(b.used) })
	for _, k := range all {
		age := now.Sub(k.used)
		if age < grace || age < s.cfg.MaxAge && total <= s.cfg.MaxBytes {
			continue
		}
		if err := os.Remove(s.manifestFile(k.digest)); err != nil {
			return fail(err)
		}
		c.Manifests++
		for d, n := range k.blobs {
			if references[d]--; references[d] == 0 {
				total -= n
			}
		}
	}
	err = filepath.WalkDir(filepath.Join(s.cfg.Dir, "blobs"), func(p string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		if references[Digest(e.Name())] > 0 || now.Sub(info.ModTime()) < grace {
			c.Kept += info.Size()
			return nil
		}
		c.Blobs++
		c.Bytes += info.Size()
		return os.Remove(p)
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fail(err)
	}
	return c, s.collectTmp(now)
}

// collectTmp removes files that a killed server left half-written.
func (s *Store) collectTmp(now time.Time) error {
	entries, err := os.ReadDir(s.tmpDir())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return errs.New(errs.Unavailable, "collect sources: %w", err)
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil && now.Sub(info.ModTime()) > grace {
			if err := os.Remove(filepath.Join(s.tmpDir(), e.Name())); err != nil {
				return errs.New(errs.Unavailable, "collect sources: %w", err)
			}
		}
	}
	return nil
}
