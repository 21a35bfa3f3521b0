package dir_test

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/lsvd/store/dir"
	"miren.dev/runtime/pkg/errs"
)

// begun is a read of an object that was begun.
type begun struct {
	store.ObjectRead
	err  error
	done int
	end  *sync.WaitGroup
}

func (b *begun) Done(err error, _ bool) { b.err = err; b.done++ }
func (b *begun) BatchDone()             { b.end.Done() }

// TestBeginReads begins reads of what is in the page cache and what is not, of
// memory that is aligned and that is not, beyond the end, and of nothing.
func TestBeginReads(t *testing.T) {
	root := t.TempDir()
	d, err := dir.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	content := make([]byte, 1<<20+100)
	rand.NewChaCha8([32]byte{3}).Read(content)
	if _, err := d.Create(t.Context(), "objects/a", content); err != nil {
		t.Fatal(err)
	}
	memory := make([]byte, 256<<10)
	memory = memory[-int(uintptr(unsafe.Pointer(&memory[0])))&4095:]
	for _, cached := range []bool{true, false} {
		if !cached {
			dropCache(t, filepath.Join(root, "objects/a"))
		}
		var end sync.WaitGroup
		begin := func(key string, p []byte, off int64) *begun {
			b := &begun{end: &end, ObjectRead: store.ObjectRead{Key: key, P: p, Off: off}}
			b.Completion = b
			end.Add(1)
			return b
		}
		var good []*begun
		for i := range 40 {
			p := memory[i*4096:][:4096]
			if i%4 == 3 {
				p = p[8 : 8+100*i%3000]
			}
			good = append(good, begin("objects/a", p, int64(i*24)<<10))
		}
		beyond := begin("objects/a", memory[40*4096:][:8192], 1<<20)
		nothing := begin("objects/b", memory[42*4096:][:4096], 0)
		all := []*store.ObjectRead{&nothing.ObjectRead}
		for _, b := range good {
			all = append(all, &b.ObjectRead)
		}
		d.BeginReads(append(all, &beyond.ObjectRead))
		end.Wait()
		for _, b := range good {
			if b.err != nil || b.done != 1 || !bytes.Equal(b.P, content[b.Off:][:len(b.P)]) {
				t.Errorf("%d+%d (in the page cache: %v): %v, told %d times", b.Off, len(b.P), cached, b.err, b.done)
			}
		}
		if !errs.Is(beyond.err, errs.InvalidArgument) || beyond.done != 1 {
			t.Errorf("beyond the end: %v", beyond.err)
		}
		if !errs.Is(nothing.err, errs.NotFound) || nothing.done != 1 {
			t.Errorf("no object: %v", nothing.err)
		}
	}
}

// dropCache drops a file from the page cache.
func dropCache(t *testing.T, path string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
}

// TestFilesClosed: the files of a store are closed when no variable refers to the store.
func TestFilesClosed(t *testing.T) {
	root := t.TempDir()
	func() {
		d, err := dir.Open(root)
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{"objects/a", "objects/b"} {
			if _, err := d.Create(t.Context(), key, []byte("content")); err != nil {
				t.Fatal(err)
			}
			if err := d.ReadObject(t.Context(), key, make([]byte, 7), 0); err != nil {
				t.Fatal(err)
			}
		}
		if n := openBelow(t, root); n < 2 {
			t.Errorf("%d files are kept open", n)
		}
	}()
	for deadline := time.Now().Add(10 * time.Second); openBelow(t, root) > 0; runtime.GC() {
		if time.Now().After(deadline) {
			t.Fatalf("%d files are still open", openBelow(t, root))
		}
	}
}

// openBelow counts the files below root that this process has open.
func openBelow(t *testing.T, root string) (n int) {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if path, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && strings.HasPrefix(path, root+"/") {
			n++
		}
	}
	return n
}
