package lsvd_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"miren.dev/runtime/lsvd"
	dirstore "miren.dev/runtime/lsvd/store/dir"
)

// TestGCMovesScatteredBlocks has GC move blocks that lie scattered over segments: it reads many
// at once, and if one frame cannot be read, moves what the others have.
func TestGCMovesScatteredBlocks(t *testing.T) {
	const size = 8 << 20
	r := newFixture(t, size)
	dir := t.TempDir()
	var err error
	if r.st, err = dirstore.Open(dir); err != nil {
		t.Fatal(err)
	}
	if err := lsvd.Create(t.Context(), r.st, r.id, size, nil); err != nil {
		t.Fatal(err)
	}
	r.opts.GCRatio = 100      // none but the one below
	r.opts.CutAge = time.Hour // segments are cut when they are full, however slow the machine
	d := r.open()
	rng := rand.New(rand.NewPCG(5, 6))
	model := make([]byte, size)
	write := func(every int) {
		for _, b := range rng.Perm(size / lsvd.BlockSize / every) {
			p := model[b*every*lsvd.BlockSize:][:lsvd.BlockSize]
			for i := range p {
				p[i] = byte(rng.Uint32())
			}
			if err := d.WriteAt(t.Context(), p, int64(b*every*lsvd.BlockSize), 0); err != nil {
				t.Fatal(err)
			}
		}
		if err := d.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	check := func() {
		t.Helper()
		got := make([]byte, size)
		if err := d.ReadAt(t.Context(), got, 0); err != nil || !bytes.Equal(got, model) {
			t.Fatalf("the disk differs from its model: %v", err)
		}
	}
	write(1)
	write(2)
	before := d.Stats()
	if n, err := d.GC(t.Context(), 1.05); n == 0 || err != nil {
		t.Fatalf("GC of %d segments: %v", n, err)
	}
	after := d.Stats()
	moved := (after.Moved - before.Moved) / lsvd.BlockSize
	if reads := after.StoreReads - before.StoreReads; moved < 500 || reads > moved/16 {
		t.Errorf("%d blocks were moved with %d reads", moved, reads)
	}
	check()

	write(2)
	var objects []string
	if err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if info, ierr := e.Info(); err == nil && ierr == nil && info.Size() > 256<<10 {
			objects = append(objects, path)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	for _, path := range objects { // one byte of the first frame, until it was collected
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if errors.Is(err, os.ErrNotExist) {
			continue // collected
		} else if err != nil {
			t.Fatal(err)
		}
		var b [1]byte
		if _, err := f.ReadAt(b[:], 100); err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt([]byte{^b[0]}, 100); err != nil {
			t.Fatal(err)
		}
		_, _ = d.GC(t.Context(), 1.05) // may find that damage and pick others
		if _, err := f.WriteAt(b[:], 100); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	check()
}
