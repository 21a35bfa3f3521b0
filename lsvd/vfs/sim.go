package vfs

import (
	"io"
	"math/rand/v2"
	"slices"
	"sync"

	"miren.dev/runtime/pkg/errs"
)

// piece is the unit in which a power loss keeps, drops or tears writes.
const piece = 512

// Sim is a simulated directory. Writes are visible at once and durable after
// Sync; [Sim.PowerLoss] and [Sim.Kill] end the process that had it open.
// It is deterministic: what survives depends on the random source only.
type Sim struct {
	mu     sync.Mutex
	files  map[string]*simFile
	gone   map[string]*simFile // removed, but the removal is not durable
	life   int                 // handles and locks of earlier lives are dead
	locked bool

	// FailSync, if set, is asked before each Sync of a file.
	FailSync func(name string) error
}

type simFile struct {
	durable []byte
	view    []byte
	dirty   map[int]bool // pieces whose view may differ from durable
	named   bool         // the name survives a power loss
}

// NewSim returns an empty simulated directory.
func NewSim() *Sim { return &Sim{files: map[string]*simFile{}, gone: map[string]*simFile{}} }

// Kill ends the life of the process: handles and lock are dead, data stays.
func (s *Sim) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.life++
	s.locked = false
}

// PowerLoss is Kill and the loss of what was not synced: each piece of 512
// bytes written since is kept, dropped, or torn inside, and names made or
// removed since SyncDir may or may not be.
func (s *Sim) PowerLoss(rng *rand.Rand) {
	s.Kill()
	s.mu.Lock()
	defer s.mu.Unlock()
	keep := rng.IntN(3) // of 0: almost nothing survives, 1: half, 2: almost all
	survives := func() bool { return rng.IntN(10) < []int{1, 5, 9}[keep] }
	for _, name := range sorted(s.gone) {
		if _, again := s.files[name]; !again && survives() {
			s.files[name] = s.gone[name]
		}
	}
	clear(s.gone)
	for _, name := range sorted(s.files) {
		f := s.files[name]
		if !f.named && !survives() {
			delete(s.files, name)
			continue
		}
		f.named = true
		pieces := make([]int, 0, len(f.dirty))
		for p := range f.dirty {
			pieces = append(pieces, p)
		}
		slices.Sort(pieces)
		for _, p := range pieces {
			lo, hi := p*piece, min((p+1)*piece, len(f.view))
			f.durable = grow(f.durable, hi)
			switch {
			case survives():
				copy(f.durable[lo:hi], f.view[lo:hi])
			case rng.IntN(4) == 0:
				cut := lo + rng.IntN(hi-lo+1)
				copy(f.durable[lo:cut], f.view[lo:cut])
			}
		}
		f.view = slices.Clone(f.durable)
		clear(f.dirty)
	}
}

// Wipe removes every file, as if the local disk had been replaced.
func (s *Sim) Wipe() {
	s.Kill()
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.files)
	clear(s.gone)
}

// Flip inverts one bit of a file, durably, and reports whether it exists.
func (s *Sim) Flip(name string, bit int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.files[name]
	if f == nil || bit/8 >= int64(len(f.view)) {
		return false
	}
	f.view[bit/8] ^= 1 << (bit % 8)
	f.durable = grow(f.durable, len(f.view))
	f.durable[bit/8] ^= 1 << (bit % 8)
	return true
}

// Open implements [FS].
func (s *Sim) Open(name string, create bool) (File, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.files[name]
	if f == nil {
		if !create {
			return nil, errs.New(errs.NotFound, "file %s does not exist", name)
		}
		f = &simFile{dirty: map[int]bool{}}
		s.files[name] = f
	}
	return &simHandle{s: s, f: f, name: name, life: s.life}, nil
}

// List implements [FS].
func (s *Sim) List() ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return sorted(s.files), nil
}

// Remove implements [FS].
func (s *Sim) Remove(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.files[name]
	if f == nil {
		return errs.New(errs.NotFound, "file %s does not exist", name)
	}
	delete(s.files, name)
	if f.named {
		s.gone[name] = f
	}
	return nil
}

// SyncDir implements [FS].
func (s *Sim) SyncDir() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.gone)
	for _, f := range s.files {
		f.named = true
	}
	return nil
}

// Lock implements [FS].
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
	f    *simFile
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
	if off >= int64(len(h.f.view)) {
		return 0, io.EOF
	}
	n := copy(p, h.f.view[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (h *simHandle) WriteAt(p []byte, off int64) (int, error) {
	if err := h.enter(); err != nil {
		return 0, err
	}
	defer h.s.mu.Unlock()
	if len(p) == 0 {
		return 0, nil
	}
	h.f.view = grow(h.f.view, int(off)+len(p))
	copy(h.f.view[off:], p)
	for i := int(off) / piece; i <= (int(off)+len(p)-1)/piece; i++ {
		h.f.dirty[i] = true
	}
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

func (h *simHandle) Allocate(size int64) error {
	n, err := h.Size()
	if err == nil && n < size {
		_, err = h.WriteAt(make([]byte, size-n), n)
	}
	return err
}

func (h *simHandle) Writeback(int64, int64) {}

func (h *simHandle) Sync() error {
	if err := h.enter(); err != nil {
		return err
	}
	defer h.s.mu.Unlock()
	if h.s.FailSync != nil {
		if err := h.s.FailSync(h.name); err != nil {
			return err
		}
	}
	h.f.durable = grow(h.f.durable, len(h.f.view))
	for p := range h.f.dirty {
		lo, hi := p*piece, min((p+1)*piece, len(h.f.view))
		copy(h.f.durable[lo:hi], h.f.view[lo:hi])
	}
	clear(h.f.dirty)
	return nil
}

func (h *simHandle) Size() (int64, error) {
	if err := h.enter(); err != nil {
		return 0, err
	}
	defer h.s.mu.Unlock()
	return int64(len(h.f.view)), nil
}

func (h *simHandle) Close() error { return nil }

func grow(b []byte, n int) []byte {
	if len(b) >= n {
		return b
	}
	return append(b, make([]byte, n-len(b))...)
}

func sorted(m map[string]*simFile) []string {
	names := make([]string, 0, len(m))
	for n := range m {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}
