package lsvd

import (
	"bytes"
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"miren.dev/runtime/lsvd/store/storesim"
	"miren.dev/runtime/lsvd/vfs/vfssim"
	"miren.dev/runtime/pkg/errs"
)

// TestLoserThatReads lets two owners of one volume race on a store that
// misbehaves; the first one only reads once the other has come, at any point of
// what it does. It sees nothing but what it had, or what it is refused; from
// its first answer of the store on, which it asks for when that is due, it is
// refused for good. The other, who asks too, is never refused.
func TestLoserThatReads(t *testing.T) {
	t.Parallel()
	first, seeds := Seeds(t, 200)
	inside := 0
	for seed := first; seed < first+seeds; seed++ {
		if loserThatReads(t, uint64(seed)) {
			inside++
		}
	}
	t.Logf("%d of %d took over while it was asked for the owner", inside, seeds)
	if seeds >= 200 && inside < seeds/20 {
		t.Errorf("only %d of %d took over while it was asked for the owner", inside, seeds)
	}
}

// loserThatReads runs one seed and reports whether the other came in the midst
// of asking.
func loserThatReads(t *testing.T, seed uint64) bool {
	const blocks = 32
	ctx := t.Context()
	rng := rand.New(rand.NewPCG(seed, 21))
	now := time.Unix(1e9, 0)
	every := time.Duration(5+rng.IntN(30)) * time.Second
	options := func(n uint64) Options {
		return Options{manual: true, Random: random{rand.New(rand.NewPCG(seed, n))}, LogFile: 256 << 10, CutBytes: 16 << 10, MaxUnsent: 1 << 20,
			CacheBytes: 1 << 20, Checkpoint: 3, OwnerCheck: every, AcceptLoss: true, Now: func() time.Time { return now }}
	}
	var id ID
	random{rng}.Read(id[:])
	fatal := func(format string, args ...any) {
		t.Helper()
		t.Fatalf("seed %d: "+format, append([]any{seed}, args...)...)
	}
	check := func(what string, err error) {
		t.Helper()
		if err != nil {
			fatal("%s: %v", what, err)
		}
	}
	mem := &storesim.Mem{}
	check("create", Create(ctx, mem, id, blocks*BlockSize, nil))

	// The store of the first: it fails at times, and lets the other in.
	faults := 0
	var race func()
	at := -1 // so many operations before the other comes
	st := &storesim.Fault{Store: mem, Hook: func(op storesim.Op, key string) storesim.Action {
		if at--; at == 0 {
			return storesim.Action{Race: race}
		}
		if rng.IntN(100) >= faults {
			return storesim.Action{}
		}
		return []storesim.Action{{Before: storesim.Unreachable()}, {After: storesim.Unreachable()}, {Truncate: true}, {Stale: true}, {Flip: 1 + rng.IntN(128*8)}}[rng.IntN(5)]
	}}
	a, _, err := Open(ctx, st, vfssim.New(), id, options(22))
	check("open", err)
	mine := make([]byte, blocks*BlockSize)
	write := func(d *Device, image []byte) error {
		lba := rng.IntN(blocks)
		b := blockOf(lba, rng.Uint32())
		copy(image[lba*BlockSize:], b)
		return d.WriteAt(ctx, b, int64(lba)*BlockSize, 0)
	}
	read := func(d *Device) ([]byte, error) {
		p := make([]byte, blocks*BlockSize)
		return p, d.ReadAt(ctx, p, 0)
	}
	for range 1 + rng.IntN(20) {
		check("write", write(a, mine))
		if rng.IntN(4) == 0 {
			check("tend", a.runMaintenance(ctx))
		}
	}
	if rng.IntN(2) == 0 {
		check("drain", a.Drain(ctx))
	}

	var b *Device
	var theirs []byte
	var taken time.Time
	asking, inside := false, false
	race = func() {
		b, _, err = Open(ctx, mem, vfssim.New(), id, options(23))
		check("take over", err)
		theirs, err = read(b)
		check("read", err)
		taken, inside = now, asking
	}
	refused := false
	step := func(last bool) {
		t.Helper()
		now = now.Add(time.Duration(rng.IntN(8000)) * time.Millisecond)
		if !refused && a.sinceConfirmed() >= every {
			asking = true
			err := a.askOwner(ctx)
			asking = false
			switch {
			case errs.Is(err, errs.Conflict):
				if b == nil {
					fatal("lost to nobody: %v", err)
				}
			case err == nil && (b == nil || taken.Equal(now)):
			case err != nil && faults > 0 && (errs.Is(err, errs.Unavailable) || errs.Is(err, errs.Corrupt)):
			default:
				fatal("%v after the other came, asking for the owner says %v", now.Sub(taken), err)
			}
		}
		got, err := read(a)
		switch {
		case err == nil && refused:
			fatal("it is read after it was refused")
		case err == nil && !bytes.Equal(got, mine):
			fatal("reads what it never had")
		case err == nil:
		case errs.Is(err, errs.Conflict) && b != nil:
			refused = true
		case faults == 0 || !errs.Is(err, errs.Unavailable) && !errs.Is(err, errs.Corrupt):
			fatal("read: %v", err)
		}
		if last && !refused {
			fatal("it is read %v after the other came", now.Sub(taken))
		}
		if b == nil {
			return
		}
		if b.sinceConfirmed() >= every {
			check("the other asks for the owner", b.askOwner(ctx))
		}
		if rng.IntN(2) == 0 {
			check("the other writes", write(b, theirs))
		}
		if rng.IntN(4) == 0 {
			check("the other tends", b.runMaintenance(ctx))
		}
	}
	faults = []int{0, 0, 30}[rng.IntN(3)]
	for range 4 {
		step(false)
	}
	if rng.IntN(2) == 0 {
		at = 1 + rng.IntN(4)
	} else {
		race()
	}
	for range 20 {
		step(false)
	}
	if b == nil {
		race()
	}
	faults, at = 0, -1
	now = now.Add(every) // now it is due, and the store answers
	step(true)
	if err := a.Close(ctx); !errs.Is(err, errs.Conflict) {
		fatal("the loser closes: %v", err)
	}
	got, err := read(b)
	if err != nil || !bytes.Equal(got, theirs) {
		fatal("the other reads what it did not write, %v", err)
	}
	check("the other closes", b.Close(ctx))
	last, _, err := Open(ctx, mem, vfssim.New(), id, options(24))
	check("open again", err)
	if got, err = read(last); err != nil || !bytes.Equal(got, theirs) {
		fatal("the store does not have what the other wrote, %v", err)
	}
	check("close", last.Close(context.WithoutCancel(ctx)))
	return inside
}
