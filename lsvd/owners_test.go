package lsvd_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"path/filepath"
	"sync"
	"testing"

	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/store/s3/s3test"
	"miren.dev/runtime/lsvd/vfs"
	"miren.dev/runtime/pkg/errs"
)

// owner is one of several that open the same volume, each with a log of its
// own. It writes stamps (owner, count) round the disk until it is refused.
type owner struct {
	d     *lsvd.Device
	found []byte // the disk when it was opened
	now   []byte // the same with what was written since
	count uint64
	head  uint64        // after so many writes
	ahead chan struct{} // this is closed
	err   error
}

const ownerBlocks = 256

func (o *owner) run(ctx context.Context, r *fixture, logs vfs.FS, who uint64, stop <-chan struct{}) {
	if o.d, _, o.err = lsvd.Open(ctx, r.st, logs, r.id, r.opts); o.err != nil {
		return
	}
	o.found = make([]byte, ownerBlocks*lsvd.BlockSize)
	if o.err = o.d.ReadAt(ctx, o.found, 0); o.err != nil {
		return
	}
	o.now = bytes.Clone(o.found)
	for {
		if o.count == o.head {
			close(o.ahead)
		}
		select {
		case <-stop:
			if o.count >= 2*ownerBlocks {
				return
			}
		default:
		}
		b := stamp(who, o.count+1)
		off := int64((o.count+1)%ownerBlocks) * lsvd.BlockSize
		if o.err = o.d.WriteAt(ctx, b, off, 0); o.err != nil {
			return
		}
		o.count++
		copy(o.now[off:], b)
	}
}

func stamp(who, n uint64) []byte {
	b := make([]byte, lsvd.BlockSize)
	for k := 0; k < len(b); k += 16 {
		binary.LittleEndian.PutUint64(b[k:], who)
		binary.LittleEndian.PutUint64(b[k+8:], n)
	}
	return b
}

// isPrefix reports whether image is what some number of writes of who make.
func isPrefix(image []byte, who uint64) bool {
	last := uint64(0)
	for b := 0; b < len(image); b += lsvd.BlockSize {
		last = max(last, binary.LittleEndian.Uint64(image[b+8:]))
	}
	want := make([]byte, len(image))
	for n := last - min(last, ownerBlocks-1); n <= last; n++ {
		if n > 0 {
			copy(want[n%ownerBlocks*lsvd.BlockSize:], stamp(who, n))
		}
	}
	return bytes.Equal(image, want)
}

// TestTwoOwners lets two open one volume at the same time, with two logs.
// Exactly one of them stays; the other is refused with Conflict, which clients
// see as EIO. In the end the disk, read from the store alone, is what the one
// that stayed found and wrote, and what it found is a prefix of the other's.
func TestTwoOwners(t *testing.T) {
	server := s3test.Start(t, "minio")
	for round := range uint64(4) {
		r, _ := wireRig(t, server, ownerBlocks*lsvd.BlockSize)
		r.opts.AcceptLoss = true // each begins without the log of the other
		// The second comes at once, or when the first has sent some cuts.
		owners := []*owner{{head: 700 * round, ahead: make(chan struct{})}, {head: 1 << 60}}
		stop, lost := make(chan struct{}), make(chan int, len(owners))
		var wg sync.WaitGroup
		for i, o := range owners {
			logs, err := vfs.OpenDir(filepath.Join(t.TempDir(), "log"))
			if err != nil {
				t.Fatal(err)
			}
			wg.Go(func() {
				if i == 1 && round > 0 {
					<-owners[0].ahead
				}
				o.run(t.Context(), r, logs, uint64(i+1), stop)
				if o.err != nil {
					lost <- i
				}
			})
		}
		loser := <-lost
		close(stop)
		wg.Wait()
		l, w := owners[loser], owners[1-loser]
		if !errs.Is(l.err, errs.Conflict) || w.err != nil {
			t.Fatalf("the loser ends with %v, the winner with %v", l.err, w.err)
		}
		if !isPrefix(w.found, uint64(loser+1)) {
			t.Error("the winner found what no number of the loser's writes makes")
		}
		if l.d != nil {
			if err := l.d.ReadAt(t.Context(), make([]byte, 8), 0); !errs.Is(err, errs.Conflict) {
				t.Errorf("the loser reads: %v", err)
			}
			if err := l.d.Close(t.Context()); !errs.Is(err, errs.Conflict) {
				t.Errorf("the loser closes: %v", err)
			}
		}
		if err := w.d.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		logs, err := vfs.OpenDir(filepath.Join(t.TempDir(), "log"))
		if err != nil {
			t.Fatal(err)
		}
		r.fs, r.opts.AcceptLoss = logs, false
		got := make([]byte, len(w.now))
		d := r.open()
		if err := d.ReadAt(t.Context(), got, 0); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, w.now) {
			t.Fatal("the disk is not what its winner saw and wrote")
		}
		t.Logf("owner %d won with %d writes against %d", 2-loser, w.count, l.count)
	}
}
