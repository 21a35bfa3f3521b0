package lsvd_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/lsvd/store/s3/s3test"
	"miren.dev/runtime/lsvd/vfs"
	"miren.dev/runtime/testsupport/wait"
)

// stored is what all objects in a store take.
func stored(t *testing.T, st store.Store) int64 {
	t.Helper()
	sum := int64(0)
	for i, err := range st.List(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		sum += i.Size
	}
	return sum
}

// volume is an open disk with a log of its own and a model.
type volume struct {
	id    lsvd.ID
	d     *lsvd.Device
	model []byte
}

func (r *fixture) volume(id lsvd.ID, model []byte) *volume {
	r.t.Helper()
	logs, err := vfs.OpenDir(filepath.Join(r.t.TempDir(), "log"))
	if err != nil {
		r.t.Fatal(err)
	}
	d, _, err := lsvd.Open(r.t.Context(), r.st, logs, id, r.opts)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { d.Close(context.Background()) })
	return &volume{id: id, d: d, model: model}
}

// write puts n random blocks at random places, singly or in runs.
func (v *volume) write(t *testing.T, rng *rand.Rand, n int) {
	t.Helper()
	for n > 0 {
		k := min(1+rng.IntN(8), n)
		at := rng.IntN(len(v.model)/lsvd.BlockSize-k+1) * lsvd.BlockSize
		p := v.model[at : at+k*lsvd.BlockSize]
		for i := 0; i < len(p); i += 8 {
			binary.LittleEndian.PutUint64(p[i:], rng.Uint64())
		}
		if err := v.d.WriteAt(t.Context(), p, int64(at), 0); err != nil {
			t.Fatal(err)
		}
		n -= k
	}
}

func (v *volume) check(t *testing.T) {
	t.Helper()
	got := make([]byte, len(v.model))
	if err := v.d.ReadAt(t.Context(), got, 0); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, v.model) {
		t.Fatalf("volume %s differs from its model", v.id)
	}
}

// distinct is the size of the blocks of all models, each counted once.
func distinct(vs []*volume) int64 {
	seen := map[uint64]bool{}
	zero := make([]byte, lsvd.BlockSize)
	for _, v := range vs {
		for at := 0; at < len(v.model); at += lsvd.BlockSize {
			b := v.model[at : at+lsvd.BlockSize]
			if !bytes.Equal(b, zero) {
				h := fnv.New64a()
				h.Write(b)
				seen[h.Sum64()] = true
			}
		}
	}
	return int64(len(seen)) * lsvd.BlockSize
}

// TestSnapshots is experiment 9: a snapshot is taken during writes, cloned
// many times, the clones diverge and are deleted in random order with the
// origin and the snapshot between them. What is left matches its models. After
// compaction the store has at most 1.05 times the live blocks of the volumes,
// those that several share counted once, and so it has when only one is left.
// LSVD_CLONES=100 is the long form.
func TestSnapshots(t *testing.T) {
	t.Run("directory", func(t *testing.T) {
		t.Parallel()
		snapshots(t, newFixture(t, lsvd.BlockSize), lsvd.Setting(t, "LSVD_CLONES", 20))
	})
	t.Run("minio", func(t *testing.T) {
		t.Parallel()
		r := newFixture(t, lsvd.BlockSize)
		r.st = s3test.Start(t, "minio").Open(t, "")
		snapshots(t, r, lsvd.Setting(t, "LSVD_CLONES", 12)/3)
	})
}

func snapshots(t *testing.T, r *fixture, clones int) {
	const blocks = 4096 // 16 MiB
	ctx := t.Context()
	rng := rand.New(rand.NewPCG(9, uint64(clones)))
	r.opts.CutBytes, r.opts.CutAge = 1<<20, time.Second
	r.id = lsvd.NewID()
	if err := lsvd.Create(ctx, r.st, r.id, blocks*lsvd.BlockSize, nil); err != nil {
		t.Fatal(err)
	}
	origin := r.volume(r.id, make([]byte, blocks*lsvd.BlockSize))
	origin.write(t, rng, 2*blocks)

	// Stamps in order, from one writer, while the snapshot is taken: it has a
	// prefix of them, with all that were acknowledged before it began.
	stop, ended := make(chan struct{}), make(chan error, 1)
	begun := make(chan struct{}) // closed after some writes
	models := [][]byte{bytes.Clone(origin.model)}
	var order []int // block of each stamp
	go func() {
		wrng := rand.New(rand.NewPCG(10, 10))
		for {
			select {
			case <-stop:
				ended <- nil
				return
			default:
			}
			lba := wrng.IntN(blocks)
			p := origin.model[lba*lsvd.BlockSize:][:lsvd.BlockSize]
			for i := 0; i < len(p); i += 8 {
				binary.LittleEndian.PutUint64(p[i:], wrng.Uint64())
			}
			order = append(order, lba)
			if err := origin.d.WriteAt(ctx, p, int64(lba)*lsvd.BlockSize, 0); err != nil {
				ended <- err
				return
			}
			if len(order) == 100 {
				close(begun)
			}
		}
	}()
	select {
	case <-begun:
	case err := <-ended:
		t.Fatal(err)
	}
	err := origin.d.Snapshot(ctx, "s")
	close(stop)
	if werr := <-ended; err != nil || werr != nil {
		t.Fatal(err, werr)
	}
	origin.check(t)

	var all []*volume
	for range clones {
		id := lsvd.NewID()
		if err := lsvd.Clone(ctx, r.st, r.id, "s", id, nil); err != nil {
			t.Fatal(err)
		}
		all = append(all, r.volume(id, nil))
	}
	atClone := stored(t, r.st) // what clones share takes no more as long as several do
	image := make([]byte, blocks*lsvd.BlockSize)
	if err := all[0].d.ReadAt(ctx, image, 0); err != nil {
		t.Fatal(err)
	}
	if !prefixOf(image, models[0], order) {
		t.Fatal("the snapshot is not a prefix of the writes beside it")
	}
	for i, v := range all {
		v.model = bytes.Clone(image)
		v.check(t)
		v.write(t, rng, 100+rng.IntN(blocks/8))
		if i%3 == 0 {
			if err := v.d.Trim(ctx, 0, 1<<20, 0); err != nil {
				t.Fatal(err)
			}
			clear(v.model[:1<<20])
		}
	}
	all = append(all, origin)
	snapshot := true
	drop := func() {
		i := rng.IntN(len(all))
		v := all[i]
		v.check(t)
		if v == origin && snapshot {
			if err := lsvd.DeleteSnapshot(ctx, r.st, r.id, "s"); err != nil {
				t.Fatal(err)
			}
			snapshot = false
		}
		if err := v.d.Close(ctx); err != nil {
			t.Fatal(err)
		}
		if err := lsvd.Delete(ctx, r.st, v.id); err != nil {
			t.Fatal(err)
		}
		all = append(all[:i], all[i+1:]...)
	}
	for len(all) > max(3, clones/5) {
		drop()
		if rng.IntN(4) == 0 {
			if _, _, err := lsvd.Sweep(ctx, r.st); err != nil {
				t.Fatal(err)
			}
		}
	}
	if snapshot {
		if err := lsvd.DeleteSnapshot(ctx, r.st, r.id, "s"); err != nil {
			t.Fatal(err)
		}
		snapshot = false
	}
	check := func(shared int64) {
		t.Helper()
		compact(t, r.st, all)
		for _, v := range all {
			v.check(t)
		}
		have, live := stored(t, r.st), distinct(all)
		t.Logf("%d volumes left: %.3f of their live bytes are stored", len(all), float64(have)/float64(live))
		if float64(have) > 1.05*float64(live+shared) {
			t.Errorf("%d volumes have %d bytes, %d are stored", len(all), live, have)
		}
	}
	check(atClone)
	for len(all) > 1 {
		drop()
	}
	check(0)
	last := all[0]
	if err := last.d.Close(ctx); err != nil {
		t.Fatal(err)
	}
	r.volume(last.id, last.model).check(t)
}

// compact collects garbage until nothing changes any more.
func compact(t *testing.T, st store.Store, vs []*volume) {
	t.Helper()
	for round := 1; ; round++ {
		work := 0
		for _, v := range vs {
			if err := v.d.Drain(t.Context()); err != nil {
				t.Fatal(err)
			}
			n, err := v.d.GC(t.Context(), 1.01)
			if err != nil {
				t.Fatal(err)
			}
			work += n
		}
		n, _, err := lsvd.Sweep(t.Context(), st)
		if err != nil {
			t.Fatal(err)
		}
		if work+n == 0 {
			return
		}
		t.Logf("compaction %d: %d segments emptied, %d objects swept", round, work, n)
		if round == 20 {
			t.Fatal("compaction goes on for ever")
		}
	}
}

// prefixOf reports whether image is start after some of the writes to the
// blocks in order, whose contents TestSnapshots makes of a known source.
func prefixOf(image, start []byte, order []int) bool {
	wrng := rand.New(rand.NewPCG(10, 10))
	now := bytes.Clone(start)
	differ := 0
	for at := 0; at < len(image); at += lsvd.BlockSize {
		if !bytes.Equal(now[at:at+lsvd.BlockSize], image[at:at+lsvd.BlockSize]) {
			differ++
		}
	}
	for _, lba := range order {
		if differ == 0 {
			return true
		}
		wrng.IntN(1 << 12)
		b, want := now[lba*lsvd.BlockSize:][:lsvd.BlockSize], image[lba*lsvd.BlockSize:][:lsvd.BlockSize]
		was := bytes.Equal(b, want)
		for i := 0; i < len(b); i += 8 {
			binary.LittleEndian.PutUint64(b[i:], wrng.Uint64())
		}
		switch is := bytes.Equal(b, want); {
		case was && !is:
			differ++
		case is && !was:
			differ--
		}
	}
	return differ == 0
}

// TestTrimFreesStore is experiment 10: a full disk is trimmed, and the store
// keeps less than 5% of it. LSVD_FILL is in MiB (10240 in the long form).
func TestTrimFreesStore(t *testing.T) {
	size := int64(lsvd.Setting(t, "LSVD_FILL", 256)) << 20
	for _, kind := range []string{"trim", "zero"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			r := newFixture(t, 2*size)
			r.opts = lsvd.Options{CutAge: 100 * time.Millisecond}
			d := r.open()
			ctx := t.Context()
			p := make([]byte, 1<<20)
			noise := rand.NewChaCha8([32]byte{10})
			for off := int64(0); off < size; off += int64(len(p)) {
				noise.Read(p)
				if err := d.WriteAt(ctx, p, off, 0); err != nil {
					t.Fatal(err)
				}
			}
			if err := d.Drain(ctx); err != nil {
				t.Fatal(err)
			}
			full := stored(t, r.st)
			if full < size {
				t.Fatalf("%d bytes are stored of %d", full, size)
			}
			clearDisk := d.Trim
			if kind == "zero" {
				clearDisk = d.Zero
			}
			// As a file system that was emptied does: all but little.
			if err := clearDisk(ctx, 1<<20, 2*size-1<<20, 0); err != nil {
				t.Fatal(err)
			}
			// Nothing but time: what is due happens in the background.
			wait.For(t, fmt.Sprintf("store with less than 5%% of %d bytes", full), func() bool { return stored(t, r.st) < full/20 })
			if err := d.Close(ctx); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestClearHugeDisk is what mkfs does to 1 TiB first: discard all of it, zero
// it, and zero pieces everywhere, in at most a second, the best of three.
func TestClearHugeDisk(t *testing.T) {
	const size = 1 << 40
	d := newFixture(t, size).open()
	ctx := t.Context()
	best := time.Hour
	for range 3 {
		start := time.Now()
		err := d.Trim(ctx, 0, size, 0)
		if err == nil {
			err = d.Zero(ctx, 0, size, 0)
		}
		for off := int64(0); off < size && err == nil; off += size / 512 {
			err = d.Zero(ctx, off, 2<<20, 0)
		}
		if err == nil {
			err = d.Flush(ctx)
		}
		if err != nil {
			t.Fatal(err)
		}
		best = min(best, time.Since(start))
	}
	t.Logf("took %v", best)
	if best > time.Second {
		t.Errorf("took %v", best)
	}
}
