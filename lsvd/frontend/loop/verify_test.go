package loop_test

import (
	"context"
	"crypto/sha256"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/fiotest"
	"miren.dev/runtime/lsvd/frontend/loop"
	"miren.dev/runtime/lsvd/store/dir"
	"miren.dev/runtime/lsvd/vfs"
	"miren.dev/runtime/testsupport/attachtest"
)

// TestExperimentVerify is experiment 3 on an attached device: fio verifies what
// it wrote, while GC moves all it can and the cache holds a tenth of the disk,
// and again after the disk was opened with what the store has. Long with
// LSVD_SOAK set to a duration.
func TestExperimentVerify(t *testing.T) {
	attachtest.Need(t, "fio")
	size, load := fiotest.Load(t, "128m")
	name, run := owner(t)
	st, err := dir.Open(filepath.Join(t.TempDir(), "store"))
	if err != nil {
		t.Fatal(err)
	}
	id := lsvd.NewID()
	if err := lsvd.Create(t.Context(), st, id, size, nil); err != nil {
		t.Fatal(err)
	}
	open := func() (*lsvd.Device, *loop.Attachment) {
		t.Helper()
		logs, err := vfs.OpenDir(filepath.Join(t.TempDir(), "log"))
		if err != nil {
			t.Fatal(err)
		}
		dev, _, err := lsvd.Open(t.Context(), st, logs, id, lsvd.Options{Logger: logger(t),
			LogFile: 4 << 20, CutBytes: 2 << 20, MaxUnsent: 8 << 20, CacheBytes: size / 10, Checkpoint: 1, GCRatio: 1.02})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { dev.Close(context.Background()) })
		a, err := loop.Attach(t.Context(), dev, loop.Options{Owner: name, Volume: "v", Dir: run, Logger: logger(t)})
		if err != nil {
			t.Fatal(err)
		}
		return dev, a
	}
	dev, a := open()

	// GC of all there is, again and again.
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	forced := make(chan error, 1)
	go func() {
		for ctx.Err() == nil {
			if _, err := dev.GC(ctx, 1.01); err != nil && ctx.Err() == nil {
				forced <- err
				return
			}
		}
		forced <- nil
	}()
	verify := func(seed string, more ...string) {
		t.Helper()
		if err := fiotest.Device(a.Path(), size).Verify(t.Context(), t, seed, more...); err != nil {
			t.Fatal(err)
		}
	}
	verify("7", load...)
	// GC and publishing take turns, so it has moved as much as the disk holds after some loads.
	seed := 8
	for ; ; seed++ {
		verify(strconv.Itoa(seed)) // everywhere once
		if moved := dev.Stats().Moved; moved >= size {
			break
		} else if seed == 40 {
			t.Fatalf("GC moved %d bytes: the test did not test it", moved)
		}
	}
	stop()
	if err := <-forced; err != nil {
		t.Fatal(err)
	}
	was := digest(t, a.Path())
	if err := a.Detach(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := dev.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	dev, a = open()
	if digest(t, a.Path()) != was {
		t.Error("opened again, without its log, the disk has another content")
	}
	verify(strconv.Itoa(seed), "--verify_only")
	if err := a.Detach(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := dev.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// digest is the sum of all that a device has, read past the page cache.
func digest(t *testing.T, device string) (sum [sha256.Size]byte) {
	t.Helper()
	f, err := os.OpenFile(device, os.O_RDONLY|unix.O_DIRECT, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	p, err := unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(p)
	h := sha256.New()
	for {
		n, err := f.Read(p)
		h.Write(p[:n])
		if err == io.EOF {
			return [sha256.Size]byte(h.Sum(nil))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
