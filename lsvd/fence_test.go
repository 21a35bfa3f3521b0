package lsvd_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/store/storesim"
	"miren.dev/runtime/lsvd/vfs/vfssim"
	"miren.dev/runtime/pkg/errs"
)

// fenceEnv is a volume that a process has open, with 1 MiB that it has sent and a
// block after that which only its log has.
type fenceEnv struct {
	*fixture
	d            *lsvd.Device
	sent, unsent []byte
}

func newFenceEnv(t *testing.T, key []byte) *fenceEnv {
	t.Helper()
	e := &fenceEnv{fixture: newFixture(t, 4<<20), sent: bytes.Repeat([]byte{1}, 1<<20), unsent: bytes.Repeat([]byte{2}, lsvd.BlockSize)}
	e.opts.CutAge, e.opts.CutBytes, e.opts.Key = time.Hour, 256<<10, key
	// A clock that stands still: an idle disk would have the manifest name the segments, and the fence find none after it.
	e.opts.Now = func() time.Time { return time.Time{}.Add(time.Minute) }
	if key != nil {
		e.id = lsvd.NewID()
		if err := lsvd.Create(t.Context(), e.st, e.id, 4<<20, key); err != nil {
			t.Fatal(err)
		}
	}
	e.d = e.open()
	for _, err := range []error{e.d.WriteAt(t.Context(), e.sent, 0, 0), e.d.Drain(t.Context()), e.d.WriteAt(t.Context(), e.unsent, int64(len(e.sent)), 0)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return e
}

// holds asserts that a disk has what was sent, and after it what follows.
func (e *fenceEnv) holds(d *lsvd.Device, after []byte) {
	e.t.Helper()
	got := make([]byte, len(e.sent)+len(after))
	if err := d.ReadAt(e.t.Context(), got, 0); err != nil || !bytes.Equal(got, append(bytes.Clone(e.sent), after...)) {
		e.t.Errorf("the disk has another content (%v)", err)
	}
}

// ended asserts that the process cannot write to the store, and ends it.
func (e *fenceEnv) ended() {
	e.t.Helper()
	err := e.d.Drain(e.t.Context())
	if !errs.Is(err, errs.Conflict) {
		e.t.Errorf("the process that was fenced sends: %v", err)
	} else if !strings.Contains(err.Error(), "was fenced") || !strings.Contains(errs.HintOf(err), "here again") {
		e.t.Errorf("it is told something else: %v (%s)", err, errs.HintOf(err))
	}
	if err := e.d.Close(e.t.Context()); !errs.Is(err, errs.Conflict) {
		e.t.Errorf("it closes the volume: %v", err)
	}
}

// TestFence: a fence ends the writer, and loses nothing: the machine with the log
// opens the volume again with every write. Another one gets what was sent. Both
// also after a fence that was killed at each of its operations, before or after the
// store did it, and was repeated.
func TestFence(t *testing.T) {
	killed := errs.New(errs.Internal, "killed")
	for _, key := range [][]byte{nil, bytes.Repeat([]byte{7}, 32)} {
		for at, more := 0, true; more; at++ {
			for _, done := range []bool{false, true} {
				for _, home := range []bool{true, false} {
					e := newFenceEnv(t, key)
					n := 0
					st := &storesim.Fault{Store: e.st, Hook: func(storesim.Op, string) (a storesim.Action) {
						if n++; n == at && done {
							a.After = killed
						} else if at > 0 && n >= at {
							a.Before = killed
						}
						return a
					}}
					f, err := lsvd.Fence(t.Context(), st, e.id, key)
					if more = at == 0 || err != nil; !more {
						continue
					}
					for at > 0 && err != nil {
						f, err = lsvd.Fence(t.Context(), e.st, e.id, key)
					}
					if err != nil || f.Clean || f.Epoch != 1 || f.Segments == 0 {
						t.Fatalf("killed at %d: fence %+v, %v", at, f, err)
					}
					e.ended()
					if home {
						e.holds(e.open(), e.unsent)
						continue
					}
					e.fs, e.opts.AcceptLoss = vfssim.New(), true
					e.holds(e.open(), make([]byte, lsvd.BlockSize))
				}
			}
		}
	}
}

// TestFenceOfAClosedVolume: there is nothing to fence, and the volume opens as before.
func TestFenceOfAClosedVolume(t *testing.T) {
	e := newFenceEnv(t, nil)
	if err := e.d.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if f, err := lsvd.Fence(t.Context(), e.st, e.id, nil); err != nil || !f.Clean {
		t.Errorf("fence %+v, %v", f, err)
	}
	e.fs = vfssim.New()
	e.holds(e.open(), e.unsent)
	if _, err := lsvd.Fence(t.Context(), e.st, lsvd.NewID(), nil); !errs.Is(err, errs.NotFound) {
		t.Errorf("fence of no volume: %v", err)
	}
}

// TestFenceOfABusyWriter fences a volume while it is written to and sent. What was
// acknowledged is there when its machine opens it again.
func TestFenceOfABusyWriter(t *testing.T) {
	for round := range 10 {
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			r := newFixture(t, 1<<20)
			d := r.open()
			var acked uint64
			begun, done := make(chan struct{}), make(chan error)
			go func() {
				block := make([]byte, lsvd.BlockSize)
				for i := uint64(1); ; i++ {
					binary.LittleEndian.PutUint64(block, i)
					err := d.WriteAt(context.Background(), block, 0, 0)
					if err == nil {
						acked = i
						err = d.Drain(context.Background())
					}
					if i == uint64(round)+1 {
						close(begun)
					}
					if err != nil {
						done <- err
						return
					}
				}
			}()
			<-begun
			if _, err := lsvd.Fence(t.Context(), r.st, r.id, nil); err != nil {
				t.Fatal(err)
			}
			if err := <-done; !errs.Is(err, errs.Conflict) {
				t.Errorf("the writer ends with %v", err)
			}
			d.Close(t.Context())
			got := make([]byte, lsvd.BlockSize)
			if err := r.open().ReadAt(t.Context(), got, 0); err != nil || binary.LittleEndian.Uint64(got) < acked {
				t.Errorf("the disk has write %d of %d, %v", binary.LittleEndian.Uint64(got), acked, err)
			}
		})
	}
}
