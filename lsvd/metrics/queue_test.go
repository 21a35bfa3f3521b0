package metrics

import (
	"context"
	"errors"
	"testing"

	"miren.dev/runtime/lsvd"
)

// readers takes reads as it is told to.
type readers struct {
	backend
	taken lsvd.QueueResult
	w     lsvd.Completion
	begun int
}

func (r *readers) ReadCached([]byte, int64) bool { return r.taken == lsvd.Filled }

func (r *readers) QueueRead(_ context.Context, _ []byte, _ int64, w lsvd.Completion) lsvd.QueueResult {
	r.w = w
	return r.taken
}

func (r *readers) BeginReads() { r.begun++ }

// told counts what a waiter is told.
type told struct {
	err        error
	done, told int
}

func (t *told) Done(err error, _ bool) { t.err = err; t.done++ }
func (t *told) BatchDone()             { t.told++ }

// TestQueueRead counts reads that nobody waits for, once each, when they end.
func TestQueueRead(t *testing.T) {
	b := &readers{}
	d := NewDisk(b)
	p := make([]byte, 4096)
	expect := func(when string, reads, failed, busy int) {
		t.Helper()
		f := d.Figures(Read)
		if int(f.Latency.Count) != reads || int(f.Errors) != failed || int(d.Busy()) != busy || int64(f.Bytes) != 4096*int64(reads-failed) {
			t.Errorf("%s: %d reads, %d bytes, %d failed, %d under way", when, f.Latency.Count, f.Bytes, f.Errors, d.Busy())
		}
	}
	var w told
	for i, taken := range []lsvd.QueueResult{lsvd.NotQueued, lsvd.Filled} {
		b.taken = taken
		if got := d.QueueRead(t.Context(), p, 0, &w); got != taken {
			t.Errorf("taken %d instead of %d", got, taken)
		}
		expect("at once", i, 0, 0)
	}
	b.taken = lsvd.Queued
	for i, err := range []error{nil, errors.New("broken")} {
		if got := d.QueueRead(t.Context(), p, 0, &w); got != lsvd.Queued {
			t.Errorf("taken %d", got)
		}
		d.BeginReads()
		expect("queued", 1+i, 0, 1)
		b.w.Done(err, false)
		b.w.BatchDone()
		expect("ended", 2+i, i, 0)
		if w.done != 1+i || w.told != 1+i || w.err != err || b.begun != 1+i {
			t.Errorf("%+v, begun %d times", w, b.begun)
		}
	}
	if got := NewDisk(backend{}).QueueRead(t.Context(), p, 0, &w); got != lsvd.NotQueued {
		t.Errorf("a disk that cannot: taken %d", got)
	}
}
