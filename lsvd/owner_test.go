package lsvd_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/store/storesim"
	"miren.dev/runtime/lsvd/vfs/vfssim"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/wait"
)

// demand is a store that counts the requests for manifests, and may be away.
type demand struct {
	storesim.Fault
	total  atomic.Int64
	minute [90]atomic.Int64 // of the simulated clock
	second [90 * 60]atomic.Int64
	away   atomic.Bool
	silent atomic.Bool // and does not even say so
	hangs  chan struct{}
}

func newAsked() *demand {
	began := time.Now()
	a := &demand{hangs: make(chan struct{}, 100)}
	a.Store = &storesim.Mem{}
	a.Hook = func(op storesim.Op, key string) storesim.Action {
		if strings.HasPrefix(key, "manifests/") {
			a.total.Add(1)
			since := int(time.Since(began) / time.Second)
			a.second[since].Add(1)
			a.minute[since/60].Add(1)
		}
		if a.away.Load() {
			return storesim.Action{Before: storesim.Unreachable()}
		}
		return storesim.Action{}
	}
	return a
}

// GetRange implements [store.Store].
func (a *demand) GetRange(ctx context.Context, key string, off, n int64) ([]byte, error) {
	if a.silent.Load() {
		a.hangs <- struct{}{}
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return a.Fault.GetRange(ctx, key, off, n)
}

func (a *demand) create(t *testing.T) lsvd.ID {
	t.Helper()
	id := lsvd.NewID()
	if err := lsvd.Create(t.Context(), a, id, 1<<20, nil); err != nil {
		t.Fatal(err)
	}
	return id
}

// open opens a volume on a machine of its own.
func (a *demand) open(t *testing.T, id lsvd.ID, opts lsvd.Options) *lsvd.Device {
	t.Helper()
	opts.AcceptLoss = true
	d, _, err := lsvd.Open(t.Context(), a, vfssim.New(), id, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close(context.Background()) })
	return d
}

// refusedWithin reads until the disk is refused, and returns when that was.
func refusedWithin(t *testing.T, d *lsvd.Device, limit time.Duration) time.Duration {
	t.Helper()
	began := time.Now() // of a simulated clock
	wait.For(t, "the disk is refused", func() bool {
		err := d.ReadAt(t.Context(), make([]byte, 4096), 0)
		if err != nil && !errs.Is(err, errs.Conflict) {
			t.Fatalf("%v after the volume was lost, a read says %v", time.Since(began), err)
		}
		return err != nil
	}, wait.Within(limit))
	return time.Since(began)
}

// TestReaderLosesVolume: a disk that only reads is refused soon after somebody
// else has opened its volume, and says why in the log. So is one whose own log
// has failed, which alone would let it be read.
func TestReaderLosesVolume(t *testing.T) {
	for _, broken := range []bool{false, true} {
		t.Run(fmt.Sprintf("broken=%v", broken), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testReaderLosesVolume(t, broken) })
		})
	}
}

func testReaderLosesVolume(t *testing.T, broken bool) {
	var log lockedBuffer
	st, fs := newAsked(), vfssim.New()
	id := st.create(t)
	loser, _, err := lsvd.Open(t.Context(), st, fs, id, lsvd.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	if err := loser.WriteAt(t.Context(), make([]byte, 4096), 0, 0); err != nil {
		t.Fatal(err)
	}
	time.Sleep(10 * time.Minute)
	if broken {
		fs.FailSync = func(string) error { return errs.New(errs.Unavailable, "injected: sync") }
		if err := loser.WriteAt(t.Context(), make([]byte, 4096), 0, lsvd.FUA); err == nil {
			t.Fatal("a write is durable in a log that cannot be synced")
		}
		time.Sleep(10 * time.Minute)
		if err := loser.ReadAt(t.Context(), make([]byte, 4096), 0); err != nil || loser.Err() == nil {
			t.Fatalf("with a log that has failed, a read says %v, the disk %v", err, loser.Err())
		}
	} else if err := loser.Err(); err != nil {
		t.Fatal(err)
	}
	winner := st.open(t, id, lsvd.Options{})
	took := refusedWithin(t, loser, 38*time.Second)
	t.Logf("noticed after %v", took)
	if !errs.Is(loser.Err(), errs.Conflict) || !strings.Contains(log.String(), "opened by another process") {
		t.Errorf("the loser says %v, and its log\n%s", loser.Err(), log.String())
	}
	for what, err := range map[string]error{"write": loser.WriteAt(t.Context(), make([]byte, 4096), 0, 0), "flush": loser.Flush(t.Context()),
		"status": loser.Status(0, 4096, func(int64, int64, bool) bool { return true }), "close": loser.Close(t.Context())} {
		if !errs.Is(err, errs.Conflict) {
			t.Errorf("%s of the loser: %v", what, err)
		}
	}
	time.Sleep(10 * time.Minute)
	if err := winner.Err(); err != nil {
		t.Errorf("the winner: %v", err)
	}
}

// TestBusyDiskDoesNotAsk: what a disk sends tells it enough.
func TestBusyDiskDoesNotAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newAsked()
		d := st.open(t, st.create(t), lsvd.Options{Checkpoint: 1 << 20, Compression: lsvd.CompressNone})
		opened := st.total.Load()
		for i := range 120 {
			if err := d.WriteAt(t.Context(), bytes.Repeat([]byte{byte(i)}, 4096), int64(i)*4096, 0); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Second)
		}
		if n := st.total.Load() - opened; n > 0 {
			t.Errorf("%d requests for the manifest in 20 minutes of writing", n)
		}
	})
}

// TestIdleDisksAskLittle: a hundred idle disks ask about twice a minute each,
// not all at once, however they were opened. A store that is away for an hour
// loses none of them, and is not asked more for it.
func TestIdleDisksAskLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const disks = 100
		st := newAsked()
		var all []*lsvd.Device
		for range disks {
			all = append(all, st.open(t, st.create(t), lsvd.Options{}))
		}
		look := func(what string, from int) {
			t.Helper()
			synctest.Wait()
			sum, peak := int64(0), int64(0)
			for m := from; m < from+10; m++ {
				n := st.minute[m].Load()
				if sum += n; n > 2*disks*6/5 {
					t.Errorf("%s: %d requests in minute %d", what, n, m)
				}
				for s := m * 60; s < m*60+60; s++ {
					peak = max(peak, st.second[s].Load())
				}
			}
			t.Logf("%s: %.1f requests in a minute, at most %d in a second", what, float64(sum)/10, peak)
			if sum > 10*2*disks || sum < 10*disks {
				t.Errorf("%s: %d requests in 10 minutes", what, sum)
			}
			if peak > disks/4 {
				t.Errorf("%s: %d requests in one second", what, peak)
			}
		}
		time.Sleep(11 * time.Minute)
		look("idle", 1)
		st.away.Store(true)
		time.Sleep(time.Hour)
		look("away", 61)
		st.away.Store(false)
		time.Sleep(11 * time.Minute)
		look("back", 72)
		for i, d := range all {
			if err := d.Err(); err != nil {
				t.Errorf("disk %d: %v", i, err)
			}
		}
	})
}

// TestLossWhileStoreIsAway: it is noticed when the store answers again.
func TestLossWhileStoreIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newAsked()
		id := st.create(t)
		loser := st.open(t, id, lsvd.Options{OwnerCheck: 10 * time.Second})
		st.away.Store(true)
		here := &demand{}
		here.Store = st.Store // the other's way to the store works
		winner := here.open(t, id, lsvd.Options{})
		time.Sleep(5 * time.Minute)
		if err := loser.ReadAt(t.Context(), make([]byte, 4096), 0); err != nil || loser.Err() != nil {
			t.Fatalf("a store that is away makes reads fail: %v, %v", err, loser.Err())
		}
		st.away.Store(false)
		t.Logf("noticed after %v", refusedWithin(t, loser, 13*time.Second))
		if err := winner.Err(); err != nil {
			t.Error(err)
		}
	})
}

// TestDeletedManifestIsNoAnswer: a directory that is not mounted looks like
// one without the volume.
func TestDeletedManifestIsNoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newAsked()
		id := st.create(t)
		d := st.open(t, id, lsvd.Options{})
		key := fmt.Sprintf("manifests/%s/volume", id)
		b, _, err := st.Get(t.Context(), key)
		if err == nil {
			err = st.Delete(t.Context(), key)
		}
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Minute)
		if err := d.Err(); err != nil {
			t.Error(err)
		}
		if _, err := st.Create(t.Context(), key, b); err != nil {
			t.Fatal(err)
		}
	})
}

// TestCloseWhileAsking: a store that does not answer does not keep a disk from
// being closed, and whoever opens the volume next is not mistaken for a thief.
func TestCloseWhileAsking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st, fs := newAsked(), vfssim.New()
		id := st.create(t)
		var log lockedBuffer
		opts := lsvd.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}
		for range 20 { // generations of a daemon, on one log
			d, _, err := lsvd.Open(t.Context(), st, fs, id, opts)
			if err != nil {
				t.Fatal(err)
			}
			st.silent.Store(true)
			<-st.hangs
			began := time.Now()
			st.silent.Store(false)
			if err := d.Close(t.Context()); err != nil || time.Since(began) > time.Second {
				t.Fatalf("close: %v, after %v", err, time.Since(began))
			}
		}
		if strings.Contains(log.String(), "ERROR") {
			t.Error(log.String())
		}
	})
}
