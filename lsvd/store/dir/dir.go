// Package dir is the object store in a directory of a local file system.
package dir

import (
	"container/list"
	"context"
	"errors"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/lsvd/internal/sched"
	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/pkg/atomicfile"
	"miren.dev/runtime/pkg/errs"
)

// Store keeps each object in a file under a directory. An object is written to
// a temporary file, synced, and then linked (Create) or renamed (Replace) into
// place, and the directory is synced: after a crash an object is whole or
// absent. Several processes may use one directory: link is the atomic create,
// and Replace and Delete exclude each other by flock of the file ".lock".
type Store struct {
	root  string
	files *files
	trace Trace
}

// Trace makes each change of the file system by calling do: tests record it or
// leave it out. Kind is create, write, sync, link, rename, remove, mkdir or
// syncdir; to is the new name of link and rename.
type Trace func(kind, path, to string, data []byte, do func() error) error

// staleTemp is how old a temporary file is before it counts as the leftover
// of a crash; nothing takes that long to write one object.
const staleTemp = time.Hour

// Open returns the store in the directory root, which it makes if needed,
// and removes temporary files that a crash has left.
func Open(root string) (*Store, error) { return OpenTraced(root, nil) }

// OpenTraced is [Open] for tests, which make the store's changes.
func OpenTraced(root string, trace Trace) (*Store, error) {
	d := &Store{root: root, files: &files{byKey: map[string]*list.Element{}}, trace: trace}
	runtime.AddCleanup(d, (*files).close, d.files)
	if err := d.makeParents(filepath.Join(d.temp(), "put")); err != nil {
		return nil, errs.Wrap(err, "open object directory")
	}
	left, err := os.ReadDir(d.temp())
	if err != nil {
		return nil, errs.Wrap(err, "open object directory")
	}
	for _, e := range left {
		if info, err := e.Info(); err == nil && time.Since(info.ModTime()) > staleTemp {
			os.Remove(filepath.Join(d.temp(), e.Name())) // tried again at the next open
		}
	}
	return d, nil
}

func (d *Store) temp() string           { return filepath.Join(d.root, ".tmp") }
func (d *Store) path(key string) string { return filepath.Join(d.root, filepath.FromSlash(key)) }

// change makes a change of the file system.
func (d *Store) change(kind, path, to string, data []byte, do func() error) error {
	if d.trace != nil {
		return d.trace(kind, path, to, data, do)
	}
	return do()
}

// syncDir makes the names in a directory durable.
func (d *Store) syncDir(dir string) error {
	return d.change("syncdir", dir, "", nil, func() error { return atomicfile.SyncDir(dir) })
}

// remove removes a file, or a directory that is empty.
func (d *Store) remove(path string) error {
	return d.change("remove", path, "", nil, func() error { return os.Remove(path) })
}

// Get implements [store.Store].
func (d *Store) Get(ctx context.Context, key string) ([]byte, store.Version, error) {
	if err := store.CheckCall(ctx, key); err != nil {
		return nil, "", err
	}
	data, err := os.ReadFile(d.path(key))
	if err != nil {
		return nil, "", classify(err, key)
	}
	return data, store.ContentVersion(data), nil
}

// GetRange implements [store.Store].
func (d *Store) GetRange(ctx context.Context, key string, off, n int64) ([]byte, error) {
	if err := store.CheckCall(ctx, key); err != nil {
		return nil, err
	}
	f, err := os.Open(d.path(key))
	if err != nil {
		return nil, classify(err, key)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, classify(err, key)
	}
	if off < 0 || n < 0 || off > info.Size() {
		return nil, errs.New(errs.InvalidArgument, "object %s: range %d+%d of %d bytes", key, off, n, info.Size())
	}
	buf := make([]byte, min(n, info.Size()-off))
	if _, err := io.ReadFull(io.NewSectionReader(f, off, int64(len(buf))), buf); err != nil {
		return nil, classify(err, key)
	}
	return buf, nil
}

// Create implements [store.Store].
func (d *Store) Create(ctx context.Context, key string, data []byte) (store.Version, error) {
	if err := store.CheckCall(ctx, key); err != nil {
		return "", err
	}
	tmp, err := d.write(data)
	if err != nil {
		return "", classify(err, key)
	}
	defer d.remove(tmp)
	path := d.path(key)
	unlock, err := d.lock() // a Delete beside us takes empty directories away
	if err != nil {
		return "", classify(err, key)
	}
	defer unlock()
	if err = d.makeParents(path); err == nil {
		err = d.change("link", tmp, path, nil, func() error { return os.Link(tmp, path) })
	}
	if err == nil {
		err = d.syncDir(filepath.Dir(path))
	}
	if err != nil {
		return "", classify(err, key)
	}
	return store.ContentVersion(data), nil
}

// Replace implements [store.Store].
func (d *Store) Replace(ctx context.Context, key string, data []byte, old store.Version) (store.Version, error) {
	if err := store.CheckCall(ctx, key); err != nil {
		return "", err
	}
	tmp, err := d.write(data)
	if err != nil {
		return "", classify(err, key)
	}
	defer d.remove(tmp)
	unlock, err := d.lock()
	if err != nil {
		return "", classify(err, key)
	}
	defer unlock()
	path := d.path(key)
	have, err := os.ReadFile(path)
	if err != nil {
		return "", classify(err, key)
	}
	if store.ContentVersion(have) != old {
		return "", errs.New(errs.Conflict, "object %s has changed", key)
	}
	// Not atomicfile.Rename: tests leave out the sync, which follows, alone.
	err = d.change("rename", tmp, path, nil, func() error { return os.Rename(tmp, path) })
	if err == nil {
		err = d.syncDir(filepath.Dir(path))
	}
	if err != nil {
		return "", classify(err, key)
	}
	return store.ContentVersion(data), nil
}

// List implements [store.Store].
func (d *Store) List(ctx context.Context, prefix string) iter.Seq2[store.Info, error] {
	return func(yield func(store.Info, error) bool) {
		start := d.root
		if i := strings.LastIndexByte(prefix, '/'); i >= 0 {
			start = d.path(prefix[:i])
		}
		var found []store.Info
		err := filepath.WalkDir(start, func(path string, e fs.DirEntry, err error) error {
			if err == nil {
				err = ctx.Err()
			}
			switch {
			case errors.Is(err, fs.ErrNotExist):
				return nil // deleted meanwhile, or never there
			case err != nil:
				return err
			case path != start && strings.HasPrefix(e.Name(), "."):
				if e.IsDir() {
					return fs.SkipDir
				}
				return nil
			case e.IsDir():
				return nil
			}
			rel, err := filepath.Rel(d.root, path)
			if err != nil {
				return err
			}
			key := filepath.ToSlash(rel)
			if !strings.HasPrefix(key, prefix) {
				return nil
			}
			info, err := e.Info()
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil {
				return err
			}
			found = append(found, store.Info{Key: key, Size: info.Size()})
			return nil
		})
		if err != nil {
			yield(store.Info{}, classify(err, prefix))
			return
		}
		slices.SortFunc(found, func(a, b store.Info) int { return strings.Compare(a.Key, b.Key) })
		for _, i := range found {
			if !yield(i, nil) {
				return
			}
		}
	}
}

// Delete implements [store.Store]. It also removes directories that become empty.
func (d *Store) Delete(ctx context.Context, key string) error {
	if err := store.CheckCall(ctx, key); err != nil {
		return err
	}
	unlock, err := d.lock()
	if err != nil {
		return classify(err, key)
	}
	defer unlock()
	path := d.path(key)
	d.files.forget(key)
	if err := d.remove(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return classify(err, key)
	}
	dir := filepath.Dir(path)
	for dir != d.root && d.remove(dir) == nil { // fails where something is left
		dir = filepath.Dir(dir)
	}
	if err := d.syncDir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return classify(err, key)
	}
	return nil
}

// writeStep is how much of an object is written before others get the processor.
const writeStep = 128 << 10

// write puts data into a synced temporary file.
func (d *Store) write(data []byte) (string, error) {
	f, err := os.CreateTemp(d.temp(), "put-")
	if err != nil {
		return "", err
	}
	err = d.change("create", f.Name(), "", nil, func() error { return nil })
	if err == nil {
		err = d.change("write", f.Name(), "", data, func() error { return writeSteps(f, data) })
	}
	if err == nil {
		err = d.change("sync", f.Name(), "", nil, f.Sync)
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		d.remove(f.Name())
		return "", err
	}
	return f.Name(), nil
}

// writeSteps writes data to f step by step.
func writeSteps(f *os.File, data []byte) error {
	for len(data) > 0 {
		n, err := f.Write(data[:min(len(data), writeStep)])
		if err != nil {
			return err
		}
		data = data[n:]
		sched.Yield()
	}
	return nil
}

// makeParents makes the directories above path, each durable in its parent.
func (d *Store) makeParents(path string) error {
	dir := filepath.Dir(path)
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	if err := d.makeParents(dir); err != nil {
		return err
	}
	err := d.change("mkdir", dir, "", nil, func() error { return os.Mkdir(dir, 0o700) })
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return d.syncDir(filepath.Dir(dir))
}

// lock excludes other Replace and Delete calls, of any process.
func (d *Store) lock() (func(), error) {
	f, err := os.OpenFile(filepath.Join(d.root, ".lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		if err = unix.Flock(int(f.Fd()), unix.LOCK_EX); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return func() { f.Close() }, nil
}

// classify gives err of the file system its class. Only a missing or existing
// object is certain; everything else leaves the outcome unknown.
func classify(err error, key string) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return errs.New(errs.NotFound, "object %s does not exist", key)
	case errors.Is(err, fs.ErrExist):
		return errs.New(errs.AlreadyExists, "object %s exists", key)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return errs.New(errs.ResourceExhausted, "object %s: %w", key, err)
	}
	return errs.New(errs.Unavailable, "object %s: %w", key, err)
}
