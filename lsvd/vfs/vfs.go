// Package vfs is the little of a file system that a disk's local log needs,
// as an interface: [Dir] is a real directory, and vfssim has one for tests that
// can lose power. Names are flat.
//
// Durability: what WriteAt wrote survives the process at once and a power
// loss only after Sync of the file; a name survives a power loss only after
// SyncDir. Without them, any subset of 512-byte pieces may survive, also torn.
package vfs

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/errs"
)

// FS is a flat directory of files.
type FS interface {
	// Open opens the file, which exists, or with create may not; a missing
	// file is of class NotFound.
	Open(name string, create bool) (File, error)
	// List returns the names of all files, sorted.
	List() ([]string, error)
	Remove(name string) error
	// SyncDir makes names made and removed before it durable.
	SyncDir() error
	// Lock holds the directory for one owner until it is closed or the
	// process ends; a second owner gets Conflict.
	Lock() (io.Closer, error)
}

// File is an open file. Its methods may be called concurrently.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	// Sync makes the content durable. After an error nothing is known about
	// what was written since the last success.
	Sync() error
	Size() (int64, error)
	// WriteVec writes the parts one after the other from off.
	WriteVec(parts [][]byte, off int64) error
	// WriteDirect is WriteVec, past the page cache if off, the parts and their
	// addresses are multiples of 512 and the file system can.
	WriteDirect(parts [][]byte, off int64) error
	// ReadDirect is ReadAt, past the page cache if off, len(p) and its address
	// are multiples of 4096, the file system can, and not all is there.
	ReadDirect(p []byte, off int64) (int, error)
	// ReadCached is ReadAt if that need not wait for the disk. Else it reports
	// false, and some of p may have changed.
	ReadCached(p []byte, off int64) bool
	// Allocate gives the file its size and space, quickly: what it adds reads
	// as zeros.
	Allocate(size int64) error
	// Writeback begins to write a range to the disk and does not wait. It is
	// a hint and makes nothing durable.
	Writeback(off, n int64)
}

// lockName is the file whose flock is the lock of a directory.
const lockName = "lock"

// Dir is a directory of the operating system.
type Dir struct{ path string }

// OpenDir returns the directory at path, which it makes if it is missing.
func OpenDir(path string) (*Dir, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, errs.Wrap(err, "open log directory")
	}
	if err := syncDir(filepath.Dir(path)); err != nil {
		return nil, errs.Wrap(err, "open log directory")
	}
	return &Dir{path: path}, nil
}

// Open implements [FS].
func (d *Dir) Open(name string, create bool) (File, error) {
	flags := os.O_RDWR
	if create {
		flags |= os.O_CREATE
	}
	f, err := os.OpenFile(filepath.Join(d.path, name), flags, 0o600)
	if err != nil {
		return nil, fileError(err, "open log file", name)
	}
	return &osFile{File: f}, nil
}

// List implements [FS].
func (d *Dir) List() ([]string, error) {
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return nil, errs.Wrap(err, "list log files")
	}
	var names []string
	for _, e := range entries {
		if e.Type().IsRegular() && e.Name() != lockName {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return names, nil
}

// Remove implements [FS].
func (d *Dir) Remove(name string) error {
	return fileError(os.Remove(filepath.Join(d.path, name)), "remove log file", name)
}

// fileError gives the error of an operation on one file its class: NotFound if
// the file is missing.
func fileError(err error, doing, name string) error {
	if errors.Is(err, fs.ErrNotExist) {
		return errs.New(errs.NotFound, "%s: file %s does not exist", doing, name)
	}
	return errs.Wrap(err, "%s", doing)
}

// SyncDir implements [FS].
func (d *Dir) SyncDir() error { return errs.Wrap(syncDir(d.path), "sync log directory") }

func syncDir(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// Lock implements [FS].
func (d *Dir) Lock() (io.Closer, error) {
	path := filepath.Join(d.path, lockName)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, errs.Wrap(err, "lock log directory")
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errs.New(errs.Conflict, "log directory %s is in use by another process", d.path)
		}
		return nil, errs.Wrap(err, "lock log directory")
	}
	// The process that had the lock may have moved the directory away with it.
	mine, err := f.Stat()
	if now, serr := os.Stat(path); err != nil || serr != nil || !os.SameFile(mine, now) {
		f.Close()
		return nil, errs.New(errs.Conflict, "log directory %s was moved when it was locked", d.path).WithHint("try again")
	}
	return f, nil
}

// osFile is a file of the operating system.
type osFile struct {
	*os.File
	direct  atomic.Int32 // descriptor for direct I/O; 0: not tried yet, -1: none
	opening sync.Mutex
}

// Sync flushes data and only what metadata is needed to read it.
func (f *osFile) Sync() error {
	for {
		err := unix.Fdatasync(int(f.Fd()))
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// maxVec is the most parts that the kernel takes at once.
const maxVec = 1024

func (f *osFile) WriteVec(parts [][]byte, off int64) error {
	left := 0
	for _, p := range parts {
		left += len(p)
	}
	for {
		n, err := unix.Pwritev(int(f.Fd()), parts[:min(len(parts), maxVec)], off)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		if left -= n; left == 0 {
			return nil
		}
		if n == 0 {
			return io.ErrShortWrite
		}
		off += int64(n)
		rest := slices.Clone(parts) // the caller keeps its own
		for n >= len(rest[0]) {
			n -= len(rest[0])
			rest = rest[1:]
		}
		rest[0] = rest[0][n:]
		parts = rest
	}
}

func (f *osFile) Allocate(size int64) error {
	for {
		err := unix.Fallocate(int(f.Fd()), 0, 0, size)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EOPNOTSUPP):
			return f.Truncate(size)
		}
		return err
	}
}

func (f *osFile) Writeback(off, n int64) {
	unix.SyncFileRange(int(f.Fd()), off, n, unix.SYNC_FILE_RANGE_WRITE) // Sync reports what fails
}

func (f *osFile) Size() (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}
