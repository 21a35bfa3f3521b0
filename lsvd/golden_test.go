package lsvd_test

import (
	"bytes"
	"context"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"miren.dev/runtime/lsvd"
	dirstore "miren.dev/runtime/lsvd/store/dir"
	"miren.dev/runtime/lsvd/store/storesim"
	"miren.dev/runtime/lsvd/vfs"
	"miren.dev/runtime/lsvd/vfs/vfssim"
	"miren.dev/runtime/testsupport/wait"
)

var writeGolden = flag.String("write-golden", "", "write files of this version of the formats, such as v1, to testdata")

var (
	goldenID  = lsvd.ID{0x60, 0x1d}
	goldenKey = bytes.Repeat([]byte{0x60}, 32)
)

// goldenImage is the content that every version's files have.
func goldenImage() map[int64][]byte {
	image := map[int64][]byte{}
	for i := range int64(40) {
		image[i*3] = bytes.Repeat([]byte{byte(i + 1)}, lsvd.BlockSize)
	}
	return image
}

// makeGolden leaves a volume with a snapshot, a boot list, segments of cuts and
// GC, a checkpoint, a chain after it, trims, and writes that are in the log only.
func makeGolden(t *testing.T, dir string) {
	ctx := t.Context()
	local, err := dirstore.Open(filepath.Join(dir, "store"))
	if err != nil {
		t.Fatal(err)
	}
	st := &storesim.Fault{Store: local} // one that is remote: it gets a boot list
	fs, err := vfs.OpenDir(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	if err := lsvd.Create(ctx, st, goldenID, 1<<20, goldenKey); err != nil {
		t.Fatal(err)
	}
	var d *lsvd.Device
	open := func() (err error) {
		d, _, err = lsvd.Open(ctx, st, fs, goldenID, lsvd.Options{Key: goldenKey, LogFile: 64 << 10, CutBytes: 32 << 10, MaxUnsent: 1 << 20})
		return err
	}
	junk := bytes.Repeat([]byte{0xff}, 256<<10)
	steps := []func() error{
		open,
		func() error { return d.WriteAt(ctx, junk, 0, 0) },
		func() error { return d.Close(ctx) },
		open,
		func() error { return d.ReadAt(ctx, junk[:8<<10], 200<<10) },
		func() error { return d.ReadAt(ctx, junk[:64<<10], 4<<10) },
		func() error { return d.Snapshot(ctx, "first") },
		func() error { return d.Trim(ctx, 0, 104<<10, 0) },
		func() error { return d.Drain(ctx) },
		func() error { _, err := d.GC(ctx, 1); return err },
		func() error { return d.Zero(ctx, 104<<10, 1<<20-104<<10, 0) },
	}
	for i := range int64(12) {
		steps = append(steps, func() error { return d.WriteAt(ctx, junk[:lsvd.BlockSize], i*6*lsvd.BlockSize, 0) })
	}
	steps = append(steps, func() error { return d.Drain(ctx) })
	image := goldenImage()
	for i := range int64(40) {
		steps = append(steps, func() error { return d.WriteAt(ctx, image[i*3], i*3*lsvd.BlockSize, 0) })
		if i == 10 {
			steps = append(steps, func() error { return d.Drain(ctx) })
		}
		if i == 30 {
			steps = append(steps, func() error { return d.Flush(ctx) }) // a file of the log is promised
		}
	}
	for _, step := range steps {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	gone, cancel := context.WithCancel(ctx)
	cancel()
	d.Close(gone) // the rest stays in the log
	for _, junk := range []string{"store/.lock", "log/lock"} {
		os.Remove(filepath.Join(dir, junk))
	}
	os.RemoveAll(filepath.Join(dir, "store", ".tmp"))
}

// TestReleasedFormatsOpen opens what every released version of the formats has left: until the first
// release only the current one, v1. From then on, when a format changes, its version rises,
// `-write-golden v2` adds a directory, and the older ones stay.
func TestReleasedFormatsOpen(t *testing.T) {
	if *writeGolden != "" {
		makeGolden(t, filepath.Join("testdata", *writeGolden))
	}
	versions, err := os.ReadDir("testdata")
	if err != nil || len(versions) == 0 {
		t.Fatalf("no golden files: %v", err)
	}
	for _, v := range versions {
		t.Run(v.Name(), func(t *testing.T) {
			dir := t.TempDir()
			if err := os.CopyFS(dir, os.DirFS(filepath.Join("testdata", v.Name()))); err != nil {
				t.Fatal(err)
			}
			st, err := dirstore.Open(filepath.Join(dir, "store"))
			if err != nil {
				t.Fatal(err)
			}
			fs, err := vfs.OpenDir(filepath.Join(dir, "log"))
			if err != nil {
				t.Fatal(err)
			}
			d, rec, err := lsvd.Open(t.Context(), st, fs, goldenID, lsvd.Options{Key: goldenKey, LogFile: 64 << 10})
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close(context.Background())
			if rec.Last == rec.Durable {
				t.Errorf("nothing came from the log: %+v", rec)
			}
			got, image := make([]byte, 1<<20), goldenImage()
			if err := d.ReadAt(t.Context(), got, 0); err != nil {
				t.Fatal(err)
			}
			for off := int64(0); off < 1<<20; off += lsvd.BlockSize {
				want := image[off/lsvd.BlockSize]
				if want == nil {
					want = make([]byte, lsvd.BlockSize)
				}
				if !bytes.Equal(got[off:off+lsvd.BlockSize], want) {
					t.Fatalf("block %d differs", off/lsvd.BlockSize)
				}
			}
			clone := lsvd.NewID()
			if err := lsvd.Clone(t.Context(), st, goldenID, "first", clone, goldenKey); err != nil {
				t.Fatal(err)
			}
			c, _, err := lsvd.Open(t.Context(), st, vfssim.New(), clone, lsvd.Options{Key: goldenKey, LogFile: 64 << 10})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close(context.Background())
			if err := c.ReadAt(t.Context(), got, 0); err != nil || !bytes.Equal(got[:256<<10], bytes.Repeat([]byte{0xff}, 256<<10)) {
				t.Errorf("snapshot differs: %v", err)
			}
			if err := c.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			if c, _, err = lsvd.Open(t.Context(), &storesim.Fault{Store: st}, vfssim.New(), clone, lsvd.Options{Key: goldenKey, LogFile: 64 << 10}); err != nil {
				t.Fatal(err)
			}
			defer c.Close(context.Background())
			wait.For(t, "reading of the boot list", func() bool { return c.Stats().ReadAhead >= 72<<10 })
		})
	}
}
