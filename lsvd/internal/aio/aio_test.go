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

// reads counts reads that were begun.
type reads struct {
	t    *testing.T
	want []byte
	n    int
	err  error
	req  Request
	end  *sync.WaitGroup
}

func (r *reads) Done(n int, err error, _ bool) {
	if n != r.n || err != r.err || !bytes.Equal(r.req.P[:n], r.want) {
		r.t.Errorf("%d+%d: %d bytes, %v", r.req.Off, len(r.req.P), n, err)
	}
}

func (r *reads) BatchDone() { r.end.Done() }

// TestReadsBeyondTheBoundAreMade begins more reads than may be under way at a time, of which some are
// refused, beside others that wait for theirs, and some that fail or find the
// end.
func TestReadsBeyondTheBoundAreMade(t *testing.T) {
	content := make([]byte, 4<<20+100)
	rand.NewChaCha8([32]byte{1}).Read(content)
	fd := open(t, content)
	var begun, wg sync.WaitGroup
	var some atomic.Int32
	for g := range 16 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(g), 2))
			for range 4 {
				var reqs []*Request
				for i := range 100 {
					n := (1 + rng.IntN(4)) * Align
					off := rng.Int64N(4<<20/Align) * Align
					k := int(min(int64(n), int64(len(content))-off))
					r := &reads{t: t, want: content[off:][:k], n: k, end: &begun}
					r.req = Request{FD: fd, P: aligned(n), Off: off, Completion: r}
					switch i % 20 {
					case 3:
						r.req.FD, r.want, r.n, r.err = -1, nil, 0, unix.EBADF
					case 7:
						r.req.Off, r.want, r.n = 1<<30, nil, 0
					}
					reqs = append(reqs, &r.req)
				}
				begun.Add(len(reqs))
				n := Begin(reqs)
				some.Add(int32(n))
				for range reqs[n:] {
					begun.Done()
				}
				p := aligned(Align)
				if n, err := Read(fd, p, 0); n != Align || err != nil || !bytes.Equal(p, content[:Align]) {
					t.Errorf("beside them: %d bytes, %v", n, err)
				}
			}
		})
	}
	wg.Wait()
	begun.Wait()
	if some.Load() < depth {
		t.Errorf("%d reads were begun", some.Load())
	}
	if n := processQueue().busy.Load(); n != 0 {
		t.Errorf("%d reads seem to be under way", n)
	}
}
