// Package vfssim is a file system for tests, which loses power as Linux may.
package vfssim

import (
	"bytes"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"

	"miren.dev/runtime/lsvd/vfs"
	"miren.dev/runtime/pkg/errs"
)

// Sim is a simulated file system, and as a [vfs.FS] its root directory. It has the
// semantics of Linux, of which the weakest are taken:
//
//   - A write is visible at once, and durable after a Sync of its file. Until
//     then each piece of 512 bytes survives a power loss, or does not, or is
//     torn, whatever the order of writes. A longer size may be lost.
//   - Sync of a file does not make its name durable. A name made, replaced or
//     removed is so after the sync of its directory. Until then it is after a
//     power loss any of the files that it named since the last one, or none.
//   - A rename is two such names: the old one, the new one, both or none may be
//     there. So a file can be lost that had a durable name.
//   - A file without a name lives for as long as it is open. A power loss may
//     give it its name back.
//   - A Sync that fails returns an error once and drops the dirty pages: reads return
//     them until [Sim.Evict], and later syncs succeed without writing them.
//
// [Sim.PowerLoss], [Sim.Crash] and [Sim.Kill] end the process that had it open.
// It is deterministic: what survives depends on the caller's choices only.
type Sim struct {
	mu     sync.Mutex
	root   *inode
	life   int // handles and locks of earlier lives are dead
	locked bool

	// FailSync, if set, is asked before each Sync of a file.
	FailSync func(name string) error
}

// Kind is a kind of thing that is not durable.
type Kind uint8

// The kinds. Of a name, the alternatives are what it was since the last sync
// of the directory, oldest first; of data, the old, a torn and the new piece; of
// a torn piece, how many of its bytes are new; of a size, the old and the new.
const (
	Name Kind = iota
	Data
	Torn
	Size
)

// Unsynced is a thing that is not durable, of which a power loss leaves one of
// several alternatives.
type Unsynced struct {
	Path  string
	Kind  Kind
	Piece int64 // of data: the number of its 512 bytes in the file
}

// Pick chooses one of n alternatives from 0 on. The first one is the
// durable state, the last one the state when the power was lost.
type Pick func(u Unsynced, n int) int

// New returns an empty simulated file system.
func New() *Sim { return &Sim{root: newDir()} }

// Clone returns a copy of the files, which no process has open.
func (s *Sim) Clone() *Sim {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &Sim{root: s.root.clone(map[*inode]*inode{})}
}

// Kill ends the life of the process: handles and lock are dead, data stays.
func (s *Sim) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.life++
	s.locked = false
}

// PowerLoss is [Sim.Crash] by chance: of what is not durable almost nothing
// survives, or half, or almost all.
func (s *Sim) PowerLoss(rng *rand.Rand) {
	keep := []int{1, 5, 9}[rng.IntN(3)]
	s.Crash(func(u Unsynced, n int) int {
		switch {
		case u.Kind == Torn:
			return rng.IntN(n)
		case rng.IntN(10) < keep:
			return n - 1
		}
		return rng.IntN(n - 1)
	})
}

// Crash is [Sim.Kill] and a power loss, of which pick says what it leaves.
func (s *Sim) Crash(pick Pick) {
	s.Kill()
	s.mu.Lock()
	defer s.mu.Unlock()
	done := map[*inode]bool{}
	var crash func(dir *inode, path string)
	crash = func(dir *inode, path string) {
		for _, name := range slices.Sorted(maps.Keys(dir.names)) {
			e, path := dir.names[name], path+name
			if len(e.was) > 0 {
				all := append(e.was, e.now)
				e.now = all[pick(Unsynced{Path: path, Kind: Name}, len(all))]
			}
			switch f := e.now; {
			case f == nil || done[f]:
			case f.names != nil:
				done[f] = true
				crash(f, path+"/")
			default:
				done[f] = true
				f.crash(path, pick)
			}
		}
		dir.syncNames()
	}
	crash(s.root, "")
}

// Evict drops what failed syncs have left in memory, as a kernel may at any
// time: it reads as if it had not been written.
func (s *Sim) Evict() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.root.each("", func(_ string, f *inode) { f.evict() })
}

// Wipe removes every file, as if the local disk had been replaced.
func (s *Sim) Wipe() {
	s.Kill()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.root = newDir()
}

// Flip inverts one bit of a file, in what survives too, and reports whether
// it exists.
func (s *Sim) Flip(name string, bit int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.root.find(name)
	off := bit / 8
	if f == nil || off >= f.size {
		return false
	}
	b := make([]byte, 1)
	f.read(b, off)
	b[0] ^= 1 << (bit % 8)
	f.write(b, off)
	if was := bytes.Clone(f.before[off/piece]); was != nil { // clones share it
		was[off%piece] ^= 1 << (bit % 8)
		f.before[off/piece] = was
	}
	return true
}

// find returns the file or directory at a path, or nil.
func (d *inode) find(path string) *inode {
	for part := range strings.SplitSeq(path, "/") {
		if d == nil || part == "" {
			return d
		}
		d = d.get(part)
	}
	return d
}

// each calls f for every file, in the order of their names.
func (d *inode) each(path string, f func(path string, file *inode)) {
	for _, name := range slices.Sorted(maps.Keys(d.names)) {
		switch x := d.names[name].now; {
		case x == nil:
		case x.names != nil:
			x.each(path+name+"/", f)
		default:
			f(path+name, x)
		}
	}
}

// parent returns the directory of a path and the name in it.
func (s *Sim) parent(path string) (*inode, string, error) {
	i := strings.LastIndexByte(path, '/')
	dir := s.root.find(path[:max(i, 0)])
	if dir == nil || dir.names == nil {
		return nil, "", missing(path[:max(i, 0)])
	}
	return dir, path[i+1:], nil
}

func missing(path string) error { return errs.New(errs.NotFound, "file %s does not exist", path) }

// Open implements [vfs.FS].
func (s *Sim) Open(name string, create bool) (vfs.File, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	dir, base, err := s.parent(name)
	if err != nil {
		return nil, err
	}
	f := dir.get(base)
	if f == nil {
		if !create {
			return nil, missing(name)
		}
		f = newFile()
		dir.set(base, f)
	}
	return &simHandle{s: s, f: f, name: name, life: s.life}, nil
}

// List implements [vfs.FS].
func (s *Sim) List() ([]string, error) { return s.list(""), nil }

func (s *Sim) list(path string) (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if dir := s.root.find(path); dir != nil {
		for _, name := range slices.Sorted(maps.Keys(dir.names)) {
			if f := dir.get(name); f != nil && f.names == nil {
				names = append(names, name)
			}
		}
	}
	return names
}

// Remove implements [vfs.FS]. It removes empty directories too.
func (s *Sim) Remove(path string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	dir, base, err := s.parent(path)
	if err != nil {
		return err
	}
	switch f := dir.get(base); {
	case f == nil:
		return missing(path)
	case f.names != nil && slices.ContainsFunc(slices.Collect(maps.Values(f.names)), func(e *entry) bool { return e.now != nil }):
		return errs.New(errs.FailedPrecondition, "directory %s is not empty", path)
	}
	dir.set(base, nil)
	return nil
}

// Mkdir makes a directory.
func (s *Sim) Mkdir(path string) error {
	return s.name(path, func() (*inode, error) { return newDir(), nil })
}

// Link gives a file one more name, which is not there.
func (s *Sim) Link(from, to string) error {
	return s.name(to, func() (*inode, error) {
		if f := s.root.find(from); f != nil {
			return f, nil
		}
		return nil, missing(from)
	})
}

// name makes a name, which is not there, for what f returns.
func (s *Sim) name(path string, f func() (*inode, error)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	dir, base, err := s.parent(path)
	if err != nil {
		return err
	}
	if dir.get(base) != nil {
		return errs.New(errs.AlreadyExists, "file %s exists", path)
	}
	x, err := f()
	if err == nil {
		dir.set(base, x)
	}
	return err
}

// Rename gives a file another name, whatever has it.
func (s *Sim) Rename(from, to string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	a, old, err := s.parent(from)
	if err != nil {
		return err
	}
	b, name, err := s.parent(to)
	if err != nil {
		return err
	}
	f := a.get(old)
	if f == nil {
		return missing(from)
	}
	a.set(old, nil)
	b.set(name, f)
	return nil
}

// SyncDir implements [vfs.FS].
func (s *Sim) SyncDir() error { return s.SyncDirAt("") }

// SyncDirAt makes the names in the directory at path durable, "" is the root.
func (s *Sim) SyncDirAt(path string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	dir := s.root.find(path)
	if dir == nil || dir.names == nil {
		return missing(path)
	}
	dir.syncNames()
	return nil
}

// Files returns the contents of the files below a directory, by path from there.
func (s *Sim) Files(path string) map[string][]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[string][]byte{}
	if dir := s.root.find(path); dir != nil {
		dir.each("", func(path string, f *inode) {
			all[path] = make([]byte, f.size)
			f.read(all[path], 0)
		})
	}
	return all
}

// Sub returns the directory at path as a [vfs.FS] with the lock of the whole.
func (s *Sim) Sub(path string) vfs.FS { return simDir{s, path} }

// simDir is a directory below the root.
type simDir struct {
	s    *Sim
	path string
}

func (d simDir) Open(name string, create bool) (vfs.File, error) {
	return d.s.Open(d.path+"/"+name, create)
}
func (d simDir) List() ([]string, error)  { return d.s.list(d.path), nil }
func (d simDir) Remove(name string) error { return d.s.Remove(d.path + "/" + name) }
func (d simDir) SyncDir() error           { return d.s.SyncDirAt(d.path) }
func (d simDir) Lock() (io.Closer, error) { return d.s.Lock() }

// Lock implements [vfs.FS].
func (s *Sim) Lock() (io.Closer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.locked {
		return nil, errs.New(errs.Conflict, "log directory is in use")
	}
	s.locked = true
	return &simLock{s: s, life: s.life}, nil
}

type simLock struct {
	s    *Sim
	life int
}

func (l *simLock) Close() error {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	if l.life == l.s.life {
		l.s.locked = false
	}
	return nil
}

type simHandle struct {
	s    *Sim
	f    *inode
	name string
	life int
}

// enter locks the directory for one operation of a handle that still lives.
func (h *simHandle) enter() error {
	h.s.mu.Lock()
	if h.life != h.s.life {
		h.s.mu.Unlock()
		return errs.New(errs.Unavailable, "file %s: its process has ended", h.name)
	}
	return nil
}

func (h *simHandle) ReadAt(p []byte, off int64) (int, error) {
	if err := h.enter(); err != nil {
		return 0, err
	}
	defer h.s.mu.Unlock()
	n := min(int64(len(p)), max(h.f.size-off, 0))
	h.f.read(p[:n], off)
	if n < int64(len(p)) {
		return int(n), io.EOF
	}
	return int(n), nil
}

func (h *simHandle) WriteAt(p []byte, off int64) (int, error) {
	if err := h.enter(); err != nil {
		return 0, err
	}
	defer h.s.mu.Unlock()
	if len(p) == 0 {
		return 0, nil
	}
	h.f.save(off, int64(len(p)))
	h.f.write(p, off)
	return len(p), nil
}

func (h *simHandle) WriteVec(parts [][]byte, off int64) error {
	for _, p := range parts {
		n, err := h.WriteAt(p, off)
		if err != nil {
			return err
		}
		off += int64(n)
	}
	return nil
}

func (h *simHandle) ReadDirect(p []byte, off int64) (int, error) { return h.ReadAt(p, off) }

func (h *simHandle) ReadCached(p []byte, off int64) bool {
	n, _ := h.ReadAt(p, off)
	return n == len(p)
}

func (h *simHandle) WriteDirect(parts [][]byte, off int64) error {
	return h.WriteVec(parts, off)
}

func (h *simHandle) Allocate(size int64) error {
	if err := h.enter(); err != nil {
		return err
	}
	defer h.s.mu.Unlock()
	h.f.resize(max(h.f.size, size))
	return nil
}

func (h *simHandle) Writeback(int64, int64) {}

func (h *simHandle) Sync() error {
	if err := h.enter(); err != nil {
		return err
	}
	defer h.s.mu.Unlock()
	if h.s.FailSync != nil {
		if err := h.s.FailSync(h.name); err != nil {
			h.f.failSync()
			return err
		}
	}
	h.f.sync()
	return nil
}

func (h *simHandle) Size() (int64, error) {
	if err := h.enter(); err != nil {
		return 0, err
	}
	defer h.s.mu.Unlock()
	return h.f.size, nil
}

func (h *simHandle) Close() error { return nil }
