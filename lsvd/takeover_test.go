package lsvd_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/lsvd/store/storesim"
	"miren.dev/runtime/lsvd/vfs/vfssim"
	"miren.dev/runtime/pkg/errs"
)

const takeoverDisk = 1 << 20

// takeoverEnv is a volume that a machine had open when it lost the store: the store has
// some writes of it, and its log has all.
type takeoverEnv struct {
	st   *storesim.Mem
	log  *vfssim.Sim // of that machine, after a power loss
	id   lsvd.ID
	opts lsvd.Options
	sent []byte // the disk as the store has it
	all  []byte // as the machine had acknowledged and flushed it
}

func newTakeoverEnv(t *testing.T, seed uint64, key []byte) *takeoverEnv {
	t.Helper()
	ctx, rng := t.Context(), rand.New(rand.NewPCG(seed, 11))
	e := &takeoverEnv{st: &storesim.Mem{}, log: vfssim.New(), id: lsvd.NewID(), all: make([]byte, takeoverDisk)}
	e.opts = lsvd.Options{Key: key, LogFile: 64 << 10, CutBytes: 1 << 20, CutAge: time.Hour, MaxUnsent: 8 << 20, Checkpoint: 2}
	if err := lsvd.Create(ctx, e.st, e.id, takeoverDisk, key); err != nil {
		t.Fatal(err)
	}
	d, _, err := lsvd.Open(ctx, e.st, e.log, e.id, e.opts)
	if err != nil {
		t.Fatal(err)
	}
	for range 1 + rng.IntN(3) {
		writeRandom(t, d, e.all, rng, 10)
		if err := d.Drain(ctx); err != nil {
			t.Fatal(err)
		}
	}
	e.sent = bytes.Clone(e.all)
	for range 2 {
		writeRandom(t, d, e.all, rng, 5+rng.IntN(20))
		if err := d.Flush(ctx); err != nil {
			t.Fatal(err)
		}
	}
	log := e.log.Clone() // as it is when the power fails now
	log.PowerLoss(rng)
	e.log.Kill()
	e.log = log
	ended, end := context.WithCancel(ctx)
	end()
	if err := d.Close(ended); err == nil {
		t.Fatal("a disk that was killed sends its writes")
	}
	return e
}

// writeRandom writes, zeroes and trims ranges of a disk, and of its model.
func writeRandom(t *testing.T, d lsvd.Disk, model []byte, rng *rand.Rand, n int) {
	t.Helper()
	for range n {
		off := rng.IntN(takeoverDisk/lsvd.BlockSize) * lsvd.BlockSize
		part := model[off:min(off+(1+rng.IntN(12))*lsvd.BlockSize, takeoverDisk)]
		var err error
		switch rng.IntN(5) {
		case 0:
			clear(part)
			err = d.Zero(t.Context(), int64(off), int64(len(part)), 0)
		case 1:
			clear(part)
			err = d.Trim(t.Context(), int64(off), int64(len(part)), 0)
		default:
			for i := range part {
				part[i] = byte(rng.Uint32())
			}
			err = d.WriteAt(t.Context(), part, int64(off), 0)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// takeOver opens the volume on a machine without its log.
func (e *takeoverEnv) takeOver(ctx context.Context, st store.Store, log *vfssim.Sim) (*lsvd.Device, lsvd.Recovery, error) {
	opts := e.opts
	opts.AcceptLoss = true
	return lsvd.Open(ctx, st, log, e.id, opts)
}

// takeover returns the snapshot of the takeover, which must be the only one.
func (e *takeoverEnv) takeover(t *testing.T) lsvd.Takeover {
	t.Helper()
	all, err := lsvd.Snapshots(t.Context(), e.st, e.id)
	if err != nil || len(all) != 1 {
		t.Fatalf("snapshots %q, %v, want that of the takeover", all, err)
	}
	to, ok := lsvd.ParseTakeover(all[0])
	if !ok {
		t.Fatalf("snapshot %q is not of a takeover", all[0])
	}
	return to
}

// salvage makes a volume of the log that is stranded.
func (e *takeoverEnv) salvage(ctx context.Context, st store.Store, log *vfssim.Sim, id lsvd.ID, to lsvd.Takeover) (s lsvd.Salvaged, err error) {
	if err := lsvd.Clone(ctx, st, e.id, to.String(), id, e.opts.Key); err != nil {
		return s, err
	}
	d, _, err := lsvd.Open(ctx, st, vfssim.New(), id, e.opts)
	if err != nil {
		return s, err
	}
	if s, err = lsvd.Salvage(ctx, log, e.id, to, d); err != nil {
		ended, end := context.WithCancel(ctx)
		end()
		return s, errors.Join(err, d.Close(ended))
	}
	return s, d.Close(ctx)
}

// holds asserts what a volume, which is closed clean, has.
func (e *takeoverEnv) holds(t *testing.T, what string, id lsvd.ID, want []byte) {
	t.Helper()
	d, _, err := lsvd.Open(t.Context(), e.st, vfssim.New(), id, e.opts)
	if err != nil {
		t.Fatalf("open %s: %v", what, err)
	}
	got := make([]byte, takeoverDisk)
	if err := d.ReadAt(t.Context(), got, 0); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("%s has another content (%v)", what, err)
	}
	if err := d.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// killAt returns a store whose client is killed at its operation at, before or after the
// store has done it.
func killAt(st store.Store, at int, done bool) store.Store {
	killed := errs.New(errs.Internal, "killed")
	var count atomic.Int64
	return &storesim.Fault{Store: st, Hook: func(storesim.Op, string) (a storesim.Action) {
		switch n := int(count.Add(1)); {
		case n == at && done:
			a.After = killed
		case n >= at:
			a.Before = killed
		}
		return a
	}}
}

// TestSalvage: a machine loses the store with acknowledged writes in its log. Another one
// takes its volume over and writes other data. The first machine cannot use its log for
// the volume any more, and salvages the writes into a new volume.
func TestSalvage(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			ctx, rng, key := t.Context(), rand.New(rand.NewPCG(seed, 12)), []byte(nil)
			if seed%3 == 0 {
				key = bytes.Repeat([]byte{5}, 32)
			}
			e := newTakeoverEnv(t, seed, key)
			b, rec, err := e.takeOver(ctx, e.st, vfssim.New())
			if err != nil || !rec.LostLog {
				t.Fatalf("takeover: %+v, %v", rec, err)
			}
			to, live := e.takeover(t), bytes.Clone(e.sent)
			if to.Durable != rec.Durable {
				t.Errorf("takeover at %d has the snapshot %s", rec.Durable, to)
			}
			if err := b.Snapshot(ctx, to.String()); !errs.Is(err, errs.InvalidArgument) {
				t.Errorf("a snapshot with the name of a takeover: %v", err)
			}
			writeRandom(t, b, live, rng, 40)
			if seed%2 == 0 { // the stranded log is refused while the volume is open, and after that
				if err := b.Close(ctx); err != nil {
					t.Fatal(err)
				}
			}
			before := e.log.Files("")
			for _, opts := range []bool{false, true} {
				o := e.opts
				o.AcceptLoss = opts
				if _, rec, err = lsvd.Open(ctx, e.st, e.log, e.id, o); !errs.Is(err, errs.FailedPrecondition) || rec.Stranded == nil || *rec.Stranded != to {
					t.Fatalf("the machine uses the log: %+v, %v", rec, err)
				}
			}
			id := lsvd.NewID()
			s, err := e.salvage(ctx, e.st, e.log, id, to)
			if err != nil || s.Flushed > s.Last || s.Changes == 0 || s.Last != to.Durable+uint64(s.Changes) {
				t.Errorf("salvaged %+v, %v", s, err)
			}
			if seed%2 != 0 {
				if err := b.Close(ctx); err != nil {
					t.Fatal(err)
				}
			}
			if after := e.log.Files(""); !maps.EqualFunc(before, after, bytes.Equal) {
				t.Error("the log has changed")
			}
			e.holds(t, "the salvaged volume", id, e.all)
			e.holds(t, "the live volume", e.id, live)
			if err := lsvd.DeleteSnapshot(ctx, e.st, e.id, to.String()); err != nil {
				t.Fatal(err)
			}
			if _, _, err := lsvd.Sweep(ctx, e.st); err != nil {
				t.Fatal(err)
			}
			e.holds(t, "the salvaged volume without the snapshot", id, e.all)
			if _, err := e.salvage(ctx, e.st, e.log, lsvd.NewID(), to); !errs.Is(err, errs.NotFound) {
				t.Errorf("salvage without the snapshot: %v", err)
			}
		})
	}
}

// TestTakeoverDiesAnywhere kills the takeover at each operation of the store, and
// repeats it: one snapshot has the state that it begins with. If the machine with the
// log comes back first, no write is missing, and its log is not stranded.
func TestTakeoverDiesAnywhere(t *testing.T) {
	for at, more := 1, true; more; at++ {
		for _, done := range []bool{false, true} {
			e := newTakeoverEnv(t, 1, nil)
			log := vfssim.New()
			b, _, err := e.takeOver(t.Context(), killAt(e.st, at, done), log)
			if more = err != nil; !more {
				b.Close(t.Context())
				break
			}
			log.Kill()
			if m := e.log.Clone(); at%2 == 0 {
				all, err := lsvd.Snapshots(t.Context(), e.st, e.id)
				if err != nil {
					t.Fatal(err)
				}
				d, rec, err := lsvd.Open(t.Context(), e.st, m, e.id, e.opts)
				switch {
				case err == nil:
					got := make([]byte, takeoverDisk)
					if err := d.ReadAt(t.Context(), got, 0); err != nil || !bytes.Equal(got, e.all) {
						t.Fatalf("killed at %d: the machine with the log misses writes (%v)", at, err)
					}
					if err := d.Close(t.Context()); err != nil {
						t.Fatal(err)
					}
				case rec.Stranded == nil || !slices.Contains(all, rec.Stranded.String()):
					t.Fatalf("killed at %d, with snapshots %q: the machine with the log gets %+v, %v", at, all, rec, err)
				}
				continue
			}
			if b, _, err = e.takeOver(t.Context(), e.st, log); err != nil {
				t.Fatalf("killed at %d: repeated: %v", at, err)
			}
			if err := b.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			to, id := e.takeover(t), lsvd.NewID()
			e.holds(t, "the live volume", e.id, e.sent)
			if _, err := e.salvage(t.Context(), e.st, e.log, id, to); err != nil {
				t.Fatal(err)
			}
			e.holds(t, "the salvaged volume", id, e.all)
		}
	}
}

// TestSalvageDiesAnywhere kills the salvage at operations of the store. The stranded log
// stays as it is, and a repeated salvage has every write.
func TestSalvageDiesAnywhere(t *testing.T) {
	e := newTakeoverEnv(t, 2, nil)
	b, _, err := e.takeOver(t.Context(), e.st, vfssim.New())
	if err == nil {
		err = b.Close(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	to, ended := e.takeover(t), false
	for at := 1; !ended; at++ {
		_, err := e.salvage(t.Context(), killAt(e.st, at, at%2 == 0), e.log, lsvd.NewID(), to)
		ended = err == nil
	}
	id := lsvd.NewID()
	if _, err := e.salvage(t.Context(), e.st, e.log, id, to); err != nil {
		t.Fatal(err)
	}
	e.holds(t, "the salvaged volume", id, e.all)
	e.holds(t, "the live volume", e.id, e.sent)
}

// TestSalvageOfDamagedLog gives the state before the damage, and says so.
func TestSalvageOfDamagedLog(t *testing.T) {
	e := newTakeoverEnv(t, 3, nil)
	b, _, err := e.takeOver(t.Context(), e.st, vfssim.New())
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close(context.Background())
	to := e.takeover(t)
	whole, err := e.salvage(t.Context(), e.st, e.log, lsvd.NewID(), to)
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range e.log.Files("") { // a byte in each block behind the header
		for off := int64(4096 + 600); off < int64(len(b)); off += 4096 {
			e.log.Flip(name, 8*off)
		}
	}
	id := lsvd.NewID()
	s, err := e.salvage(t.Context(), e.st, e.log, id, to)
	if err != nil || s.Last >= whole.Last || s.Flushed <= s.Last || s.Flushed > whole.Last || s.Changes != int64(s.Last-to.Durable) {
		t.Errorf("of a damaged log %+v, %v; of the whole %+v", s, err, whole)
	}
}

// TestNoSnapshotWithoutLoss: a volume that was closed is opened elsewhere without a snapshot.
func TestNoSnapshotWithoutLoss(t *testing.T) {
	e := newTakeoverEnv(t, 4, nil)
	d, _, err := lsvd.Open(t.Context(), e.st, e.log, e.id, e.opts)
	if err == nil {
		err = d.Close(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	b, _, err := e.takeOver(t.Context(), e.st, vfssim.New())
	if err == nil {
		err = b.Close(t.Context())
	}
	if all, lerr := lsvd.Snapshots(t.Context(), e.st, e.id); err != nil || lerr != nil || len(all) > 0 {
		t.Errorf("snapshots %q, %v, %v", all, err, lerr)
	}
	e.holds(t, "the volume", e.id, e.all)
}

// TestTakeoverFromABusyOwner: the machine that has a volume is alive, and sends segments, with
// or without checkpoints, at each step of another one that takes the volume over. That is no
// damage, and the other machine has every write that the first one was told is in the store.
func TestTakeoverFromABusyOwner(t *testing.T) {
	const most = 7
	for _, checkpoint := range []int{1000, 2} {
		for at, ended := 1, false; !ended; at++ {
			ctx, st, id := t.Context(), &storesim.Mem{}, lsvd.NewID()
			opts := lsvd.Options{LogFile: 64 << 10, CutAge: time.Hour, Checkpoint: checkpoint}
			if err := lsvd.Create(ctx, st, id, takeoverDisk, nil); err != nil {
				t.Fatal(err)
			}
			owner, _, err := lsvd.Open(ctx, st, vfssim.New(), id, opts)
			if err != nil {
				t.Fatal(err)
			}
			sent := 0
			send := func() error {
				err := owner.WriteAt(ctx, bytes.Repeat([]byte{byte(sent + 1)}, lsvd.BlockSize), int64(sent)*lsvd.BlockSize, 0)
				if err == nil {
					err = owner.Drain(ctx)
				}
				if err == nil {
					sent++
				}
				return err
			}
			if err := send(); err != nil {
				t.Fatal(err)
			}
			var mu sync.Mutex
			count, opened := 0, false
			busy := &storesim.Fault{Store: st, Hook: func(storesim.Op, string) (a storesim.Action) {
				mu.Lock()
				defer mu.Unlock()
				if count++; count == at && !opened {
					for sent < most && send() == nil {
					}
				}
				return a
			}}
			taking := opts
			taking.WithoutLog = true
			d, rec, err := lsvd.Open(ctx, busy, vfssim.New(), id, taking)
			if err != nil {
				t.Fatalf("checkpoint %d, at %d: %v (%+v)", checkpoint, at, err, rec)
			}
			mu.Lock()
			ended, opened = count < at, true
			mu.Unlock()
			for i := range sent {
				got := make([]byte, lsvd.BlockSize)
				if err := d.ReadAt(ctx, got, int64(i)*lsvd.BlockSize); err != nil || got[0] != byte(i+1) {
					t.Errorf("checkpoint %d, at %d: write %d of %d is lost: %d, %v", checkpoint, at, i, sent, got[0], err)
				}
			}
			now, end := context.WithCancel(ctx)
			end()
			owner.Close(now)
			if err := d.Close(ctx); err != nil {
				t.Error(err)
			}
		}
	}
}
