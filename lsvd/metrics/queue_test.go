package metrics

import (
	"context"
	"errors"
	"testing"

	"miren.dev/runtime/lsvd"
)

// readers takes reads and ends none.
type readers struct {
	backend
	taken []lsvd.Read
}

func (r *readers) ReadBatch(_ context.Context, reads []lsvd.Read) {
	r.taken = append(r.taken, reads...)
}

// told counts what a waiter is told.
type told struct {
	err        error
	done, told int
}

func (t *told) Done(err error, _ bool) { t.err = err; t.done++ }
func (t *told) BatchDone()             { t.told++ }

// TestReadBatch counts the reads of a batch, once each, when they end.
func TestReadBatch(t *testing.T) {
	b := &readers{}
	d := NewDisk(b)
	p := make([]byte, 4096)
	expect := func(d *Disk, when string, reads, failed, busy int) {
		t.Helper()
		f := d.Figures(Read)
		if int(f.Latency.Count) != reads || int(f.Errors) != failed || int(d.Busy()) != busy || int64(f.Bytes) != 4096*int64(reads-failed) {
			t.Errorf("%s: %d reads, %d bytes, %d failed, %d under way", when, f.Latency.Count, f.Bytes, f.Errors, d.Busy())
		}
	}
	var w told
	d.ReadBatch(t.Context(), []lsvd.Read{{P: p, Completion: &w}, {P: p, Off: 4096, Completion: &w}})
	expect(d, "begun", 0, 0, 2)
	for i, err := range []error{nil, errors.New("broken")} {
		b.taken[i].Completion.Done(err, false)
		b.taken[i].Completion.BatchDone()
		expect(d, "ended", 1+i, i, 1-i)
		if w.done != 1+i || w.told != 1+i || w.err != err {
			t.Errorf("%+v", w)
		}
	}
	w = told{}
	other := NewDisk(backend{})
	other.ReadBatch(t.Context(), []lsvd.Read{{P: p, Completion: &w}})
	if expect(other, "a disk that cannot", 1, 0, 0); w.done != 1 || w.told != 1 {
		t.Errorf("%+v", w)
	}
}
