package lsvd_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/inspect"
	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/lsvd/store/s3/s3test"
	"miren.dev/runtime/lsvd/store/storesim"
	"miren.dev/runtime/pkg/errs"
)

// origin is a volume with snapshots that are copied, and what they have.
type origin struct {
	*volume
	r     *fixture
	snaps map[string][]byte
	rng   *rand.Rand
}

const copyDisk = 4 << 20

func newOrigin(t *testing.T) *origin {
	t.Helper()
	r := newFixture(t, copyDisk)
	r.opts.CutAge, r.opts.CutBytes = time.Hour, 256<<10
	return &origin{volume: r.volume(r.id, make([]byte, copyDisk)), r: r, snaps: map[string][]byte{}, rng: rand.New(rand.NewPCG(1, 16))}
}

// snap writes n blocks and takes a snapshot.
func (o *origin) snap(t *testing.T, n int, name string) {
	t.Helper()
	o.write(t, o.rng, n)
	if err := o.d.Snapshot(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	o.snaps[name] = bytes.Clone(o.model)
}

func (o *origin) copy(ctx context.Context, to store.Store, name string) (lsvd.CopyStats, error) {
	return lsvd.Copy(ctx, o.r.st, o.id, name, to, name, nil)
}

// whole asserts that a store has the snapshot, as data and as a disk.
func (o *origin) whole(t *testing.T, st store.Store, name string) {
	t.Helper()
	got := make([]byte, copyDisk)
	var mu sync.Mutex
	err := lsvd.ReadSnapshot(t.Context(), st, o.id, name, nil, func(off int64, data []byte) error {
		mu.Lock()
		defer mu.Unlock()
		copy(got[off:], data)
		return nil
	})
	if err != nil || !bytes.Equal(got, o.snaps[name]) {
		t.Fatalf("copy %s differs from its snapshot: %v", name, err)
	}
	r := newFixture(t, copyDisk)
	r.st = st
	id := lsvd.NewID()
	if err := lsvd.Clone(t.Context(), st, o.id, name, id, nil); err != nil {
		t.Fatal(err)
	}
	v := r.volume(id, o.snaps[name])
	v.check(t)
	if err := v.d.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := lsvd.Delete(t.Context(), st, id); err != nil {
		t.Fatal(err)
	}
}

func sweep(t *testing.T, st store.Store) {
	t.Helper()
	if _, _, err := lsvd.Sweep(t.Context(), st); err != nil {
		t.Fatal(err)
	}
}

func keys(t *testing.T, st store.Store, prefix string) (out []string) {
	t.Helper()
	for i, err := range st.List(t.Context(), prefix) {
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, i.Key)
	}
	return out
}

// TestCopiesAreIncremental: the second copy sends only what was written since the
// first; the deletion of one frees what no other needs.
func TestCopiesAreIncremental(t *testing.T) {
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		copies(t, &storesim.Mem{})
	})
	t.Run("minio", func(t *testing.T) {
		t.Parallel()
		copies(t, s3test.Start(t, "minio").Open(t, ""))
	})
}

func copies(t *testing.T, to store.Store) {
	ctx, o := t.Context(), newOrigin(t)
	o.snap(t, 800, "one")
	first, err := o.copy(ctx, to, "one")
	if err != nil {
		t.Fatal(err)
	}
	if first.SentBytes != first.Bytes || first.SentObjects != first.Objects || first.Bytes < 1<<20 {
		t.Errorf("the first copy: %+v", first)
	}
	o.snap(t, 20, "two")
	second, err := o.copy(ctx, to, "two")
	if err != nil {
		t.Fatal(err)
	}
	if second.SentBytes > first.Bytes/4 || second.SentObjects == 0 {
		t.Errorf("the second copy: %+v after %+v", second, first)
	}
	if again, err := o.copy(ctx, to, "two"); err != nil || again.SentObjects != 0 {
		t.Errorf("a complete copy again: %+v, %v", again, err)
	}
	o.whole(t, to, "one")
	o.whole(t, to, "two")

	// What becomes of the origin does not matter.
	for _, name := range []string{"one", "two"} {
		if err := lsvd.DeleteSnapshot(ctx, o.r.st, o.id, name); err != nil {
			t.Fatal(err)
		}
	}
	o.write(t, o.rng, 900)
	if _, err := o.d.GC(ctx, 1); err != nil {
		t.Fatal(err)
	}
	sweep(t, o.r.st)
	before := stored(t, to)
	if err := lsvd.DeleteCopy(ctx, to, o.id, "one"); err != nil {
		t.Fatal(err)
	}
	sweep(t, to)
	o.whole(t, to, "two")
	if after := stored(t, to); after >= before {
		t.Errorf("the deletion of a copy freed nothing: %d bytes of %d", after, before)
	}
	if err := lsvd.DeleteCopy(ctx, to, o.id, "two"); err != nil {
		t.Fatal(err)
	}
	sweep(t, to)
	for _, key := range keys(t, to, "") {
		if !strings.HasPrefix(key, "probe/") {
			t.Errorf("%s is left of all copies", key)
		}
	}
}

// TestCopyIsKilledAtEveryWrite ends a copy before and after each of its
// operations on the other store, collects the garbage of both, and completes it.
func TestCopyIsKilledAtEveryWrite(t *testing.T) {
	o := newOrigin(t)
	o.snap(t, 800, "one")
	o.snap(t, 100, "two")
	for _, after := range []bool{false, true} {
		for n := int64(1); ; n++ {
			mem := &storesim.Mem{}
			if _, err := o.copy(t.Context(), mem, "one"); err != nil {
				t.Fatal(err)
			}
			var ops atomic.Int64
			killed := errs.New(errs.Internal, "killed")
			to := &storesim.Fault{Store: mem, Hook: func(storesim.Op, string) storesim.Action {
				switch k := ops.Add(1); {
				case k < n:
					return storesim.Action{}
				case k == n && after:
					return storesim.Action{After: killed}
				}
				return storesim.Action{Before: killed}
			}}
			_, err := o.copy(t.Context(), to, "two")
			sweep(t, mem)
			sweep(t, o.r.st)
			if _, cerr := o.copy(t.Context(), mem, "two"); cerr != nil {
				t.Fatalf("operation %d, after %v: %v", n, after, cerr)
			}
			o.whole(t, mem, "two")
			o.whole(t, mem, "one")
			if left := keys(t, mem, "manifests/"+o.id.String()+"/copying/"); len(left) > 0 {
				t.Fatalf("operation %d: %v is left", n, left)
			}
			if err == nil {
				if n < 10 {
					t.Fatalf("a copy has %d operations", n)
				}
				break
			}
		}
	}
}

// TestCopyResumes: what an interrupted copy has sent is not sent again, though the
// garbage of the store was collected meanwhile.
func TestCopyResumes(t *testing.T) {
	ctx, o, mem := t.Context(), newOrigin(t), &storesim.Mem{}
	o.snap(t, 800, "one")
	sent := int64(0)
	var mu sync.Mutex
	to := &storesim.Fault{Store: mem, Hook: func(op storesim.Op, key string) storesim.Action {
		mu.Lock()
		defer mu.Unlock()
		if op == storesim.OpCreate && strings.HasPrefix(key, "objects/") {
			if sent++; sent > 5 {
				return storesim.Action{Before: storesim.Unreachable()}
			}
		}
		return storesim.Action{}
	}}
	if _, err := o.copy(ctx, to, "one"); !errs.Is(err, errs.Unavailable) {
		t.Fatalf("a store that does not answer: %v", err)
	}
	sweep(t, mem)
	st, err := o.copy(ctx, mem, "one")
	if err != nil || st.Objects-st.SentObjects != 5 {
		t.Errorf("the copy that completes it: %+v, %v", st, err)
	}
	o.whole(t, mem, "one")

	// One that is given up leaves nothing.
	o.snap(t, 300, "two")
	sent = 0
	if _, err := o.copy(ctx, to, "two"); !errs.Is(err, errs.Unavailable) {
		t.Fatal(err)
	}
	before := len(keys(t, mem, ""))
	if err := lsvd.DeleteCopy(ctx, mem, o.id, "two"); err != nil {
		t.Fatal(err)
	}
	sweep(t, mem)
	if after := len(keys(t, mem, "")); after >= before-5 {
		t.Errorf("%d objects of %d are left", after, before)
	}
	o.whole(t, mem, "one")
}

// TestCopyWithStoreFaults copies between stores that fail, answer late, cut
// transfers off and flip bits, until it succeeds.
func TestCopyWithStoreFaults(t *testing.T) {
	o := newOrigin(t)
	o.snap(t, 600, "one")
	first, n := lsvd.Seeds(t, 30)
	for seed := first; seed < first+n; seed++ {
		rng := rand.New(rand.NewPCG(uint64(seed), 3))
		var mu sync.Mutex
		hook := func(op storesim.Op, _ string) storesim.Action {
			mu.Lock()
			defer mu.Unlock()
			if rng.IntN(100) >= 8 {
				return storesim.Action{}
			}
			switch rng.IntN(4) {
			case 0:
				return storesim.Action{Before: storesim.Unreachable()}
			case 1:
				return storesim.Action{After: storesim.Unreachable()}
			case 2:
				return storesim.Action{Truncate: true}
			}
			return storesim.Action{Flip: 1 + rng.IntN(1<<20)}
		}
		mem := &storesim.Mem{}
		from, to := &storesim.Fault{Store: o.r.st, Hook: hook}, &storesim.Fault{Store: mem, Hook: hook}
		for try := 0; ; try++ {
			_, err := lsvd.Copy(t.Context(), from, o.id, "one", to, "one", nil)
			if err == nil {
				break
			}
			if !errs.Is(err, errs.Unavailable) && !errs.Is(err, errs.Corrupt) || try == 100 {
				t.Fatalf("seed %d: %v", seed, err)
			}
			// A sweep whose mark stays after a fault delays copies: that of the
			// store itself does not fail.
			sweep(t, mem)
		}
		o.whole(t, mem, "one")
	}
}

// TestCopyOfDamage: a damaged segment is not copied, one that was damaged after its
// arrival is replaced, and a store that has the volume itself is refused.
func TestCopyOfDamage(t *testing.T) {
	ctx, o, mem := t.Context(), newOrigin(t), &storesim.Mem{}
	o.snap(t, 600, "one")
	if _, err := o.copy(ctx, o.r.st, "again"); !errs.Is(err, errs.NotFound) {
		t.Errorf("copy of a snapshot that does not exist: %v", err)
	}
	_, err := lsvd.Copy(ctx, o.r.st, o.id, "one", o.r.st, "again", nil)
	if !errs.Is(err, errs.FailedPrecondition) || errs.Detail(err, "reason") != "same_store" {
		t.Errorf("copy into its own store: %v", err)
	}
	segment := keys(t, o.r.st, "objects/"+o.id.String()+"/data/")[0]
	bad := &storesim.Fault{Store: o.r.st, Hook: func(op storesim.Op, key string) storesim.Action {
		if key == segment {
			return storesim.Action{Flip: 5000}
		}
		return storesim.Action{}
	}}
	if _, err := lsvd.Copy(ctx, bad, o.id, "one", mem, "one", nil); !errs.Is(err, errs.Corrupt) {
		t.Errorf("copy of a damaged segment: %v", err)
	}
	// It arrived of an interrupted copy, and then lost a bit.
	b, _, err := o.r.st.Get(ctx, segment)
	if err != nil {
		t.Fatal(err)
	}
	b[100] ^= 1
	if _, err := mem.Create(ctx, segment, b); err != nil {
		t.Fatal(err)
	}
	if _, err := o.copy(ctx, mem, "one"); err != nil {
		t.Fatal(err)
	}
	o.whole(t, mem, "one")
}

// TestSweepBesideCopy: a sweep that has decided to delete what a copy needs is not
// overtaken by the copy.
func TestSweepBesideCopy(t *testing.T) {
	ctx, o, mem := t.Context(), newOrigin(t), &storesim.Mem{}
	o.snap(t, 600, "one")
	if _, err := o.copy(ctx, mem, "one"); err != nil {
		t.Fatal(err)
	}
	if err := lsvd.DeleteCopy(ctx, mem, o.id, "one"); err != nil {
		t.Fatal(err)
	}
	tries := 0
	st := &storesim.Fault{Store: mem, Hook: func(op storesim.Op, key string) storesim.Action {
		if op != storesim.OpDelete || !strings.HasPrefix(key, "objects/") {
			return storesim.Action{}
		}
		return storesim.Action{Race: func() {
			if _, err := o.copy(ctx, mem, "one"); !errs.Is(err, errs.Unavailable) || errs.Detail(err, "reason") != "sweeping" {
				t.Errorf("a copy during a sweep: %v", err)
			}
			tries++
		}}
	}}
	if n, _, err := lsvd.Sweep(ctx, st); err != nil || n != tries || tries == 0 {
		t.Errorf("%d objects swept, %d copies tried: %v", n, tries, err)
	}
	if s, err := o.copy(ctx, mem, "one"); err != nil || s.SentObjects != s.Objects {
		t.Errorf("after the sweep: %+v, %v", s, err)
	}
	sweep(t, mem)
	o.whole(t, mem, "one")
}

// TestGCBesideCopy: the disk is overwritten and its garbage is collected, and both
// stores are swept, before each object of a copy is sent.
func TestGCBesideCopy(t *testing.T) {
	ctx, o, mem := t.Context(), newOrigin(t), &storesim.Mem{}
	o.snap(t, 600, "one")
	var busy sync.Mutex
	to := &storesim.Fault{Store: mem, Hook: func(op storesim.Op, key string) storesim.Action {
		if op != storesim.OpCreate || !strings.HasPrefix(key, "objects/") {
			return storesim.Action{}
		}
		return storesim.Action{Race: func() {
			busy.Lock()
			defer busy.Unlock()
			o.write(t, o.rng, 50)
			if _, err := o.d.GC(ctx, 1); err != nil {
				t.Error(err)
			}
			for _, st := range []store.Store{o.r.st, mem} {
				if _, _, err := lsvd.Sweep(ctx, st); err != nil {
					t.Error(err)
				}
			}
		}}
	}}
	if _, err := o.copy(ctx, to, "one"); err != nil {
		t.Fatal(err)
	}
	o.whole(t, mem, "one")
	o.check(t)
}

// TestCopyOfDeletedSnapshot: a snapshot that is deleted while it is copied is said
// to be so, not to be damaged.
func TestCopyOfDeletedSnapshot(t *testing.T) {
	ctx, o, mem := t.Context(), newOrigin(t), &storesim.Mem{}
	o.snap(t, 600, "one")
	o.write(t, o.rng, 900)
	var once sync.Once
	to := &storesim.Fault{Store: mem, Hook: func(op storesim.Op, key string) storesim.Action {
		if op != storesim.OpList {
			return storesim.Action{}
		}
		return storesim.Action{Race: func() {
			once.Do(func() {
				if err := lsvd.DeleteSnapshot(ctx, o.r.st, o.id, "one"); err != nil {
					t.Error(err)
				}
				if _, err := o.d.GC(ctx, 1); err != nil {
					t.Error(err)
				}
			})
		}}
	}}
	if _, err := o.copy(ctx, to, "one"); !errs.Is(err, errs.NotFound) || !strings.Contains(fmt.Sprint(err), "deleted while") {
		t.Errorf("copy of a snapshot that is deleted meanwhile: %v", err)
	}
}

// TestCopyOfEncryptedDisk: a copy needs no key, and reading it does. It keeps its name, and the user's key of the first
// copy, which is rotated on its own.
func TestCopyOfEncryptedDisk(t *testing.T) {
	ctx, mem, r := t.Context(), &storesim.Mem{}, newFixture(t, copyDisk)
	r.id, r.opts.Key = lsvd.NewID(), bytes.Repeat([]byte{7}, 32)
	if err := lsvd.Create(ctx, r.st, r.id, copyDisk, r.opts.Key); err != nil {
		t.Fatal(err)
	}
	v := r.volume(r.id, make([]byte, copyDisk))
	v.write(t, rand.New(rand.NewPCG(1, 1)), 100)
	if err := v.d.Snapshot(ctx, "one"); err != nil {
		t.Fatal(err)
	}
	if _, err := lsvd.Copy(ctx, r.st, r.id, "one", mem, "one", nil); err != nil {
		t.Fatal(err)
	}
	var read atomic.Int64
	count := func(_ int64, data []byte) error { read.Add(int64(len(data))); return nil }
	if err := lsvd.ReadSnapshot(ctx, mem, r.id, "one", nil, count); !errs.Is(err, errs.FailedPrecondition) {
		t.Errorf("without its key: %v", err)
	}
	if err := lsvd.ReadSnapshot(ctx, mem, r.id, "one", r.opts.Key, count); err != nil || read.Load() == 0 {
		t.Errorf("with its key: %d bytes, %v", read.Load(), err)
	}
	if _, err := lsvd.Copy(ctx, r.st, r.id, "one", mem, "uno", nil); !errs.Is(err, errs.FailedPrecondition) || len(keys(t, mem, "manifests/")) != 1 {
		t.Errorf("under another name: %v", err)
	}
	if err := lsvd.RotateKey(ctx, r.st, r.id, r.opts.Key, nextKey); err != nil {
		t.Fatal(err)
	}
	v.write(t, rand.New(rand.NewPCG(1, 2)), 10)
	if err := v.d.Snapshot(ctx, "two"); err != nil {
		t.Fatal(err)
	}
	if _, err := lsvd.Copy(ctx, r.st, r.id, "two", mem, "two", nil); err != nil {
		t.Fatal(err)
	}
	sweep(t, mem)
	for _, snapshot := range []string{"one", "two"} {
		if err := lsvd.ReadSnapshot(ctx, mem, r.id, snapshot, r.opts.Key, count); err != nil {
			t.Errorf("%s after the rotation of its origin: %v", snapshot, err)
		}
	}
	if err := lsvd.RotateKey(ctx, mem, r.id, r.opts.Key, nextKey); err != nil {
		t.Fatal(err)
	}
	if err := lsvd.ReadSnapshot(ctx, mem, r.id, "one", nextKey, count); err != nil {
		t.Errorf("after the rotation of the copy: %v", err)
	}
	restored := lsvd.NewID()
	if err := lsvd.Clone(ctx, mem, r.id, "two", restored, nextKey); err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{"one", "two"} {
		if err := lsvd.DeleteCopy(ctx, mem, r.id, s); err != nil {
			t.Fatal(err)
		}
	}
	sweep(t, mem)
	if left := keys(t, mem, "keys/"); len(left) != 1 || left[0] != "keys/"+restored.String() {
		t.Errorf("keys are left: %v", left)
	}
	if r, err := inspect.Check(ctx, mem, restored, nextKey, true, nil); err != nil || !r.OK() {
		t.Errorf("what was restored of it: %+v, %v", r, err)
	}
}

// TestCopyOfEncryptedDiskDiesAnywhere ends a copy after each of its writes; a repetition completes it, and a sweep in
// between takes nothing that it needs.
func TestCopyOfEncryptedDiskDiesAnywhere(t *testing.T) {
	s := newSealed(t, lsvd.ID{1}, userKey, 1)
	from := storeOf(t, s.objects)
	died := errs.New(errs.Unavailable, "the process died")
	done := false
	for at := 0; !done; at++ {
		to, n := &storesim.Mem{}, 0
		var mu sync.Mutex
		f := &storesim.Fault{Store: to, Hook: func(op storesim.Op, _ string) (a storesim.Action) {
			mu.Lock()
			defer mu.Unlock()
			if n > at {
				a.Before = died
			} else if op == storesim.OpCreate || op == storesim.OpReplace || op == storesim.OpDelete {
				if n++; n > at {
					a.After = died
				}
			}
			return a
		}}
		_, err := lsvd.Copy(t.Context(), from, s.id, "two", f, "two", nil)
		done = err == nil
		sweep(t, to)
		if _, err := lsvd.Copy(t.Context(), from, s.id, "two", to, "two", nil); err != nil {
			t.Fatalf("repetition of what died at %d: %v", at, err)
		}
		sweep(t, to)
		if got, err := s.read(t, to, "two", userKey); err != nil || !bytes.Equal(got, s.images["two"]) {
			t.Errorf("copy that died at %d: %v", at, err)
		}
	}
}
