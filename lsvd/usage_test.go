package lsvd_test

import (
	"bytes"
	"context"
	"iter"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/internal/name"
	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/lsvd/store/storesim"
)

// listing is a store that does something between the listing of the manifests and
// what is done with the first of them.
type listing struct {
	store.Store
	meanwhile atomic.Pointer[func()] // once
}

func (l *listing) List(ctx context.Context, prefix string) iter.Seq2[store.Info, error] {
	return func(yield func(store.Info, error) bool) {
		var found []store.Info
		for i, err := range l.Store.List(ctx, prefix) {
			if err != nil {
				yield(i, err)
				return
			}
			found = append(found, i)
		}
		if strings.HasPrefix(prefix, name.Manifests) {
			if f := l.meanwhile.Swap(nil); f != nil {
				(*f)()
			}
		}
		for _, i := range found {
			if !yield(i, nil) {
				return
			}
		}
	}
}

// TestGCKeepsWhatACloneNeeds makes a clone and deletes its snapshot while GC lists the
// manifests, which sees neither of them.
func TestGCKeepsWhatACloneNeeds(t *testing.T) {
	const size = 4 << 20
	st := &listing{Store: &storesim.Mem{}}
	r := newFixture(t, size)
	r.st, r.opts.CutAge, r.opts.GCRatio = st, time.Hour, 100
	if err := lsvd.Create(t.Context(), st, r.id, size, nil); err != nil {
		t.Fatal(err)
	}
	d := r.open()
	fill := func(b byte) []byte {
		p := bytes.Repeat([]byte{b}, size)
		for i := range size / lsvd.BlockSize { // nothing compresses to nothing
			p[i*lsvd.BlockSize] = byte(i)
		}
		if err := d.WriteAt(t.Context(), p, 0, 0); err != nil {
			t.Fatal(err)
		}
		if err := d.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
		return p
	}
	old := fill(1)
	if err := d.Snapshot(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	clone := lsvd.NewID()
	meanwhile := func() {
		if err := lsvd.Clone(t.Context(), st, r.id, "s", clone, nil); err != nil {
			t.Error(err)
		}
		if err := lsvd.DeleteSnapshot(t.Context(), st, r.id, "s"); err != nil {
			t.Error(err)
		}
	}
	fill(2)
	st.meanwhile.Store(&meanwhile)
	if _, err := d.GC(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if _, _, err := lsvd.Sweep(t.Context(), st); err != nil {
		t.Fatal(err)
	}
	if st.meanwhile.Load() != nil {
		t.Fatal("GC listed no manifests")
	}
	r.id = clone
	r.fs = newFixture(t, size).fs
	c := r.open()
	got := make([]byte, size)
	if err := c.ReadAt(t.Context(), got, 0); err != nil || !bytes.Equal(got, old) {
		t.Errorf("the clone lost its content: %v", err)
	}
}
