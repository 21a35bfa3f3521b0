package source

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/errs"
)

// Materialize lays a source out in dir, which it makes and which must not exist. On an error it removes dir again.
// FailedPrecondition when contents are missing, or are not what was uploaded; those are removed, so that the next
// upload sends them again.
func (s *Store) Materialize(ctx context.Context, manifest Digest, dir string) (err error) {
	m, err := s.Manifest(manifest)
	if err != nil {
		return err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	missing, err := s.missing(m)
	if err != nil {
		return err
	}
	if len(missing) > 0 {
		return errs.New(errs.FailedPrecondition, "source %s is not complete: %d contents are missing", manifest, len(missing)).
			WithHint("its upload was interrupted; deploy again")
	}
	// No other user has access until the end, so no path can be redirected:
	// Validate has checked that no file or link is a folder of another path.
	if err := os.Mkdir(dir, 0o700); err != nil {
		return errs.New(errs.FailedPrecondition, "lay out source: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	made, checked := map[string]bool{".": true}, map[Digest]bool{}
	for _, f := range m.Files {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := makeParents(dir, path.Dir(f.Path), made); err != nil {
			return errs.New(errs.Unavailable, "lay out source: %w", err)
		}
		if f.Mode != Symlink && !checked[f.Digest] {
			damaged, err := s.removeDamaged(f.Digest)
			if err != nil {
				return err
			}
			if damaged {
				return errs.New(errs.FailedPrecondition, "lay out %s: its content in the store is damaged", f.Path).
					WithHint("deploy again: the content is then sent again")
			}
			checked[f.Digest] = true
		}
		if err := s.place(f, filepath.Join(dir, filepath.FromSlash(f.Path))); err != nil {
			return errs.New(errs.Unavailable, "lay out %s: %w", f.Path, err)
		}
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return errs.New(errs.Unavailable, "lay out source: %w", err)
	}
	return nil
}

func makeParents(root, dir string, made map[string]bool) error {
	if made[dir] {
		return nil
	}
	if err := makeParents(root, path.Dir(dir), made); err != nil {
		return err
	}
	made[dir] = true
	return os.Mkdir(filepath.Join(root, filepath.FromSlash(dir)), 0o755)
}

// place makes one file. Its time comes from the content in the store: equal contents have equal times, and different
// contents different ones. Incremental transfers rely on this.
func (s *Store) place(f File, to string) error {
	if f.Mode == Symlink {
		if err := os.Symlink(f.Target, to); err != nil {
			return err
		}
		zero := []unix.Timespec{{}, {}}
		return unix.UtimesNanoAt(unix.AT_FDCWD, to, zero, unix.AT_SYMLINK_NOFOLLOW)
	}
	from := s.blobFile(f.Digest)
	if f.Mode == Regular {
		err := os.Link(from, to)
		if err == nil || !errors.Is(err, syscall.EXDEV) && !errors.Is(err, syscall.EMLINK) && !errors.Is(err, syscall.EPERM) {
			return err
		}
	}
	mode := fs.FileMode(0o644)
	if f.Mode == Executable {
		mode = 0o755
	}
	return copyFile(from, to, mode)
}

func copyFile(from, to string, mode fs.FileMode) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	defer out.Close()
	// Copy by sharing blocks where the file system supports it.
	if err := unix.IoctlFileClone(int(out.Fd()), int(in.Fd())); err != nil {
		if _, err := io.Copy(out, in); err != nil {
			return err
		}
	}
	if err := out.Chmod(mode); err != nil {
		return err
	}
	return os.Chtimes(to, info.ModTime(), info.ModTime())
}

// syncFileSystem makes all files of dir's file system durable.
func syncFileSystem(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Syncfs(int(f.Fd()))
}
