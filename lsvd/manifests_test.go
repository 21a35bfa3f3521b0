package lsvd

import (
	"context"
	"strings"
	"testing"
	"time"

	"miren.dev/runtime/lsvd/internal/name"
	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/lsvd/store/storesim"
	"miren.dev/runtime/lsvd/vfs/vfssim"
	"miren.dev/runtime/testsupport/wait"
)

// slowManifests is a store that does not answer reads of the manifests of volumes other
// than one, nor of its snapshots, until it is told to.
type slowManifests struct {
	store.Store
	own    string
	asked  chan struct{} // receives once
	answer chan struct{} // closed: answer
}

func (s *slowManifests) Get(ctx context.Context, key string) ([]byte, store.Version, error) {
	if strings.HasPrefix(key, "manifests/") && key != s.own {
		select {
		case s.asked <- struct{}{}:
		default:
		}
		select {
		case <-s.answer:
		case <-ctx.Done():
			return nil, "", ctx.Err()
		}
	}
	return s.Store.Get(ctx, key)
}

// TestPublishingBesideManifests: while the manifests of clones and snapshots are read, to
// collect garbage and to delete it, a disk publishes, makes snapshots, and closes. What no
// manifest names is deleted once they were read, and what clones have stays.
func TestPublishingBesideManifests(t *testing.T) {
	mem, id, fs := &storesim.Mem{}, ID{1}, vfssim.New()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := Create(ctx, mem, id, 8<<20, nil); err != nil {
		t.Fatal(err)
	}
	opts := Options{LogFile: 1 << 20, CutBytes: 64 << 10, CutAge: 20 * time.Millisecond, Checkpoint: 2}
	open := func(st store.Store) *Device {
		t.Helper()
		d, _, err := Open(ctx, st, fs, id, opts)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	write := func(d *Device, stamp uint32) {
		t.Helper()
		for i := range 64 {
			must(d.WriteAt(ctx, blockOf(i, stamp), int64(i)*BlockSize, 0))
		}
		must(d.Drain(ctx))
	}
	d := open(mem)
	write(d, 1)
	must(d.Snapshot(ctx, "s"))
	must(Clone(ctx, mem, id, "s", ID{2}, nil))
	must(Clone(ctx, mem, id, "s", ID{3}, nil))
	must(d.Close(ctx))

	st := &slowManifests{Store: mem, own: name.Manifest(id), asked: make(chan struct{}, 1), answer: make(chan struct{})}
	d = open(st)
	// Overwriting leaves garbage that the snapshot may have.
	write(d, 2)
	wait.Receive(t, "manifests are read", st.asked)
	before := d.Stats().Published
	write(d, 3)
	must(d.Snapshot(ctx, "t"))
	write(d, 4)
	if now := d.Stats(); now.Published == before || now.UnsentBytes > 0 {
		t.Errorf("nothing was published while manifests are read: %+v", now)
	}
	must(DeleteSnapshot(ctx, mem, id, "t"))
	close(st.answer)
	// All that only "t" had, or none, goes after the next checkpoint of the disk.
	write(d, 5)
	must(d.Close(ctx))
	objects := map[string]bool{}
	for i, err := range mem.List(ctx, name.Prefix(id)+name.Data.String()) {
		must(err)
		objects[i.Key] = true
	}
	m := d.man
	for _, s := range m.Segments {
		if s.Ref.Volume == id && s.Ref.Kind == name.Data && !objects[s.Ref.Key()] {
			t.Errorf("segment %s is named and was deleted", s.Ref)
		}
	}
	for _, c := range []ID{{2}, {3}} {
		x, _, err := Open(ctx, mem, vfssim.New(), c, opts)
		must(err)
		p := make([]byte, BlockSize)
		for i := range 64 {
			must(x.ReadAt(ctx, p, int64(i)*BlockSize))
			if string(p) != string(blockOf(i, 1)) {
				t.Errorf("clone %s: block %d has another content", c, i)
			}
		}
		must(x.Close(ctx))
	}
	if n := len(d.doomed); n > 0 {
		t.Errorf("%d objects still wait to be deleted", n)
	}
}
