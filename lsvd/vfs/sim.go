package vfs

import (
	"bytes"
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

// simFile is a file and what a power loss can make of it.
type simFile struct {
	chunks [][]byte // the content; nil reads as zeros
	size   int64
	synced int64          // the size that survives
	before map[int][]byte // pieces below synced that were written since: what they were
	named  bool           // the name survives a power loss
}

// chunk is the unit in which a file takes memory: log files are mostly zeros.
const chunk = 64 << 10

var zeros [chunk]byte

// read fills p, which lies within the file.
func (f *simFile) read(p []byte, off int64) {
	for len(p) > 0 {
		n := min(len(p), int(chunk-off%chunk))
		if c := f.chunks[off/chunk]; c != nil {
			copy(p[:n], c[off%chunk:])
		} else {
			clear(p[:n])
		}
		p, off = p[n:], off+int64(n)
	}
}

// write changes the content, and the size if it has to.
func (f *simFile) write(p []byte, off int64) {
	f.resize(max(f.size, off+int64(len(p))))
	for len(p) > 0 {
		n := min(len(p), int(chunk-off%chunk))
		c := &f.chunks[off/chunk]
		if *c == nil && !bytes.Equal(p[:n], zeros[:n]) {
			*c = make([]byte, chunk)
		}
		if *c != nil {
			copy((*c)[off%chunk:], p[:n])
		}
		p, off = p[n:], off+int64(n)
	}
}

func (f *simFile) resize(size int64) {
	f.size = size
	for int64(len(f.chunks))*chunk < size {
		f.chunks = append(f.chunks, nil)
	}
}

// save keeps what n bytes from off are, for they will be written.
func (f *simFile) save(off, n int64) {
	for i := off / piece; i*piece < min(off+n, f.synced); i++ {
		if f.before[int(i)] == nil {
			b := make([]byte, min(piece, f.synced-i*piece))
			f.read(b, i*piece)
			f.before[int(i)] = b
		}
	}
}

// sync makes the content what survives.
func (f *simFile) sync() {
	f.synced = f.size
	clear(f.before)
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
		pieces := make([]int, 0, len(f.before))
		for p := range f.before {
			pieces = append(pieces, p)
		}
		slices.Sort(pieces)
		for p := f.synced / piece; p*piece < f.size; p++ {
			if f.before[int(p)] == nil {
				pieces = append(pieces, int(p))
			}
		}
		for _, p := range pieces {
			lo := int64(p) * piece
			n := min(piece, f.size-lo)
			was := make([]byte, n) // zeros where the file was shorter
			copy(was, f.before[p])
			if f.before[p] == nil && lo < f.synced { // the end of what was synced
				f.read(was[:f.synced-lo], lo)
			}
			switch {
			case survives():
			case rng.IntN(4) == 0:
				cut := rng.Int64N(n + 1)
				f.write(was[cut:], lo+cut)
			default:
				f.write(was, lo)
			}
		}
		f.sync()
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

// Flip inverts one bit of a file, in what survives too, and reports whether
// it exists.
func (s *Sim) Flip(name string, bit int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.files[name]
	off := bit / 8
	if f == nil || off >= f.size {
		return false
	}
	b := make([]byte, 1)
	f.read(b, off)
	b[0] ^= 1 << (bit % 8)
	f.write(b, off)
	if was := f.before[int(off/piece)]; off%piece < int64(len(was)) {
		was[off%piece] ^= 1 << (bit % 8)
	}
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
		f = &simFile{before: map[int][]byte{}}
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

func sorted(m map[string]*simFile) []string {
	names := make([]string, 0, len(m))
	for n := range m {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}
