package vfs_test

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"

	"miren.dev/runtime/lsvd/vfs"
	"miren.dev/runtime/lsvd/vfs/vfssim"
	"miren.dev/runtime/pkg/errs"
)

func TestFS(t *testing.T) {
	dir, err := vfs.OpenDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for name, fs := range map[string]vfs.FS{"dir": dir, "sim": vfssim.New()} {
		t.Run(name, func(t *testing.T) {
			if _, err := fs.Open("a", false); !errs.Is(err, errs.NotFound) {
				t.Fatalf("missing file: %v", err)
			}
			f, err := fs.Open("a", true)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.WriteAt([]byte("hello"), 1000); err != nil {
				t.Fatal(err)
			}
			if err := f.Sync(); err != nil {
				t.Fatal(err)
			}
			got := make([]byte, 5)
			if _, err := f.ReadAt(got, 1000); err != nil || string(got) != "hello" {
				t.Fatalf("%q %v", got, err)
			}
			if n, err := f.Size(); n != 1005 || err != nil {
				t.Fatalf("size %d %v", n, err)
			}
			lock, err := fs.Lock()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := fs.Lock(); !errs.Is(err, errs.Conflict) {
				t.Fatalf("second lock: %v", err)
			}
			lock.Close()
			if lock, err = fs.Lock(); err != nil {
				t.Fatal(err)
			}
			lock.Close()
			if names, err := fs.List(); err != nil || !slices.Equal(names, []string{"a"}) {
				t.Fatalf("%v %v", names, err)
			}
			f.Close()
			if err := fs.Remove("a"); err != nil {
				t.Fatal(err)
			}
			if err := fs.SyncDir(); err != nil {
				t.Fatal(err)
			}
			if names, _ := fs.List(); len(names) != 0 {
				t.Fatal(names)
			}
		})
	}
}

func TestPowerLossKeepsWhatWasSynced(t *testing.T) {
	outcomes := map[byte]int{}
	for seed := range uint64(200) {
		s := vfssim.New()
		f, _ := s.Open("a", true)
		f.WriteAt(bytes.Repeat([]byte{1}, 4096), 0)
		f.Sync()
		s.SyncDir()
		f.WriteAt(bytes.Repeat([]byte{2}, 512), 1024)
		s.PowerLoss(rand.New(rand.NewPCG(seed, 0)))
		if _, err := f.ReadAt(make([]byte, 1), 0); err == nil {
			t.Fatal("a handle outlived its process")
		}
		f, err := s.Open("a", false)
		if err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 4096)
		f.ReadAt(got, 0)
		for i, b := range got {
			if (i < 1024 || i >= 1536) && b != 1 {
				t.Fatalf("seed %d: synced byte %d is %d", seed, i, b)
			}
		}
		outcomes[got[1024]<<4|got[1535]]++
	}
	if outcomes[0x11] == 0 || outcomes[0x22] == 0 || outcomes[0x21] == 0 {
		t.Fatalf("not every outcome was seen: %v", outcomes)
	}
}

// TestWriteDirect writes past the page cache what is aligned and what is not,
// over what is cached, and reads it through the cache and past it.
func TestWriteDirect(t *testing.T) {
	dir, err := vfs.OpenDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for name, fs := range map[string]vfs.FS{"dir": dir, "sim": vfssim.New()} {
		f, err := fs.Open("a", true)
		if err != nil {
			t.Fatal(err)
		}
		want := bytes.Repeat([]byte{9}, 256<<10)
		if _, err := f.WriteAt(want, 0); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 128<<10) // aligned: it is large
		for i := range buf {
			buf[i] = byte(i >> 9)
		}
		for _, off := range []int64{4096, 100, 8192, 512} {
			parts := [][]byte{buf[:512], buf[4096:12288], buf[off : off+1024]}
			if err := f.WriteDirect(parts, off); err != nil {
				t.Fatal(err)
			}
			copy(want[off:], slices.Concat(parts...))
			got := make([]byte, len(want))
			if _, err := f.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
				t.Fatalf("%s, offset %d: read something else: %v", name, off, err)
			}
		}
		buf = make([]byte, 64<<10+1)
		for _, at := range []struct{ off, from, to int }{{0, 0, 64 << 10}, {4096, 4096, 12288}, {4096, 1, 4097}, {100, 0, 4096}, {len(want) - 4096, 0, 8192}} {
			p := buf[at.from:at.to]
			end := min(at.off+len(p), len(want))
			if n, err := f.ReadDirect(p, int64(at.off)); n != end-at.off || (err != nil) != (n < len(p)) || !bytes.Equal(p[:n], want[at.off:end]) {
				t.Fatalf("%s: direct read of %d bytes from %d gave %d, %v, or something else", name, len(p), at.off, n, err)
			}
			all, is := at.off+len(p) <= len(want), false
			for range 100 { // the kernel may have dropped it
				if is = f.ReadCached(p, int64(at.off)); is == all {
					break
				}
				if _, err := f.ReadAt(p, int64(at.off)); err != nil {
					t.Fatal(err)
				}
				clear(p)
			}
			if is != all || is && !bytes.Equal(p, want[at.off:end]) {
				t.Fatalf("%s: read of %d bytes from %d, from memory: %v, or something else", name, len(p), at.off, is)
			}
		}
		if err := f.Sync(); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
