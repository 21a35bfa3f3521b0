// Package vfstest records what a program does to files, as the kernel's
// dm-log-writes does for blocks, and replays it up to any point: into a
// simulated file system that then loses power in each of the ways that it may.
package vfstest

import (
	"bytes"
	"fmt"
	"hash"
	"hash/crc32"
	"hash/fnv"
	"path"
	"runtime"
	"slices"
	"strings"
	"sync"

	"miren.dev/runtime/lsvd/vfs"
	"miren.dev/runtime/lsvd/vfs/vfssim"
)

// Kind is a kind of operation.
type Kind string

// The kinds of operations.
const (
	Create   Kind = "create"
	Write    Kind = "write"
	Allocate Kind = "allocate"
	Sync     Kind = "sync"
	Remove   Kind = "remove"
	Link     Kind = "link"
	Rename   Kind = "rename"
	Mkdir    Kind = "mkdir"
	SyncDir  Kind = "syncdir"
	Mark     Kind = "mark" // the program has got so far
)

// Op is one operation.
type Op struct {
	Kind Kind
	Path string
	To   string // of Link and Rename
	Off  int64  // of Write; the size of Allocate
	Data []byte
	Site string // of a sync: the function that asks for it, with its package
	Mark any
}

// Apply does the operation to files. A mark changes nothing.
func (o *Op) Apply(s *vfssim.Sim) error {
	switch o.Kind {
	case Remove:
		return s.Remove(o.Path)
	case Link:
		return s.Link(o.Path, o.To)
	case Rename:
		return s.Rename(o.Path, o.To)
	case Mkdir:
		return s.Mkdir(o.Path)
	case SyncDir:
		return s.SyncDirAt(o.Path)
	case Mark:
		return nil
	}
	f, err := s.Open(o.Path, o.Kind == Create)
	if err != nil {
		return err
	}
	switch o.Kind {
	case Write:
		_, err = f.WriteAt(o.Data, o.Off)
	case Allocate:
		err = f.Allocate(o.Off)
	case Sync:
		err = f.Sync()
	}
	return err
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Recording has the operations in their order. Operations that overlap in time are
// done one after the other.
type Recording struct {
	mu  sync.Mutex
	ops []Op

	// Forget, if set, has operations done, and not kept: for long runs of which
	// only the digest counts.
	Forget bool
	digest hash.Hash64
}

// Do does an operation and records it if it succeeds.
func (r *Recording) Do(o Op, do func() error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := do(); err != nil {
		return err
	}
	r.add(o)
	return nil
}

// Mark records how far the program has got.
func (r *Recording) Mark(v any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.add(Op{Kind: Mark, Mark: v})
}

// add records an operation. The caller holds mu.
func (r *Recording) add(o Op) {
	if r.digest == nil {
		r.digest = fnv.New64a()
	}
	fmt.Fprintln(r.digest, o.Kind, o.Path, o.To, o.Off, o.Site, o.Mark, len(o.Data), crc32.Checksum(o.Data, castagnoli))
	if !r.Forget {
		o.Data = bytes.Clone(o.Data)
		r.ops = append(r.ops, o)
	}
}

// Ops returns the recorded operations.
func (r *Recording) Ops() []Op {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ops[:len(r.ops):len(r.ops)]
}

// Digest is equal for equal recordings.
func (r *Recording) Digest() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.digest == nil {
		return ""
	}
	return fmt.Sprintf("%016x", r.digest.Sum64())
}

// passing are functions that pass on what others ask for.
var passing = []string{".change", ".syncDir"}

// Site names the function of lsvd that called into a file system, as
// wal.(*Log).syncFiles, skipping packages of file systems, tests, and
// functions that pass on what others ask for.
func Site() string {
	pcs := make([]uintptr, 32)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs)])
	for {
		f, more := frames.Next()
		name := f.Function[strings.LastIndexByte(f.Function, '/')+1:]
		if strings.Contains(f.Function, "/lsvd") && !strings.Contains(f.Function, "/vfs") && !strings.HasSuffix(f.File, "_test.go") && !slices.ContainsFunc(passing, func(p string) bool { return strings.HasSuffix(name, p) }) {
			return strings.SplitN(name, ".func", 2)[0]
		}
		if !more {
			return "?"
		}
	}
}

// FS returns fs, recorded by r as the directory dir, which may be "". A nil r
// records nothing. Syncs of sites for which drop, if it is set, says so are left out.
func FS(fs vfs.FS, r *Recording, dir string, drop func(kind Kind, site string) bool) vfs.FS {
	return &recordedFS{fs, r, dir, drop}
}

type recordedFS struct {
	vfs.FS
	r    *Recording
	dir  string
	drop func(Kind, string) bool
}

func (s *recordedFS) do(o Op, do func() error) error {
	if o.Kind == Sync || o.Kind == SyncDir {
		o.Site = Site()
		if s.drop != nil && s.drop(o.Kind, o.Site) {
			return nil
		}
	}
	if s.r == nil {
		return do()
	}
	return s.r.Do(o, do)
}

func (s *recordedFS) Open(name string, create bool) (vfs.File, error) {
	var f vfs.File
	err := error(nil)
	p := path.Join(s.dir, name)
	if create {
		err = s.do(Op{Kind: Create, Path: p}, func() error { f, err = s.FS.Open(name, true); return err })
	} else {
		f, err = s.FS.Open(name, false)
	}
	if err != nil {
		return nil, err
	}
	return &recordedFile{f, s, p}, nil
}

func (s *recordedFS) Remove(name string) error {
	return s.do(Op{Kind: Remove, Path: path.Join(s.dir, name)}, func() error { return s.FS.Remove(name) })
}

func (s *recordedFS) SyncDir() error {
	return s.do(Op{Kind: SyncDir, Path: s.dir}, s.FS.SyncDir)
}

type recordedFile struct {
	vfs.File
	s    *recordedFS
	path string
}

func (f *recordedFile) WriteAt(p []byte, off int64) (n int, err error) {
	err = f.s.do(Op{Kind: Write, Path: f.path, Off: off, Data: p}, func() error { n, err = f.File.WriteAt(p, off); return err })
	return n, err
}

func (f *recordedFile) WriteVec(parts [][]byte, off int64) error {
	return f.s.do(Op{Kind: Write, Path: f.path, Off: off, Data: bytes.Join(parts, nil)}, func() error { return f.File.WriteVec(parts, off) })
}

func (f *recordedFile) WriteDirect(parts [][]byte, off int64) error {
	return f.s.do(Op{Kind: Write, Path: f.path, Off: off, Data: bytes.Join(parts, nil)}, func() error { return f.File.WriteDirect(parts, off) })
}

func (f *recordedFile) Allocate(size int64) error {
	return f.s.do(Op{Kind: Allocate, Path: f.path, Off: size}, func() error { return f.File.Allocate(size) })
}

func (f *recordedFile) Sync() error {
	return f.s.do(Op{Kind: Sync, Path: f.path}, f.File.Sync)
}
