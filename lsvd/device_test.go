package lsvd_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/lsvd/store/dir"
	"miren.dev/runtime/lsvd/store/storesim"
	"miren.dev/runtime/lsvd/vfs"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/wait"
)

type fixture struct {
	t    *testing.T
	st   store.Store
	fs   vfs.FS
	id   lsvd.ID
	opts lsvd.Options
}

func newFixture(t *testing.T, size int64) *fixture {
	t.Helper()
	st, err := dir.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	fs, err := vfs.OpenDir(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	r := &fixture{t: t, st: st, fs: fs, id: lsvd.NewID(), opts: lsvd.Options{LogFile: 4 << 20, CutBytes: 1 << 20, MaxUnsent: 8 << 20, CutAge: 50 * time.Millisecond, CacheBytes: 2 << 20, Checkpoint: 3}}
	if err := lsvd.Create(t.Context(), st, r.id, size, nil); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *fixture) open() *lsvd.Device {
	r.t.Helper()
	d, _, err := lsvd.Open(r.t.Context(), r.st, r.fs, r.id, r.opts)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { d.Close(context.Background()) })
	return d
}

// TestConcurrentUseMatchesModel writes, reads and clears from many goroutines, with upload,
// checkpoints and GC running, and compares with a model, also after reopening.
func TestConcurrentUseMatchesModel(t *testing.T) {
	const workers, area = 8, 3 << 20
	r := newFixture(t, workers*area)
	d := r.open()
	model := make([]byte, workers*area)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), 5))
			mine, base := model[w*area:(w+1)*area], int64(w*area)
			ctx := t.Context()
			for i := range 60 {
				off := rng.IntN(area)
				n := 1 + rng.IntN(min(area-off, 200_000))
				if rng.IntN(4) > 0 {
					off = off / lsvd.BlockSize * lsvd.BlockSize
					n = min((n+lsvd.BlockSize-1)/lsvd.BlockSize*lsvd.BlockSize, area-off)
				}
				var err error
				switch rng.IntN(8) {
				case 0:
					err = d.Zero(ctx, base+int64(off), int64(n), 0)
					clear(mine[off : off+n])
				case 1:
					err = d.Trim(ctx, base+int64(off), int64(n), 0)
					lo, hi := (off+4095)/4096*4096, (off+n)/4096*4096
					if lo < hi {
						clear(mine[lo:hi])
					}
				case 2, 3:
					got := make([]byte, n)
					err = d.ReadAt(ctx, got, base+int64(off))
					if !bytes.Equal(got, mine[off:off+n]) {
						t.Errorf("worker %d, step %d: read %d+%d differs", w, i, off, n)
						return
					}
					if d.ReadCached(got, base+int64(off)) && !bytes.Equal(got, mine[off:off+n]) {
						t.Errorf("worker %d, step %d: read %d+%d from memory differs", w, i, off, n)
						return
					}
					clear(got)
					if k := min(n, 16<<10); err == nil {
						err = readBatch(d, got[:k], base+int64(off))
						if err == nil && !bytes.Equal(got[:k], mine[off:off+k]) {
							t.Errorf("worker %d, step %d: batch %d+%d differs", w, i, off, k)
							return
						}
					}
				case 4:
					if rng.IntN(2) > 0 {
						d.FlushEarly()
					}
					if w := make(waiter, 1); d.Join(w) {
						err = <-w
						break
					}
					err = d.Flush(ctx)
				default:
					for k := off; k < off+n; k += 7 {
						mine[k] = byte(rng.Uint32())
					}
					w := make(waiter, 1)
					if rng.IntN(2) > 0 && d.Queue(mine[off:off+n], base+int64(off), w) {
						d.Commit()
						err = <-w
						break
					}
					err = d.WriteAt(ctx, mine[off:off+n], base+int64(off), lsvd.Flags(rng.IntN(10)/9))
				}
				if err != nil {
					t.Errorf("worker %d: %v", w, err)
					return
				}
			}
		})
	}
	wg.Wait()
	if err := d.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := d.GC(t.Context(), 1.1); err != nil {
		t.Fatal(err)
	}
	check := func(d *lsvd.Device) {
		t.Helper()
		got := make([]byte, len(model))
		if err := d.ReadAt(t.Context(), got, 0); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, model) {
			t.Fatal("disk differs from its model")
		}
	}
	check(d)
	if s := d.Stats(); float64(s.StoredBlocks) > 1.1*float64(s.LiveBlocks) {
		t.Errorf("after GC %d blocks are stored for %d", s.StoredBlocks, s.LiveBlocks)
	}
	if err := d.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	check(r.open())
}

// waiter has room for what became of a write that was queued.
type waiter chan error

func (w waiter) Done(err error, _ bool) { w <- err }
func (w waiter) BatchDone()             {}

// readBatch reads p from off, and its halves, together.
func readBatch(d *lsvd.Device, p []byte, off int64) error {
	half := len(p) / 2 / lsvd.BlockSize * lsvd.BlockSize
	a, b := make(waiter, 1), make(waiter, 1)
	d.ReadBatch(context.Background(), []lsvd.Read{{P: p[:half], Off: off, Completion: a}, {P: p[half:], Off: off + int64(half), Completion: b}})
	return errors.Join(<-a, <-b)
}

// TestQueuedWritesKeepOrder has queued writes carried out together with others and in order,
// and refuses what cannot be queued.
func TestQueuedWritesKeepOrder(t *testing.T) {
	r := newFixture(t, 4<<20)
	d := r.open()
	ctx := t.Context()
	block := func(b byte) []byte { return bytes.Repeat([]byte{b}, 4096) }
	var ws []waiter
	for i := range 100 {
		w := make(waiter, 1)
		if !d.Queue(block(byte(i+1)), int64(i%50)*4096, w) {
			t.Fatal("not queued")
		}
		ws = append(ws, w)
	}
	select {
	case <-ws[0]:
		t.Fatal("carried out without Commit")
	default:
	}
	if err := d.WriteAt(ctx, block(200), 0, lsvd.FUA); err != nil { // takes them with it
		t.Fatal(err)
	}
	for _, w := range ws {
		if err := <-w; err != nil {
			t.Fatal(err)
		}
	}
	got := make([]byte, 4096)
	for i := range 50 {
		want := byte(i + 51)
		if i == 0 {
			want = 200
		}
		if err := d.ReadAt(ctx, got, int64(i)*4096); err != nil || got[0] != want {
			t.Fatalf("block %d is %d: %v", i, got[0], err)
		}
	}
	w := make(waiter, 1)
	for _, x := range []struct{ off, n int64 }{{512, 4096}, {0, 512}, {0, 2 << 20}, {4 << 20, 4096}, {-4096, 4096}, {0, 0}} {
		if d.Queue(make([]byte, x.n), x.off, w) {
			t.Errorf("%d+%d was queued", x.off, x.n)
		}
	}
	if err := d.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if d.Queue(block(1), 0, w) {
		t.Error("queued after Close")
	}
}

// TestReadCached reads what is in memory, and only that.
func TestReadCached(t *testing.T) {
	d := newFixture(t, 1<<20).open()
	p, got := make([]byte, 8192), make([]byte, 8192)
	for i := range p {
		p[i] = byte(i % 253)
	}
	expect := func(when string, off int64, want bool, content []byte) {
		t.Helper()
		for range 2 { // it brings nothing in
			if is := d.ReadCached(got, off); is != want || is && !bytes.Equal(got, content) {
				t.Errorf("%s: %v, or it differs", when, is)
			}
		}
	}
	expect("never written", 0, true, make([]byte, 8192))
	if err := d.WriteAt(t.Context(), p, 0, 0); err != nil {
		t.Fatal(err)
	}
	expect("in the log", 0, true, p)
	expect("half in the log", 4096, true, append(p[4096:len(p):len(p)], make([]byte, 4096)...))
	if err := d.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	misses := d.Stats().CacheMisses
	expect("in the store", 0, false, nil)
	if n := d.Stats().CacheMisses; n != misses {
		t.Errorf("%d misses counted of what was not read", n-misses)
	}
	for i := 0; !d.ReadCached(got, 0); i++ { // brought in when it pays
		if i == 1000 {
			t.Fatal("what is read all the time does not come into memory")
		}
		if err := d.ReadAt(t.Context(), got, 0); err != nil {
			t.Fatal(err)
		}
	}
	expect("in memory", 0, true, p)
	expect("half in memory", 4096, true, append(p[4096:], make([]byte, 4096)...))
	expect("of part of a block", 100, false, nil)
	expect("beyond the end", 1<<20, false, nil)
}

// TestAnsweredWriteIsReadable reads a block as soon as its write is answered: it has what was
// written, whatever else the disk has still to do for it.
func TestAnsweredWriteIsReadable(t *testing.T) {
	d := newFixture(t, 4<<20).open()
	p, got := make([]byte, 4096), make([]byte, 4096)
	for i := range 2000 {
		off := int64(i%7) * 4096
		for k := range p {
			p[k] = byte(i + k)
		}
		read := make(chan error, 1)
		w := answered(func(err error) {
			go func() {
				if err == nil {
					err = d.ReadAt(context.Background(), got, off)
				}
				read <- err
			}()
		})
		if !d.Queue(p, off, w) {
			t.Fatal("not queued")
		}
		d.Commit()
		if d.FlushLikely() {
			t.Fatal("a flush is due that nobody asks for")
		}
		if err := <-read; err != nil || !bytes.Equal(got, p) {
			t.Fatalf("write %d was answered, and is not there: %v", i, err)
		}
	}
}

// answered is what to do when a write is answered.
type answered func(error)

func (f answered) Done(err error, _ bool) { f(err) }
func (f answered) BatchDone()             {}

// TestWritesContinueDuringOutage keeps acknowledging while the store is away, until the bound.
func TestWritesContinueDuringOutage(t *testing.T) {
	r := newFixture(t, 64<<20)
	var down atomic.Bool
	r.st = &storesim.Fault{Store: r.st, Hook: func(storesim.Op, string) storesim.Action {
		if down.Load() {
			return storesim.Action{Before: storesim.Unreachable()}
		}
		return storesim.Action{}
	}}
	d := r.open()
	down.Store(true)
	buf := make([]byte, 1<<20)
	rand.NewChaCha8([32]byte{2}).Read(buf)
	for i := range int64(8) {
		if err := d.WriteAt(t.Context(), buf, i<<20, 0); err != nil {
			t.Fatal(err)
		}
	}
	if s := d.Stats(); s.UnsentBytes < 8<<20 || s.Lag <= 0 {
		t.Errorf("%+v", s)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := d.WriteAt(ctx, buf, 8<<20, 0); !errs.Is(err, errs.DeadlineExceeded) {
		t.Fatalf("write above the bound: %v", err)
	}
	done := make(chan error)
	go func() { done <- d.WriteAt(t.Context(), buf, 8<<20, 0) }()
	wait.For(t, "attempt to reach the store", func() bool { return d.Stats().StoreFailures > 0 })
	down.Store(false)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if err := d.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 1<<20)
	if err := d.ReadAt(t.Context(), got, 8<<20); err != nil || !bytes.Equal(got, buf) {
		t.Fatalf("read: %v", err)
	}
	if s := d.Stats(); s.UnsentBytes != 0 || s.StoreFailures == 0 {
		t.Errorf("%+v", s)
	}
}

func TestTrimOfHugeDisk(t *testing.T) {
	r := newFixture(t, 1<<40)
	d := r.open()
	start := time.Now()
	if err := d.Trim(t.Context(), 0, 1<<40, 0); err != nil {
		t.Fatal(err)
	}
	if err := d.WriteAt(t.Context(), make([]byte, 4096), 1<<39, 0); err != nil {
		t.Fatal(err)
	}
	if err := d.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("trim of 1 TiB took %v", took)
	}
	holes, data := int64(0), int64(0)
	d.Status(0, 1<<40, func(_, n int64, hole bool) bool {
		if hole {
			holes += n
		} else {
			data += n
		}
		return true
	})
	if data != 4096 || holes != 1<<40-4096 {
		t.Errorf("%d bytes of data, %d of holes", data, holes)
	}
}

func TestOpenRefuses(t *testing.T) {
	r := newFixture(t, 1<<20)
	ctx := t.Context()
	d := r.open()
	if _, _, err := lsvd.Open(ctx, r.st, r.fs, r.id, r.opts); !errs.Is(err, errs.Conflict) {
		t.Errorf("second open of one log: %v", err)
	}
	d.Close(ctx)
	with := r.opts
	with.Key = make([]byte, 32)
	if _, _, err := lsvd.Open(ctx, r.st, r.fs, r.id, with); !errs.Is(err, errs.FailedPrecondition) {
		t.Errorf("open with a key: %v", err)
	}
	if _, _, err := lsvd.Open(ctx, r.st, r.fs, lsvd.NewID(), r.opts); !errs.Is(err, errs.NotFound) {
		t.Errorf("open of nothing: %v", err)
	}
	if err := lsvd.Create(ctx, r.st, r.id, 1<<20, nil); !errs.Is(err, errs.AlreadyExists) {
		t.Errorf("create again: %v", err)
	}
	for _, size := range []int64{0, 4095, 4097, lsvd.MaxSize + 4096} {
		if err := lsvd.Create(ctx, r.st, lsvd.NewID(), size, nil); !errs.Is(err, errs.InvalidArgument) {
			t.Errorf("create of %d bytes: %v", size, err)
		}
	}
	if err := d.WriteAt(ctx, make([]byte, 10), 0, 0); !errs.Is(err, errs.FailedPrecondition) {
		t.Errorf("write to a closed disk: %v", err)
	}
	d = r.open()
	if err := d.WriteAt(ctx, make([]byte, 10), 1<<20-9, 0); !errs.Is(err, errs.InvalidArgument) {
		t.Errorf("write over the end: %v", err)
	}
}

func TestResizeOnlyGrows(t *testing.T) {
	r := newFixture(t, 1<<20)
	ctx := t.Context()
	d := r.open()
	if err := d.Resize(ctx, 1<<19); !errs.Is(err, errs.FailedPrecondition) {
		t.Errorf("shrink: %v", err)
	}
	if err := d.Resize(ctx, 3<<20); err != nil {
		t.Fatal(err)
	}
	data := bytes.Repeat([]byte{7}, 4096)
	if err := d.WriteAt(ctx, data, 3<<20-4096, 0); err != nil {
		t.Fatal(err)
	}
	gone, cancel := context.WithCancel(ctx)
	cancel()
	d.Close(gone) // the write is in the log only
	d = r.open()
	got := make([]byte, 4096)
	if err := d.ReadAt(ctx, got, 3<<20-4096); err != nil || !bytes.Equal(got, data) || d.Size() != 3<<20 {
		t.Fatalf("size %d: %v", d.Size(), err)
	}
	if err := d.ReadAt(ctx, got, 2<<20); err != nil || !bytes.Equal(got, make([]byte, 4096)) {
		t.Fatalf("what was added is not zero: %v", err)
	}
}
