package lsvd

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"iter"
	"testing"
	"time"

	"miren.dev/runtime/lsvd/internal/name"
	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/lsvd/store/storesim"
	"miren.dev/runtime/lsvd/vfs/vfssim"
	"miren.dev/runtime/pkg/errs"
)

// interposed is a store that does something else before some of its requests. The
// requests from the one numbered dies on fail, as for a process that is killed.
type interposed struct {
	store.Store
	n, dies int
	before  map[int]func()
	each    func() error // runs before every request, which its error fails; nil: nothing does
}

var errKilled = errors.New("killed")

func (s *interposed) request() error {
	n := s.n
	s.n++
	if f := s.before[n]; f != nil {
		f()
	}
	if s.each != nil {
		if err := s.each(); err != nil {
			return err
		}
	}
	if s.dies > 0 && n >= s.dies {
		return errKilled
	}
	return nil
}

func (s *interposed) Get(ctx context.Context, key string) ([]byte, store.Version, error) {
	if err := s.request(); err != nil {
		return nil, "", err
	}
	return s.Store.Get(ctx, key)
}

func (s *interposed) Create(ctx context.Context, key string, data []byte) (store.Version, error) {
	if err := s.request(); err != nil {
		return "", err
	}
	return s.Store.Create(ctx, key, data)
}

func (s *interposed) Replace(ctx context.Context, key string, data []byte, old store.Version) (store.Version, error) {
	if err := s.request(); err != nil {
		return "", err
	}
	return s.Store.Replace(ctx, key, data, old)
}

func (s *interposed) List(ctx context.Context, prefix string) iter.Seq2[store.Info, error] {
	if err := s.request(); err != nil {
		return func(yield func(store.Info, error) bool) { yield(store.Info{}, err) }
	}
	return s.Store.List(ctx, prefix)
}

func (s *interposed) Delete(ctx context.Context, key string) error {
	if err := s.request(); err != nil {
		return err
	}
	return s.Store.Delete(ctx, key)
}

// family is a volume with a snapshot, a clone of it, and a second clone that may be made.
type family struct {
	t         *testing.T
	st        *storesim.Mem
	by        *interposed // the requests of origin
	old       []byte      // content of the snapshot
	origin, c *Device
}

var originID, cloneID, lateID = ID{1}, ID{2}, ID{3}

func newFamily(t *testing.T) *family {
	st := &storesim.Mem{}
	f := &family{t: t, st: st, by: &interposed{Store: st}, old: bytes.Repeat([]byte{1}, 8*BlockSize)}
	f.must(Create(t.Context(), st, originID, 1<<20, nil))
	f.origin = f.open(f.by, originID)
	f.write(f.origin, f.old)
	f.must(f.origin.Snapshot(t.Context(), "s"))
	f.must(Clone(t.Context(), st, originID, "s", cloneID, nil))
	f.c = f.open(st, cloneID)
	f.write(f.origin, bytes.Repeat([]byte{2}, len(f.old)))
	f.by.n = 0
	return f
}

func (f *family) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f *family) open(st store.Store, id ID) *Device {
	f.t.Helper()
	d, _, err := Open(f.t.Context(), st, vfssim.New(), id, Options{manual: true, LogFile: 64 << 10, CutBytes: 64 << 10, MaxUnsent: 1 << 20, Compression: CompressNone})
	f.must(err)
	return d
}

func (f *family) write(d *Device, p []byte) {
	f.t.Helper()
	f.must(d.WriteAt(f.t.Context(), p, 0, 0))
	f.must(d.Drain(f.t.Context()))
}

// read checks the content of a clone that exists, or is expected to.
func (f *family) read(what string, id ID, expected bool) {
	f.t.Helper()
	if _, _, err := f.st.Get(f.t.Context(), name.Manifest(id)); errs.Is(err, errs.NotFound) && !expected {
		return
	}
	got := make([]byte, len(f.old))
	d, _, err := Open(f.t.Context(), f.st, vfssim.New(), id, Options{manual: true})
	if err == nil {
		err = d.ReadAt(f.t.Context(), got, 0)
	}
	if err != nil || !bytes.Equal(got, f.old) {
		f.t.Errorf("%s: the clone has lost its content: %v", what, err)
	}
}

func (f *family) deleteSnapshot(id ID, snapshot string) {
	f.must(DeleteSnapshot(f.t.Context(), f.st, id, snapshot))
}

// collect lets the origin delete what its map does not use any more, which is what
// the snapshot has.
func (f *family) collect() {
	f.must(f.origin.checkpoint(f.t.Context(), false))
	_, _, err := Sweep(f.t.Context(), f.st)
	f.must(err)
}

// leave lets the first clone give up everything that it has of the origin.
func (f *family) leave() {
	f.write(f.c, bytes.Repeat([]byte{3}, len(f.old)))
	f.must(f.c.checkpoint(f.t.Context(), false))
}

// TestCheckpointBesideClones has a checkpoint delete objects, and between two
// of its requests each something that makes another manifest name them.
func TestCheckpointBesideClones(t *testing.T) {
	for what, steps := range map[string]func(f *family) (first, second func()){
		"clone, then the snapshot goes": func(f *family) (first, second func()) {
			return func() { f.must(Clone(t.Context(), f.st, originID, "s", lateID, nil)) }, func() { f.deleteSnapshot(originID, "s") }
		},
		"snapshot of the clone, clone of that": func(f *family) (first, second func()) {
			f.deleteSnapshot(originID, "s")
			return func() { f.must(f.c.Snapshot(t.Context(), "t")); f.leave() },
				func() { f.must(Clone(t.Context(), f.st, cloneID, "t", lateID, nil)); f.deleteSnapshot(cloneID, "t") }
		},
		"clone of the clone is opened": func(f *family) (first, second func()) {
			f.deleteSnapshot(originID, "s")
			f.must(f.c.Snapshot(t.Context(), "t"))
			f.leave()
			return func() { f.must(Clone(t.Context(), f.st, cloneID, "t", lateID, nil)); f.deleteSnapshot(cloneID, "t") },
				func() { f.must(Delete(t.Context(), f.st, cloneID)) }
		},
	} {
		requests, runs := 1, 0
		for i := 0; i < requests; i++ {
			for j := i; j < requests; j++ {
				f := newFamily(t)
				first, second := steps(f)
				f.by.before = map[int]func(){i: first, j: second}
				if i == j {
					f.by.before[i] = func() { first(); second() }
				}
				f.must(f.origin.checkpoint(t.Context(), false))
				requests = max(requests, f.by.n)
				if f.by.n <= j {
					break
				}
				f.by.before = nil
				f.collect()
				f.read(what, lateID, true)
				runs++
			}
		}
		if runs < 20 {
			t.Errorf("%s: only %d runs", what, runs)
		}
	}
}

// TestCloneBesideDeletion deletes the snapshot and collects garbage between any two
// requests of a clone, which fails then or has everything.
func TestCloneBesideDeletion(t *testing.T) {
	for k, done := 0, false; !done; k++ {
		f := newFamily(t)
		st := &interposed{Store: f.st, before: map[int]func(){k: func() { f.deleteSnapshot(originID, "s"); f.must(Delete(t.Context(), f.st, cloneID)); f.collect() }}}
		err := Clone(t.Context(), st, originID, "s", lateID, nil)
		if done = st.n <= k; done {
			st.before[k]()
		}
		if err != nil && (!errs.Is(err, errs.NotFound) || done) {
			t.Fatalf("before request %d: %v", k, err)
		}
		f.read("after the deletion", lateID, err == nil)
		if _, _, gerr := f.st.Get(t.Context(), name.Manifest(lateID)); err != nil && !errs.Is(gerr, errs.NotFound) {
			t.Errorf("before request %d: a clone that failed is there: %v", k, gerr)
		}
	}
}

// TestCloneKilled kills a clone, and the deletion of one, before any of its requests.
func TestCloneKilled(t *testing.T) {
	for k, done := 1, false; !done; k++ {
		f := newFamily(t)
		st := &interposed{Store: f.st, dies: k}
		err := Clone(t.Context(), st, originID, "s", lateID, nil)
		if done = err == nil; !done && !errors.Is(err, errKilled) {
			t.Fatal(err)
		}
		f.deleteSnapshot(originID, "s")
		f.leave()
		f.collect()
		f.read("after the clone was killed", lateID, done)
	}
	for k, done := 1, false; !done; k++ {
		f := newFamily(t)
		f.must(f.c.Snapshot(t.Context(), "t"))
		f.must(Clone(t.Context(), f.st, cloneID, "t", lateID, nil))
		f.deleteSnapshot(originID, "s")
		f.deleteSnapshot(cloneID, "t")
		err := Delete(t.Context(), &interposed{Store: f.st, dies: k}, cloneID)
		if done = err == nil; !done && !errors.Is(err, errKilled) {
			t.Fatal(err)
		}
		f.collect()
		f.read("after the deletion was killed", lateID, true)
	}
}

// TestSweepDeletesMarks deletes the marks that clones left, and no other.
func TestSweepDeletesMarks(t *testing.T) {
	f := newFamily(t)
	mark := func(clone ID, age time.Duration) string {
		key := name.Clone(originID, clone)
		_, err := f.st.Create(t.Context(), key, binary.LittleEndian.AppendUint64(nil, uint64(time.Now().Add(-age).UnixNano())))
		f.must(err)
		return key
	}
	old, fresh := mark(ID{8}, 25*time.Hour), mark(ID{9}, 2*time.Hour)
	f.collect()
	for key, want := range map[string]errs.Class{old: errs.NotFound, fresh: "", name.Clone(originID, cloneID): ""} {
		if _, _, err := f.st.Get(t.Context(), key); errs.ClassOf(err) != want {
			t.Errorf("%s: %v, want %q", key, err, want)
		}
	}
	// A clone whose mark may be deleted at any time does not come to be.
	mark(lateID, 25*time.Hour)
	if err := Clone(t.Context(), f.st, originID, "s", lateID, nil); !errs.Is(err, errs.Unavailable) {
		t.Errorf("a clone with an old mark: %v", err)
	}
	if _, _, err := f.st.Get(t.Context(), name.Manifest(lateID)); !errs.Is(err, errs.NotFound) {
		t.Errorf("it is there: %v", err)
	}
}

// TestManyClones has more clones than a checkpoint reads: what they may name stays
// for Sweep, and what the snapshot cannot have is deleted.
func TestManyClones(t *testing.T) {
	f := newFamily(t)
	for i := range 200 {
		f.must(Clone(t.Context(), f.st, originID, "s", ID{100, byte(i)}, nil))
	}
	f.deleteSnapshot(originID, "s")
	f.by.n = 0
	f.must(f.origin.checkpoint(t.Context(), false))
	if f.by.n > 200 {
		t.Errorf("a checkpoint took %d requests", f.by.n)
	}
	objects := func() (n int) {
		for range f.st.List(t.Context(), name.Prefix(originID)) {
			n++
		}
		return n
	}
	f.write(f.origin, bytes.Repeat([]byte{4}, len(f.old)))
	f.by.n = 0
	before := objects()
	f.must(f.origin.checkpoint(t.Context(), false))
	if f.by.n > 8 || objects() >= before {
		t.Errorf("a checkpoint that frees what no clone has took %d requests; %d objects became %d", f.by.n, before, objects())
	}
	for i := range 200 {
		f.must(Delete(t.Context(), f.st, ID{100, byte(i)}))
	}
	f.leave()
	f.must(f.c.Close(t.Context()))
	before = objects()
	f.collect()
	if objects() >= before {
		t.Errorf("%d objects became %d after all clones were deleted", before, objects())
	}
}
