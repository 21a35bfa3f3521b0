package fuse_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/testsupport/wait"
)

// records is a disk that notes how many writes each Commit carries out, and how
// many reads ReadBatch has.
type records struct {
	memory
	hold chan struct{} // Commit waits for it, unless it is nil

	mu     sync.Mutex
	queued []func()
	most   int
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

// ReadBatch ends the reads of the first half before it returns.
func (d *records) ReadBatch(ctx context.Context, reads []lsvd.Read) {
	d.mu.Lock()
	d.begun = max(d.begun, len(reads))
	d.mu.Unlock()
	for _, r := range reads {
		end := func() {
			r.Completion.Done(d.ReadAt(ctx, r.P, r.Off), false)
			r.Completion.BatchDone()
		}
		if r.Off < d.Size()/2 {
			end()
		} else {
			go end()
		}
	}
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

// atOnce has a worker wait at the disk, with the turn, until f has sent requests: then
// they are there together.
func atOnce(disk *records, writes *aio, block []byte, f func()) {
	disk.mu.Lock() // Queue waits for it
	defer disk.mu.Unlock()
	writes.write(block, disk.Size()-int64(len(block)))
	f()
}

// TestBatchesWrites finds many small writes that came together carried out at once.
func TestBatchesWrites(t *testing.T) {
	c := mount(t)
	disk := &records{memory: memory{b: make([]byte, 1<<20)}}
	defer serve(t, c, disk)()
	const n = 8
	writes, block := newAIO(t, c, n+1), pages(t, 4096)
	for i := range block {
		block[i] = byte(i % 251)
	}
	var offs []int64
	for i := range int64(n) {
		offs = append(offs, i*8192)
	}
	wait.For(t, "all writes at once", func() bool { // fewer if the worker has left the turn before they come
		atOnce(disk, writes, block, func() { writes.write(block, offs...) })
		writes.wait(n + 1)
		disk.mu.Lock()
		defer disk.mu.Unlock()
		return disk.most >= n
	}, wait.Every(time.Millisecond))
	got := make([]byte, len(block))
	for _, off := range offs {
		if err := disk.ReadAt(t.Context(), got, off); err != nil || !bytes.Equal(got, block) {
			t.Errorf("block at %d differs: %v", off, err)
		}
	}
}

// TestBatchedReads sends reads together, with writes and without: of data in memory, of reads
// that the disk queues, and of others. The connection answers each read with the disk's data, or
// with the disk's error.
func TestBatchedReads(t *testing.T) {
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
	begun := func() int {
		disk.mu.Lock()
		defer disk.mu.Unlock()
		return disk.begun
	}
	for round := 0; round < 100 || begun() < 2 && round < 10000; round++ {
		const n = 6
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
	}
	if begun() < 2 {
		t.Errorf("%d reads begun at once", begun())
	}
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

// TestBatchStall finds what came with a write, and what follows it, answered while that
// write stalls.
func TestBatchStall(t *testing.T) {
	c := mount(t)
	disk := &records{memory: memory{b: make([]byte, 1<<20)}, hold: make(chan struct{})}
	defer serve(t, c, disk)()
	f := open(t, c)
	writes, block := newAIO(t, c, 1), pages(t, 4096)
	for range 20 {
		read := make(chan error, 1)
		atOnce(disk, writes, block, func() {
			go func() { _, err := f.ReadAt(make([]byte, 4096), 3<<18); read <- err }()
		})
		within(t, "a read", func() error { return <-read })
		within(t, "a flush", f.Sync)
		disk.hold <- struct{}{}
		writes.wait(1)
	}
}
