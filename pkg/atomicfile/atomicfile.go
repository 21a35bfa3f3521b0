// Package atomicfile replaces files at once: a reader, and a machine that
// starts again after a crash, find the old file or the new one, and each whole.
//
// A new file is written beside its place under a temporary name, synced, renamed
// into place, and its directory is synced. Concurrent writers of one path do
// not mix; the last one wins. A symbolic link at the path is replaced, not
// followed. A writer that is killed may leave its temporary file; the next
// writer of the same path removes it when it is an hour old.
package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// A Flag changes how a file is written.
type Flag int

const (
	// Volatile leaves out the syncs: a crash of the machine may lose the file,
	// or leave it empty. It is for files that such a crash makes worthless (the
	// record of a process), files that every start writes, and caches. A reader
	// must accept an empty file.
	Volatile Flag = 1 << iota
	// NoReplace fails with fs.ErrExist if there is a file at the path.
	NoReplace
)

// abandoned is the age of a temporary file whose writer is taken for dead.
const abandoned = time.Hour

// Write replaces the file at path by one with data. Its permissions are mode,
// whatever the umask. After an error the old file is as it was, unless the sync
// of the directory has failed: then the new file is there, and may be lost by a
// crash of the machine.
func Write(path string, data []byte, mode fs.FileMode, flags ...Flag) error {
	f, err := Create(path, mode, flags...)
	if err != nil {
		return err
	}
	defer f.Abort()
	if _, err := f.Write(data); err != nil {
		return err
	}
	return f.Commit()
}

// File is a new file that is not yet at its path. Until Commit it has a
// temporary name, which Name returns.
type File struct {
	*os.File
	path  string
	flags Flag
	done  bool
}

// Create begins a new file for path. The caller writes it, then calls Commit,
// and defers Abort.
func Create(path string, mode fs.FileMode, flags ...Flag) (*File, error) {
	removeAbandoned(path)
	return CreateIn(filepath.Dir(path), path, mode, flags...)
}

// CreateIn is Create with the temporary file in a directory of the same file
// system that the caller sweeps itself.
func CreateIn(dir, path string, mode fs.FileMode, flags ...Flag) (*File, error) {
	tmp, err := os.CreateTemp(dir, tempPrefix(path)+"*")
	if err != nil {
		return nil, err
	}
	f := &File{File: tmp, path: path}
	for _, flag := range flags {
		f.flags |= flag
	}
	if err := f.Chmod(mode); err != nil {
		f.Abort()
		return nil, err
	}
	return f, nil
}

// Commit puts the file in its place, closed. If it fails, the file is gone.
func (f *File) Commit() error {
	if f.done {
		return os.ErrClosed
	}
	defer f.Abort()
	var err error
	if f.flags&Volatile == 0 {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if f.flags&NoReplace != 0 {
		err = os.Link(f.Name(), f.path) // Abort removes the other name
	} else if err = os.Rename(f.Name(), f.path); err == nil {
		f.done = true
	}
	if err == nil && f.flags&Volatile == 0 {
		err = SyncDir(filepath.Dir(f.path))
	}
	return err
}

// Abort closes and removes the temporary file. It does nothing after Commit.
func (f *File) Abort() {
	if f.done {
		return
	}
	f.done = true
	_ = f.Close() // may be closed
	_ = os.Remove(f.Name())
}

// Rename moves a file or a directory, whose contents must be synced, and syncs
// the directory it is moved to.
func Rename(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(to))
}

// SyncTree syncs a directory and everything in it.
func SyncTree(root string) error {
	return filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir():
			return SyncDir(path)
		case !e.Type().IsRegular():
			return nil
		}
		return sync(path, os.O_RDWR) // Windows syncs writable files only
	})
}

// SyncDir makes the names in a directory durable. It does nothing where the
// file system cannot do it.
func SyncDir(dir string) error {
	if runtime.GOOS == "windows" {
		return nil // Windows has no such call; NTFS keeps a journal of names
	}
	err := sync(dir, os.O_RDONLY)
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, errors.ErrUnsupported) {
		return nil
	}
	return err
}

func sync(path string, flag int) error {
	f, err := os.OpenFile(path, flag, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// IsTemp reports whether the name of a file, without its directory, is a
// temporary one, which readers of the directory skip.
func IsTemp(name string) bool { return strings.HasPrefix(name, ".") && strings.Contains(name, infix) }

const infix = ".tmp-"

func tempPrefix(path string) string { return "." + filepath.Base(path) + infix }

// removeAbandoned removes the temporary files that killed writers of a path
// left. A file that cannot be removed stays: the write does not depend on it.
func removeAbandoned(path string) {
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return
	}
	defer d.Close()
	names, _ := d.Readdirnames(-1)
	for _, name := range names {
		if !strings.HasPrefix(name, tempPrefix(path)) {
			continue
		}
		tmp := filepath.Join(filepath.Dir(path), name)
		if info, err := os.Lstat(tmp); err == nil && time.Since(info.ModTime()) > abandoned {
			_ = os.Remove(tmp)
		}
	}
}
