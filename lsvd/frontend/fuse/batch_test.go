package fuse_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/frontend/fuse"
	"miren.dev/runtime/testsupport/wait"
)

// records is a disk that notes how many writes each Commit carries out, and how
// many reads BeginReads begins.
type records struct {
	memory
	hold chan struct{} // Commit waits for it, unless it is nil

	mu     sync.Mutex
	queued []func()
	most   int
	reads  []queuedRead
	begun  int // reads at once, at most
}

func (d *records) Queue(p []byte, off int64, w lsvd.Completion) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.queued = append(d.queued, func() {
		w.Done(d.do(func() { copy(d.b[off:], p) }), false)
		w.BatchDone()
	})
	return true
}

// ReadCached has the first half in memory.
func (d *records) ReadCached(p []byte, off int64) bool {
	return off < d.Size()/2 && d.ReadAt(context.Background(), p, off) == nil
}

// QueueRead queues what is in the third quarter.
func (d *records) QueueRead(ctx context.Context, p []byte, off int64, w lsvd.Completion) lsvd.QueueResult {
	if d.ReadCached(p, off) {
		return lsvd.Filled
	}
	if off >= d.Size()/4*3 {
		return lsvd.NotQueued
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.reads = append(d.reads, queuedRead{p, off, w})
	return lsvd.Queued
}

// queuedRead is a read that was queued.
type queuedRead struct {
	p   []byte
	off int64
	w   lsvd.Completion
}

func (d *records) BeginReads() {
	d.mu.Lock()
	reads := d.reads
	d.reads = nil
	d.begun = max(d.begun, len(reads))
	d.mu.Unlock()
	go func() {
		for i, r := range reads {
			r.w.Done(d.ReadAt(context.Background(), r.p, r.off), i+1 < len(reads))
		}
		for _, r := range reads {
			r.w.BatchDone()
		}
	}()
}

func (d *records) Commit() {
	d.mu.Lock()
	batch := d.queued
	d.queued = nil
	d.most = max(d.most, len(batch))
	d.mu.Unlock()
	if d.hold != nil && len(batch) > 0 {
		<-d.hold
	}
	for _, f := range batch {
		f()
	}
}

// expect is for how many further requests the only reader waits, if any.
type expect struct{ n atomic.Int32 }

func (e *expect) ready(fd int) bool {
	if e.n.Load() <= 0 {
		return false
	}
	for !fuse.Pending(fd) {
		runtime.Gosched()
	}
	return e.n.Add(-1) >= 0
}

// single writes until one reader does.
func single(t *testing.T, c *fuse.Conn, writes *aio, block []byte, wrote func()) {
	t.Helper()
	wait.For(t, "a single reader", func() bool {
		if c.Single() {
			return true
		}
		writes.write(block, 0)
		wrote()
		writes.wait(1)
		return false
	}, wait.Every(time.Millisecond))
}

// TestSingleReaderBatchesWrites finds many small writes carried out at once by the only reader.
func TestSingleReaderBatchesWrites(t *testing.T) {
	var more expect
	defer fuse.SetReady(more.ready)()
	c := mount(t)
	disk := &records{memory: memory{b: make([]byte, 1<<20)}}
	defer serve(t, c, disk)()
	const n = 8
	writes, block := newAIO(t, c, n), pages(t, 4096)
	single(t, c, writes, block, func() {})
	for i := range block {
		block[i] = byte(i % 251)
	}
	var offs []int64
	for i := range int64(n) {
		offs = append(offs, i*8192)
	}
	wait.For(t, "all writes at once", func() bool { // fewer if it takes so long that the reader seems to wait in vain
		more.n.Store(n - 1)
		writes.write(block, offs...)
		writes.wait(n)
		disk.mu.Lock()
		defer disk.mu.Unlock()
		return disk.most == n
	}, wait.Every(time.Millisecond))
	got := make([]byte, len(block))
	for _, off := range offs {
		if err := disk.ReadAt(t.Context(), got, off); err != nil || !bytes.Equal(got, block) {
			t.Errorf("block at %d differs: %v", off, err)
		}
	}
}

// TestBatchedReads finds reads gathered by the only reader, of what is in memory,
// what is queued and some that nobody takes, with writes and without, and each
// answered with what is there, or with an error if the disk has none.
func TestBatchedReads(t *testing.T) {
	var more expect
	defer fuse.SetReady(more.ready)()
	c := mount(t)
	disk := &records{memory: memory{b: make([]byte, 1<<20)}}
	for i := range disk.b {
		disk.b[i] = byte(i / 4096)
	}
	defer serve(t, c, disk)()
	f := open(t, c)
	writes, block := newAIO(t, c, 1), pages(t, 4096)
	read := func(i int) error {
		p := make([]byte, 4096)
		if _, err := f.ReadAt(p, int64(i)*4096); err != nil {
			return err
		}
		if !bytes.Equal(p, bytes.Repeat([]byte{byte(i)}, 4096)) {
			return errors.New("differs")
		}
		return nil
	}
	wait.For(t, "a single reader", func() bool {
		if err := read(1); err != nil {
			t.Fatal(err)
		}
		return c.Single()
	}, wait.Every(time.Millisecond))
	for round := range 100 {
		const n = 6
		more.n.Store(n - 1)
		var wg sync.WaitGroup
		for i := range n {
			if i == 3 && round%2 == 1 {
				writes.write(block, 0)
				continue
			}
			wg.Go(func() {
				if err := read(1 + (round*n+i)*7%199); err != nil {
					t.Errorf("read %d of round %d: %v", i, round, err)
				}
			})
		}
		wg.Wait()
		if round%2 == 1 {
			writes.wait(1)
		}
		if more.n.Load() > 0 {
			t.Errorf("round %d: %d requests were not gathered", round, more.n.Load())
		}
	}
	disk.mu.Lock()
	if disk.begun < 2 {
		t.Errorf("%d reads begun at once", disk.begun)
	}
	disk.mu.Unlock()
	_ = disk.do(func() { disk.broken = os.ErrInvalid }) // which it returns
	for _, i := range []int{1, 150, 200} {
		within(t, "a read that fails", func() error {
			if err := read(i); !errors.Is(err, unix.EIO) {
				t.Errorf("a read of block %d of a broken disk: %v", i, err)
			}
			return nil
		})
	}
}

// TestBatchOfInterruptedRequest has the only reader wait for a request that was there and
// is not any more: what it has gathered is carried out, and it can be stopped.
func TestBatchOfInterruptedRequest(t *testing.T) {
	var lies atomic.Bool
	defer fuse.SetReady(func(int) bool { return lies.Load() })()
	c := mount(t)
	disk := &records{memory: memory{b: make([]byte, 1<<20)}}
	stop := serve(t, c, disk)
	writes, block := newAIO(t, c, 1), pages(t, 4096)
	single(t, c, writes, block, func() {})
	lies.Store(true)
	f := open(t, c)
	for range 20 {
		within(t, "a write", func() error {
			writes.write(block, 4096)
			writes.wait(1)
			return nil
		})
		within(t, "a read from memory", func() error { _, err := f.ReadAt(make([]byte, 4096), 4096); return err })
	}
	stop()
}

// TestBatchStall finds what follows a write answered while that write stalls.
func TestBatchStall(t *testing.T) {
	var more expect
	defer fuse.SetReady(more.ready)()
	c := mount(t)
	disk := &records{memory: memory{b: make([]byte, 1<<20)}, hold: make(chan struct{})}
	defer serve(t, c, disk)()
	f := open(t, c)
	writes, block := newAIO(t, c, 1), pages(t, 4096)
	for range 20 {
		single(t, c, writes, block, func() { disk.hold <- struct{}{} })
		more.n.Store(1)
		writes.write(block, 0)
		within(t, "a read", func() error { _, err := f.ReadAt(make([]byte, 4096), 3<<18); return err })
		if more.n.Load() > 0 {
			t.Error("the read was not gathered")
		}
		within(t, "a flush", f.Sync)
		disk.hold <- struct{}{}
		writes.wait(1)
	}
}
