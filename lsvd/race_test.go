package lsvd

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"miren.dev/runtime/lsvd/store/storesim"
	"miren.dev/runtime/lsvd/vfs/vfssim"
	"miren.dev/runtime/pkg/errs"
)

// TestTakeOverAtEveryStep lets somebody else open the volume, without its log,
// just before each operation of a disk on its store, one run for each. The
// owner is told so with Conflict and changes nothing any more; the other finds
// a prefix of the owner's writes and keeps it and its own.
func TestTakeOverAtEveryStep(t *testing.T) {
	for seed := range uint64(2) {
		total := takeOver(t, seed, 0)
		for k := 1; k <= total; k++ {
			takeOver(t, seed, k)
		}
	}
}

// takeOver runs one disk and lets another take over before operation k on the
// store. It returns how many operations there were.
func takeOver(t *testing.T, seed uint64, k int) (ops int) {
	const blocks = 32
	ctx := t.Context()
	rng := rand.New(rand.NewPCG(seed, 12))
	opts := Options{manual: true, Random: random{rng}, LogFile: 256 << 10, CutBytes: 16 << 10, MaxUnsent: 1 << 20, CacheBytes: 1 << 20, Checkpoint: 3}
	var id ID
	random{rng}.Read(id[:])
	mem := &storesim.Mem{}
	fatal := func(format string, args ...any) {
		t.Helper()
		t.Fatalf("seed %d, operation %d: "+format, append([]any{seed, k}, args...)...)
	}
	if err := Create(ctx, mem, id, blocks*BlockSize, nil); err != nil {
		fatal("%v", err)
	}
	read := func(d *Device) []byte {
		t.Helper()
		p := make([]byte, blocks*BlockSize)
		if err := d.ReadAt(ctx, p, 0); err != nil {
			fatal("read: %v", err)
		}
		return p
	}
	var other *Device
	var theirs []byte
	history := [][]byte{make([]byte, blocks*BlockSize)}
	race := func() {
		o := opts
		o.AcceptLoss, o.Random = true, random{rand.New(rand.NewPCG(seed, 13))}
		var err error
		if other, _, err = Open(ctx, mem, vfssim.New(), id, o); err != nil {
			fatal("take over: %v", err)
		}
		theirs = read(other)
		prefix := false
		for _, h := range history {
			prefix = prefix || bytes.Equal(theirs, h)
		}
		if !prefix {
			fatal("what was taken over is no prefix of %d writes", len(history)-1)
		}
		b := blockOf(5, 1<<30)
		copy(theirs[5*BlockSize:], b)
		if err := other.WriteAt(ctx, b, 5*BlockSize, FUA); err != nil {
			fatal("write of the other: %v", err)
		}
	}
	st := &storesim.Fault{Store: mem, Hook: func(storesim.Op, string) storesim.Action {
		if ops++; ops == k {
			return storesim.Action{Race: race}
		}
		return storesim.Action{}
	}}
	// refused reports whether err says that the volume was taken over.
	refused := func(what string, err error) bool {
		t.Helper()
		if err != nil && (other == nil || !errs.Is(err, errs.Conflict)) {
			fatal("%s: %v", what, err)
		}
		return err != nil
	}
	d, _, err := Open(ctx, st, vfssim.New(), id, opts)
	switch {
	case err == nil:
		for i := range 24 {
			n := 1 + rng.IntN(4)
			lba := rng.IntN(blocks - n)
			now := bytes.Clone(history[len(history)-1])
			for b := lba; b < lba+n; b++ {
				copy(now[b*BlockSize:], blockOf(b, uint32(len(history))))
			}
			history = append(history, now) // the store may have it before the answer
			if refused("write", d.WriteAt(ctx, now[lba*BlockSize:(lba+n)*BlockSize], int64(lba)*BlockSize, 0)) {
				break
			}
			switch {
			case i%5 == 4:
				err = d.Drain(ctx)
			case i == 12:
				err = d.Snapshot(ctx, "s")
			case i%7 == 6:
				_, err = d.GC(ctx, 1)
			case i%7 == 3:
				err = d.askOwner(ctx)
			default:
				err = d.runMaintenance(ctx)
			}
			if refused("step", err) {
				break
			}
		}
		refused("close", d.Close(ctx))
	case other == nil || !errs.Is(err, errs.Conflict) && !errs.Is(err, errs.FailedPrecondition):
		fatal("open: %v", err)
	}
	if other == nil {
		if k > 0 {
			fatal("there were only %d operations", ops)
		}
		return ops
	}
	if err := other.Drain(ctx); err != nil {
		fatal("the other: %v", err)
	}
	if !bytes.Equal(read(other), theirs) {
		fatal("the other sees what it did not write")
	}
	if err := other.Close(ctx); err != nil {
		fatal("the other closes: %v", err)
	}
	opts.Random = random{rand.New(rand.NewPCG(seed, 14))}
	last, _, err := Open(ctx, mem, vfssim.New(), id, opts)
	if err != nil {
		fatal("open again: %v", err)
	}
	if !bytes.Equal(read(last), theirs) {
		fatal("the store does not have what the other wrote")
	}
	if err := last.Close(ctx); err != nil {
		fatal("%v", err)
	}
	return ops
}
