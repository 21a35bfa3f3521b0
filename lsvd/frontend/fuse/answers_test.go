package fuse_test

import (
	"bytes"
	"context"
	"os"
	"sync"
	"testing"

	"miren.dev/runtime/lsvd"
)

// together is a disk that carries out queued writes once there are so many, and
// ends them together.
type together struct {
	memory
	many int
	last bool // more follow the last one too, which are somebody else's

	mu     sync.Mutex
	queued []queuedWrite
}

type queuedWrite struct {
	p   []byte
	off int64
	w   lsvd.Completion
}

func (d *together) Queue(p []byte, off int64, w lsvd.Completion) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.queued = append(d.queued, queuedWrite{p, off, w})
	return true
}

func (d *together) Commit() {
	d.mu.Lock()
	all := d.queued
	if len(all) < d.many {
		d.mu.Unlock()
		return
	}
	d.queued = nil
	d.mu.Unlock()
	for i, q := range all {
		q.w.Done(d.WriteAt(context.Background(), q.p, q.off, 0), d.last || i < len(all)-1)
	}
	for _, q := range all {
		q.w.BatchDone()
	}
}

// TestAnswersInOneCall has writes that end together answered, however many there are
// and whoever's is the last; also beside others that fail.
func TestAnswersInOneCall(t *testing.T) {
	for name, last := range map[string]bool{"ours": false, "with others": true} {
		t.Run(name, func(t *testing.T) {
			c := mount(t)
			disk := &together{memory: memory{b: make([]byte, 1<<20)}, last: last}
			stop := serve(t, c, disk)
			defer stop()
			for _, many := range []int{1, 2, 31, 64, 70, 1} {
				disk.mu.Lock()
				disk.many = many
				disk.mu.Unlock()
				writes := newAIO(t, c, many)
				var blocks [][]byte
				for i := range many {
					b := pages(t, 4096)
					for k := range b {
						b[k] = byte(i + many)
					}
					blocks = append(blocks, b)
					writes.write(b, int64(i)*4096)
				}
				writes.wait(many)
				for i, b := range blocks {
					got := make([]byte, len(b))
					if err := disk.ReadAt(t.Context(), got, int64(i)*4096); err != nil || !bytes.Equal(got, b) {
						t.Fatalf("of %d writes, number %d was not carried out", many, i)
					}
				}
			}
			_ = disk.do(func() { disk.broken = os.ErrInvalid }) // which it returns
			f := open(t, c)
			within(t, "a write that fails", func() error {
				if _, err := f.WriteAt(pages(t, 4096), 0); err == nil {
					t.Error("a write succeeded on a broken disk")
				}
				return nil
			})
		})
	}
}
