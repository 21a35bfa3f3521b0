package dir_test

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/lsvd/store/dir"
	"miren.dev/runtime/pkg/errs"
)

// TestReadObjects makes reads of data inside and outside of the page cache, into
// memory that is aligned and that is not, of nothing, beyond the end, and of no object.
func TestReadObjects(t *testing.T) {
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
		var good []*store.ObjectRead
		for i := range 40 {
			p := memory[i*4096:][:4096]
			if i%4 == 3 {
				p = p[8 : 8+100*i%3000]
			}
			good = append(good, &store.ObjectRead{Key: "objects/a", P: p, Off: int64(i*24) << 10})
		}
		good = append(good, &store.ObjectRead{Key: "objects/a"}) // of nothing
		beyond := &store.ObjectRead{Key: "objects/a", P: memory[40*4096:][:8192], Off: 1 << 20}
		nothing := &store.ObjectRead{Key: "objects/b", P: memory[42*4096:][:4096]}
		d.ReadObjects(t.Context(), append([]*store.ObjectRead{nothing, beyond}, good...))
		for _, r := range good {
			if r.Err != nil || !bytes.Equal(r.P, content[r.Off:][:len(r.P)]) {
				t.Errorf("%d+%d (in the page cache: %v): %v", r.Off, len(r.P), cached, r.Err)
			}
		}
		if !errs.Is(beyond.Err, errs.InvalidArgument) {
			t.Errorf("beyond the end: %v", beyond.Err)
		}
		if !errs.Is(nothing.Err, errs.NotFound) {
			t.Errorf("no object: %v", nothing.Err)
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
