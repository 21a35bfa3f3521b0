package aio

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// aligned is memory that can be read to.
func aligned(n int) []byte {
	b := make([]byte, n+Align)
	skip := -int(uintptr(unsafe.Pointer(&b[0]))) & (Align - 1)
	return b[skip:][:n:n]
}

func open(t *testing.T, content []byte) int {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skipf("direct I/O: %v", err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if _, err := Read(fd, aligned(Align), 0); errors.Is(err, errors.ErrUnsupported) {
		t.Skip("the kernel has no asynchronous I/O to give")
	}
	return fd
}

// TestManyReads has more readers than reads are under way at a time.
func TestManyReads(t *testing.T) {
	content := make([]byte, 4<<20)
	rand.NewChaCha8([32]byte{1}).Read(content)
	fd := open(t, content)
	var wg sync.WaitGroup
	for g := range 2 * depth {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(g), 1))
			for range 8 {
				n := (1 + rng.IntN(16)) * Align
				off := rng.Int64N(int64(len(content)-n)/Align) * Align
				p := aligned(n)
				if k, err := Read(fd, p, off); err != nil || k != n || !bytes.Equal(p, content[off:][:n]) {
					t.Errorf("%d+%d: %d bytes, %v", off, n, k, err)
				}
			}
		})
	}
	wg.Wait()
}

func TestEndAndErrors(t *testing.T) {
	content := bytes.Repeat([]byte("x"), Align+100)
	fd := open(t, content)
	p := aligned(2 * Align)
	if n, err := Read(fd, p, 0); n != len(content) || err != nil || !bytes.Equal(p[:n], content) {
		t.Errorf("over the end: %d, %v", n, err)
	}
	if n, err := Read(fd, p, 1<<20); n != 0 || err != nil {
		t.Errorf("beyond the end: %d, %v", n, err)
	}
	if _, err := Read(-1, p, 0); err != unix.EBADF {
		t.Errorf("no file: %v", err)
	}
	for range 2 * depth { // places are given back
		if _, err := Read(fd, p[1:], 0); err == nil {
			t.Fatal("memory that is not aligned was taken")
		}
	}
	if n, err := Read(fd, p[:Align], 0); n != Align || err != nil {
		t.Errorf("after errors: %d, %v", n, err)
	}
}

func TestAlignedNeedsAddressOffsetAndLength(t *testing.T) {
	p := aligned(2 * Align)
	for _, c := range []struct {
		p   []byte
		off int64
		ok  bool
	}{{p, 0, true}, {p[Align:], 8 * Align, true}, {p[:100], 0, false}, {p[1 : 1+Align], 0, false}, {p, 512, false}, {nil, 0, false}} {
		if Aligned(c.p, c.off) != c.ok {
			t.Errorf("%d bytes at %p from %d: %v", len(c.p), c.p, c.off, !c.ok)
		}
	}
}

// TestReadsBeyondTheBoundAreLeft makes more reads than may be under way at a time, beside
// others that wait for theirs, and some that fail or find the end: each has what
// there is, or nothing.
func TestReadsBeyondTheBoundAreLeft(t *testing.T) {
	content := make([]byte, 4<<20+100)
	rand.NewChaCha8([32]byte{1}).Read(content)
	fd := open(t, content)
	var wg sync.WaitGroup
	var some atomic.Int32
	for g := range 16 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(g), 2))
			for range 4 {
				var reqs []*Request
				for i := range 100 {
					r := &Request{FD: fd, P: aligned((1 + rng.IntN(4)) * Align), Off: rng.Int64N(4<<20/Align) * Align}
					switch i % 20 {
					case 3:
						r.FD = -1
					case 7:
						r.Off = 1 << 30
					}
					reqs = append(reqs, r)
				}
				ReadAll(reqs)
				for i, r := range reqs {
					want := int(min(int64(len(r.P)), max(int64(len(content))-r.Off, 0)))
					if r.N > 0 && (r.N != want || i%20 == 3 || !bytes.Equal(r.P[:r.N], content[r.Off:][:r.N])) {
						t.Errorf("%d+%d: %d bytes", r.Off, len(r.P), r.N)
					}
					if r.N > 0 {
						some.Add(1)
					}
				}
				p := aligned(Align)
				if n, err := Read(fd, p, 0); n != Align || err != nil || !bytes.Equal(p, content[:Align]) {
					t.Errorf("beside them: %d bytes, %v", n, err)
				}
			}
		})
	}
	wg.Wait()
	if some.Load() < depth {
		t.Errorf("%d reads were made", some.Load())
	}
	if n := processQueue().busy.Load(); n != 0 {
		t.Errorf("%d reads seem to be under way", n)
	}
}
