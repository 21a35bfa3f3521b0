package lsvd

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"miren.dev/runtime/lsvd/store/storesim"
	"miren.dev/runtime/lsvd/vfs/vfssim"
)

const writerBlocks = 24

// written is one write of the oracle: times are those of a common counter.
type written struct {
	lba, n     int
	start, end int64 // end: when it was acknowledged; 0: it was not
}

// oracle knows which writes a block may have: those that could be the last.
type oracle struct {
	clock atomic.Int64

	mu     sync.Mutex
	writes map[uint32]*written // by stamp
	next   uint32
}

// stale returns a write of the block that came after the one with the stamp and
// was acknowledged before the time: then the block may not have that stamp.
func (o *oracle) stale(block int, stamp uint32, before int64) *written {
	end := int64(0) // of zeros, which were there first
	if w := o.writes[stamp]; w != nil {
		if end = w.end; end == 0 {
			return nil // never acknowledged: it may be later than any
		}
	}
	for _, w := range o.writes {
		if w.lba <= block && block < w.lba+w.n && w.start > end && w.end != 0 && w.end < before {
			return w
		}
	}
	return nil
}

// check returns what is wrong with blocks that were read, the first of which is
// lba, if the writes acknowledged before the time count.
func (o *oracle) check(p []byte, lba int, before int64) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i := range len(p) / BlockSize {
		b := p[i*BlockSize : (i+1)*BlockSize]
		stamp := binary.LittleEndian.Uint32(b[4:])
		w := o.writes[stamp]
		switch {
		case !bytes.Equal(b, blockOf(lba+i, stamp)):
			return fmt.Errorf("block %d is torn", lba+i)
		case stamp != 0 && (w == nil || lba+i < w.lba || lba+i >= w.lba+w.n):
			return fmt.Errorf("block %d has stamp %d, which was not written there, or lost", lba+i, stamp)
		}
		if later := o.stale(lba+i, stamp, before); later != nil {
			return fmt.Errorf("block %d has stamp %d (%+v), a later write was acknowledged: %+v", lba+i, stamp, w, later)
		}
	}
	return nil
}

// recovered checks the disk after a power loss: it has what was acknowledged
// before the last flush, and before any write that it has; of two writes over the same
// blocks one is the later one everywhere. What is not there counts no more.
func (o *oracle) recovered(p []byte, flushed int64) error {
	last := flushed // what was acknowledged before it must be there
	has := map[uint32]bool{}
	for i := range writerBlocks {
		stamp := binary.LittleEndian.Uint32(p[i*BlockSize+4:])
		if w := o.writes[stamp]; w != nil {
			last, has[stamp] = max(last, w.start), true
		}
	}
	if err := o.check(p, 0, last); err != nil {
		return err
	}
	for a := range writerBlocks {
		for b := range a {
			x, y := binary.LittleEndian.Uint32(p[a*BlockSize+4:]), binary.LittleEndian.Uint32(p[b*BlockSize+4:])
			w, v := o.writes[x], o.writes[y]
			if x != y && w != nil && v != nil && w.lba <= b && a < w.lba+w.n && v.lba <= b && a < v.lba+v.n {
				return fmt.Errorf("block %d has stamp %d and block %d stamp %d, and both wrote both", a, x, b, y)
			}
		}
	}
	now := o.clock.Add(1)
	for stamp, w := range o.writes {
		switch {
		case !has[stamp]:
			delete(o.writes, stamp)
		case w.end == 0:
			w.end = now
		}
	}
	return nil
}

// TestOverlappingWriters writes the same few blocks from many goroutines, reads
// them meanwhile, and loses power in the midst of it. A block has one of the writes
// that could be the last, always.
func TestOverlappingWriters(t *testing.T) {
	t.Parallel()
	first, seeds := Seeds(t, 4)
	for seed := first; seed < first+seeds; seed++ {
		overlappingWriters(t, uint64(seed))
	}
}

func overlappingWriters(t *testing.T, seed uint64) {
	ctx, id, fs, st := t.Context(), NewID(), vfssim.New(), &storesim.Mem{}
	fatal := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("seed %d: %s: %v", seed, what, err)
		}
	}
	fatal("create", Create(ctx, st, id, writerBlocks*BlockSize, nil))
	o := &oracle{writes: map[uint32]*written{}}
	rng := rand.New(rand.NewPCG(seed, 41))
	read := make([]byte, writerBlocks*BlockSize)
	for round := range 5 {
		d, _, err := Open(ctx, st, fs, id, Options{LogFile: 256 << 10, CutBytes: 64 << 10, MaxUnsent: 1 << 20, CutAge: 10 * time.Millisecond, Checkpoint: 2, GCRatio: 1.1,
			ReadTimeout: 50 * time.Millisecond})
		fatal("open", err)
		var flushed, done atomic.Int64
		limit := int64(50 + rng.IntN(400)) // writes until the power is lost
		var wg sync.WaitGroup
		for range 6 {
			rng := rand.New(rand.NewPCG(rng.Uint64(), 42))
			wg.Go(func() {
				for {
					lba := rng.IntN(writerBlocks)
					n := 1 + rng.IntN(min(8, writerBlocks-lba))
					off := int64(lba) * BlockSize
					var err error
					switch rng.IntN(8) {
					case 0:
						start := o.clock.Add(1)
						if err = d.Flush(ctx); err == nil {
							for was := flushed.Load(); was < start && !flushed.CompareAndSwap(was, start); was = flushed.Load() {
							}
						}
					case 1, 2:
						start, p := o.clock.Add(1), make([]byte, n*BlockSize)
						if err = d.ReadAt(ctx, p, off); err == nil {
							if err := o.check(p, lba, start); err != nil {
								t.Errorf("seed %d, round %d: read %d+%d: %v", seed, round, lba, n, err)
								return
							}
						}
					default:
						o.mu.Lock()
						o.next++
						stamp, w := o.next, &written{lba: lba, n: n, start: o.clock.Add(1)}
						o.writes[stamp] = w
						o.mu.Unlock()
						var p []byte
						for i := range n {
							p = append(p, blockOf(lba+i, stamp)...)
						}
						if err = d.WriteAt(ctx, p, off, 0); err == nil {
							o.mu.Lock()
							w.end = o.clock.Add(1)
							o.mu.Unlock()
							if done.Add(1) == limit {
								fs.Crash(picker(rng))
							}
						}
					}
					if err != nil {
						if done.Load() < limit {
							t.Errorf("seed %d, round %d: %v", seed, round, err)
						}
						return
					}
				}
			})
		}
		wg.Wait()
		gone, cancel := context.WithCancel(ctx)
		cancel()
		d.Close(gone)
		d, rec, err := Open(ctx, st, fs, id, Options{LogFile: 256 << 10})
		fatal("open after power loss", err)
		fatal("read", d.ReadAt(ctx, read, 0))
		if err := o.recovered(read, flushed.Load()); err != nil {
			t.Fatalf("seed %d, round %d, recovered %+v: %v", seed, round, rec, err)
		}
		fatal("close", d.Close(ctx))
	}
}

// picker leaves of a power loss what chance says.
func picker(rng *rand.Rand) vfssim.Pick { return losses[len(losses)-1].pick(rng) }
