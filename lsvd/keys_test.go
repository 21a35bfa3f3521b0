package lsvd_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"hash/crc32"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"

	"miren.dev/runtime/lsvd"
	"miren.dev/runtime/lsvd/inspect"
	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/lsvd/store/storesim"
	"miren.dev/runtime/lsvd/vfs/vfssim"
	"miren.dev/runtime/pkg/errs"
)

const sealedDisk = 1 << 20

var (
	userKey = bytes.Repeat([]byte{7}, 32)
	nextKey = bytes.Repeat([]byte{8}, 32)
)

// sealed is a closed volume with two snapshots: its objects, and what they hold.
type sealed struct {
	id      lsvd.ID
	objects map[string][]byte
	images  map[string][]byte // by snapshot; "" is the volume
}

// newSealed makes a volume in a store of its own. Two of them have objects of the same names, kinds and sizes.
func newSealed(t *testing.T, id lsvd.ID, key []byte, seed byte) *sealed {
	t.Helper()
	ctx, st := t.Context(), &storesim.Mem{}
	if err := lsvd.Create(ctx, st, id, sealedDisk, key); err != nil {
		t.Fatal(err)
	}
	d, _, err := lsvd.Open(ctx, st, vfssim.New(), id, lsvd.Options{Key: key, LogFile: 1 << 20, CutBytes: 256 << 10, CutAge: time.Hour, MaxUnsent: 4 << 20, Checkpoint: 1000})
	if err != nil {
		t.Fatal(err)
	}
	s := &sealed{id: id, images: map[string][]byte{}}
	image, data := make([]byte, sealedDisk), make([]byte, sealedDisk)
	rand.NewChaCha8([32]byte{seed}).Read(data)
	write := func(off, n int64) error {
		copy(image[off:off+n], data[off:])
		return d.WriteAt(ctx, data[off:off+n], off, 0)
	}
	for _, step := range []func() error{
		func() error { return write(0, 256<<10) },
		func() error { return d.Drain(ctx) },
		func() error { s.images["one"] = bytes.Clone(image); return d.Snapshot(ctx, "one") },
		func() error { clear(image[:252<<10]); return d.Trim(ctx, 0, 252<<10, 0) },
		func() error { return write(512<<10, 64<<10) },
		func() error { return d.Drain(ctx) },
		func() error { return write(512<<10, 32<<10) },
		func() error { return d.Drain(ctx) },
		func() error { _, err := d.GC(ctx, 1); return err },
		func() error { return write(800<<10, 16<<10) },
		func() error { s.images["two"] = bytes.Clone(image); return d.Snapshot(ctx, "two") },
		func() error { return write(900<<10, 16<<10) },
		func() error { s.images[""] = image; return d.Close(ctx) },
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	s.objects = objectsOf(t, st)
	return s
}

func objectsOf(t *testing.T, st store.Store) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	for _, k := range keys(t, st, "") {
		b, _, err := st.Get(t.Context(), k)
		if err != nil {
			t.Fatal(err)
		}
		out[k] = b
	}
	return out
}

func storeOf(t *testing.T, objects map[string][]byte) *storesim.Mem {
	t.Helper()
	st := &storesim.Mem{}
	for k, b := range objects {
		if _, err := st.Create(t.Context(), k, b); err != nil {
			t.Fatal(err)
		}
	}
	return st
}

// read reads the volume or a snapshot of it from a store.
func (s *sealed) read(t *testing.T, st store.Store, snapshot string, key []byte) ([]byte, error) {
	t.Helper()
	got := make([]byte, sealedDisk)
	if snapshot != "" {
		var mu sync.Mutex
		err := lsvd.ReadSnapshot(t.Context(), st, s.id, snapshot, key, func(off int64, b []byte) error {
			mu.Lock()
			defer mu.Unlock()
			copy(got[off:], b)
			return nil
		})
		return got, err
	}
	d, _, err := lsvd.Open(t.Context(), st, vfssim.New(), s.id, lsvd.Options{Key: key, LogFile: 1 << 20, CacheBytes: 1})
	if err != nil {
		return nil, err
	}
	defer d.Close(context.Background())
	return got, d.ReadAt(t.Context(), got, 0)
}

// kindOf is the part of a key that tells the format of its object.
func kindOf(key string) string {
	parts := strings.Split(key, "/")
	if parts[0] == "objects" {
		return parts[2]
	}
	return parts[0]
}

// repaired gives an object right checksums, as an attacker can.
func repaired(kind string, b []byte) []byte {
	table := crc32.MakeTable(crc32.Castagnoli)
	put := func(at, from, to int) { binary.LittleEndian.PutUint32(b[at:], crc32.Checksum(b[from:to], table)) }
	n := len(b)
	switch kind {
	case "data", "gc":
		if n > 140 {
			t := n - 140
			binary.LittleEndian.PutUint64(b[t+104:], xxhash.Sum64(b[:t]))
			if index := int(binary.LittleEndian.Uint32(b[t+80:])); index <= t {
				put(t+84, t-index, t)
			}
		}
	case "map":
		if dir := int(binary.LittleEndian.Uint32(b[n-76+16:])); dir <= n-76 {
			put(n-8, n-76-dir, n-76)
		}
	}
	put(n-4, max(0, n-140), n-4)
	if kind != "data" && kind != "gc" {
		from := 0
		if kind == "map" {
			from = n - 76
		}
		put(n-4, from, n-4)
	}
	return b
}

// TestTamperedStoreIsNoticed changes every object of an encrypted volume in every way that is open to something that
// writes to the store and has no key: bits, with right checksums; objects in the place of others of the volume, of
// another volume with the same user's key, and of one with the same identity; plain ones. What is then read is what was
// written, or an error.
func TestTamperedStoreIsNoticed(t *testing.T) {
	id, other := lsvd.ID{1}, lsvd.ID{2}
	s, sibling := newSealed(t, id, userKey, 1), newSealed(t, other, userKey, 2)
	twin, plain := newSealed(t, id, userKey, 3), newSealed(t, id, nil, 4)
	for snapshot, want := range s.images {
		if got, err := s.read(t, storeOf(t, s.objects), snapshot, userKey); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("untouched %q: %v", snapshot, err)
		}
	}
	if r, err := inspect.Check(t.Context(), storeOf(t, s.objects), id, userKey, true, nil); err != nil || !r.OK() {
		t.Fatalf("check: %+v, %v", r, err)
	}
	noticed := map[string]int{}
	attack := func(how, key string, b []byte) {
		objects := maps.Clone(s.objects)
		objects[key] = b
		for snapshot, want := range s.images {
			got, err := s.read(t, storeOf(t, objects), snapshot, userKey)
			if err != nil {
				noticed[kindOf(key)+" "+how]++
			} else if !bytes.Equal(got, want) {
				t.Errorf("%s, %s: %q reads as something else", key, how, snapshot)
			}
		}
	}
	rng := rand.New(rand.NewPCG(1, 5))
	for _, key := range slices.Sorted(maps.Keys(s.objects)) {
		kind := kindOf(key)
		for i := range 12 {
			b := bytes.Clone(s.objects[key])
			at := rng.IntN(len(b))
			if i%2 == 0 {
				at = len(b) - 1 - rng.IntN(min(len(b), 200))
			}
			b[at] ^= 1 << rng.IntN(8)
			attack("bits", key, repaired(kind, b))
		}
		for _, from := range slices.Sorted(maps.Keys(s.objects)) {
			if from != key && kindOf(from) == kind {
				attack("another name", key, s.objects[from])
				// With the number that it should have.
				b := bytes.Clone(s.objects[from])
				if kind == "data" || kind == "gc" {
					o := s.objects[key]
					copy(b[len(b)-140+16:len(b)-140+64], o[len(o)-140+16:])
					attack("another name", key, repaired(kind, b))
				}
			}
		}
		if b := sibling.objects[strings.Replace(key, id.String(), other.String(), 1)]; b != nil {
			attack("another volume", key, b)
			attack("another volume", key, repaired(kind, bytes.ReplaceAll(b, other[:], id[:])))
		}
		if b := twin.objects[key]; b != nil {
			attack("same identity", key, b)
		}
		if b := plain.objects[key]; b != nil {
			attack("plain", key, b)
		}
	}
	for _, kind := range []string{"data", "gc", "map", "manifests", "keys"} {
		for _, how := range []string{"bits", "another name", "another volume", "same identity", "plain"} {
			if kind == "keys" && (how == "another name" || how == "plain") || kind == "gc" && how == "another name" {
				continue // there are none
			}
			if noticed[kind+" "+how] == 0 {
				t.Errorf("%s: %s was never noticed: %v", kind, how, noticed)
			}
		}
	}
	// All of it at once: a plain volume of the same identity.
	if _, err := s.read(t, storeOf(t, plain.objects), "", userKey); !errs.Is(err, errs.FailedPrecondition) || !strings.Contains(err.Error(), "is not encrypted") {
		t.Errorf("a plain volume in its place: %v", err)
	}
}

// TestTamperedChainIsRefused puts plain segments and those of a volume of the same identity behind the manifest, where
// only the chain tells that they belong to the volume.
func TestTamperedChainIsRefused(t *testing.T) {
	ctx := t.Context()
	id, opts := lsvd.ID{1}, lsvd.Options{LogFile: 1 << 20, CutAge: time.Hour}
	chain := func(key []byte) (*storesim.Mem, *vfssim.Sim, string) {
		st, fs := &storesim.Mem{}, vfssim.New()
		if err := lsvd.Create(ctx, st, id, sealedDisk, key); err != nil {
			t.Fatal(err)
		}
		o := opts
		o.Key = key
		d, _, err := lsvd.Open(ctx, st, fs, id, o)
		if err == nil {
			err = d.WriteAt(ctx, make([]byte, 8<<10), 4<<10, 0)
		}
		if err == nil {
			err = d.Drain(ctx)
		}
		if err != nil {
			t.Fatal(err)
		}
		gone, cancel := context.WithCancel(ctx)
		cancel()
		d.Close(gone)
		return st, fs, keys(t, st, "objects/"+id.String()+"/data/")[0]
	}
	for what, key := range map[string][]byte{"plain": nil, "of other data keys": userKey} {
		st, fs, key1 := chain(userKey)
		from, _, key2 := chain(key)
		if key1 != key2 {
			t.Fatal(key1, key2)
		}
		b, _, err := from.Get(ctx, key2)
		if err == nil {
			err = st.Delete(ctx, key1)
		}
		if err == nil {
			_, err = st.Create(ctx, key1, b)
		}
		if err != nil {
			t.Fatal(err)
		}
		o := opts
		o.Key = userKey
		if _, _, err := lsvd.Open(ctx, st, fs, id, o); !errs.Is(err, errs.Corrupt) {
			t.Errorf("segment of the chain that is %s: %v", what, err)
		}
	}
}

// TestKeyMustFit: every reader of a volume refuses it with a key that it does not have, or without its own.
func TestKeyMustFit(t *testing.T) {
	ctx, id := t.Context(), lsvd.ID{1}
	for _, own := range [][]byte{nil, userKey} {
		s := newSealed(t, id, own, 1)
		st := storeOf(t, s.objects)
		for _, key := range [][]byte{nil, userKey, nextKey} {
			if bytes.Equal(key, own) {
				continue
			}
			_, open := s.read(t, st, "", key)
			_, snapshot := s.read(t, st, "one", key)
			_, dump := inspect.Dump(ctx, st, id, "", key)
			_, check := inspect.Check(ctx, st, id, key, false, nil)
			_, log := inspect.CheckLog(ctx, st, vfssim.New(), id, key)
			for what, err := range map[string]error{"open": open, "snapshot": snapshot, "dump": dump, "check": check, "log": log,
				"clone": lsvd.Clone(ctx, st, id, "one", lsvd.NewID(), key)} {
				if !errs.Is(err, errs.FailedPrecondition) {
					t.Errorf("%s, encrypted %v, key %v: %v", what, own != nil, key != nil, err)
				}
			}
		}
		delete(s.objects, "keys/"+id.String())
		if _, err := s.read(t, storeOf(t, s.objects), "", userKey); own != nil && (!errs.Is(err, errs.Corrupt) || !strings.Contains(err.Error(), "keys/")) {
			t.Errorf("without its data keys: %v", err)
		}
	}
}

// TestRotationDiesAnywhere ends a rotation before and after each of its requests: then exactly one key opens the volume
// and its snapshots, and a repetition completes it. A clone keeps its key.
func TestRotationDiesAnywhere(t *testing.T) {
	ctx := t.Context()
	s := newSealed(t, lsvd.ID{1}, userKey, 1)
	base, clone := storeOf(t, s.objects), lsvd.ID{9}
	if err := lsvd.Clone(ctx, base, s.id, "one", clone, userKey); err != nil {
		t.Fatal(err)
	}
	s.objects = objectsOf(t, base)
	died := errs.New(errs.Unavailable, "the process died")
	done := false
	for at := 0; !done; at++ {
		for _, after := range []bool{false, true} {
			st, n := storeOf(t, s.objects), 0
			f := &storesim.Fault{Store: st, Hook: func(storesim.Op, string) (a storesim.Action) {
				if n == at && after {
					a.After = died
				} else if n >= at {
					a.Before = died
				}
				n++
				return a
			}}
			done = lsvd.RotateKey(ctx, f, s.id, userKey, nextKey) == nil
			opens := 0
			for _, key := range [][]byte{userKey, nextKey} {
				for snapshot, want := range s.images {
					got, err := s.read(t, st, snapshot, key)
					switch {
					case err == nil && bytes.Equal(got, want):
						opens++
					case !errs.Is(err, errs.FailedPrecondition):
						t.Errorf("died at %d, after %v: %v", at, after, err)
					}
				}
			}
			if opens != len(s.images) {
				t.Errorf("died at %d, after %v: of the volume and its snapshots, %d are opened by one of the keys", at, after, opens)
			}
			if err := lsvd.RotateKey(ctx, st, s.id, userKey, nextKey); err != nil {
				t.Errorf("repetition of what died at %d, after %v: %v", at, after, err)
			}
			if got, err := s.read(t, st, "", nextKey); err != nil || !bytes.Equal(got, s.images[""]) {
				t.Errorf("after the repetition: %v", err)
			}
			if _, err := s.read(t, st, "", userKey); !errs.Is(err, errs.FailedPrecondition) {
				t.Errorf("the old key opens it: %v", err)
			}
			c := &sealed{id: clone}
			if got, err := c.read(t, st, "", userKey); err != nil || !bytes.Equal(got, s.images["one"]) {
				t.Errorf("the clone with its own key: %v", err)
			}
		}
	}
	if err := lsvd.RotateKey(ctx, storeOf(t, s.objects), s.id, nextKey, userKey); err != nil {
		t.Errorf("to the key that it has: %v", err)
	}
	if err := lsvd.RotateKey(ctx, storeOf(t, s.objects), s.id, nextKey, bytes.Repeat([]byte{9}, 32)); !errs.Is(err, errs.FailedPrecondition) {
		t.Errorf("from a wrong key: %v", err)
	}
}

// TestRotationOfOpenDisk: an open disk goes on after its key was rotated; the next Open needs the new one.
func TestRotationOfOpenDisk(t *testing.T) {
	ctx, st, fs, id := t.Context(), &storesim.Mem{}, vfssim.New(), lsvd.ID{1}
	if err := lsvd.Create(ctx, st, id, sealedDisk, userKey); err != nil {
		t.Fatal(err)
	}
	opts := lsvd.Options{Key: userKey, LogFile: 1 << 20}
	d, _, err := lsvd.Open(ctx, st, fs, id, opts)
	if err != nil {
		t.Fatal(err)
	}
	if err := lsvd.RotateKey(ctx, st, id, userKey, nextKey); err != nil {
		t.Fatal(err)
	}
	p := bytes.Repeat([]byte{3}, lsvd.BlockSize)
	if err := d.WriteAt(ctx, p, 0, 0); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if _, _, err := lsvd.Open(ctx, st, fs, id, opts); !errs.Is(err, errs.FailedPrecondition) {
		t.Errorf("with the old key: %v", err)
	}
	opts.Key = nextKey
	if d, _, err = lsvd.Open(ctx, st, fs, id, opts); err != nil {
		t.Fatal(err)
	}
	defer d.Close(ctx)
	got := make([]byte, lsvd.BlockSize)
	if err := d.ReadAt(ctx, got, 0); err != nil || !bytes.Equal(got, p) {
		t.Errorf("reads otherwise: %v", err)
	}
}

// TestCloneOutlivesItsOrigin: a clone of a clone has the data keys of all that it reads from, so it stays whole when
// they are gone with their keys, and has a user's key of its own.
func TestCloneOutlivesItsOrigin(t *testing.T) {
	ctx := t.Context()
	s := newSealed(t, lsvd.ID{1}, userKey, 1)
	st := storeOf(t, s.objects)
	open := func(id lsvd.ID, key []byte) *lsvd.Device {
		d, _, err := lsvd.Open(ctx, st, vfssim.New(), id, lsvd.Options{Key: key, LogFile: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	first, second := lsvd.ID{2}, lsvd.ID{3}
	if err := lsvd.Clone(ctx, st, s.id, "two", first, userKey); err != nil {
		t.Fatal(err)
	}
	if err := lsvd.RotateKey(ctx, st, first, userKey, nextKey); err != nil {
		t.Fatal(err)
	}
	d, image := open(first, nextKey), bytes.Clone(s.images["two"])
	p := bytes.Repeat([]byte{5}, lsvd.BlockSize)
	copy(image, p)
	for _, step := range []func() error{
		func() error { return d.WriteAt(ctx, p, 0, 0) },
		func() error { return d.Snapshot(ctx, "later") },
		func() error { return d.Close(ctx) },
		func() error { return lsvd.Clone(ctx, st, first, "later", second, nextKey) },
		func() error { return lsvd.DeleteSnapshot(ctx, st, s.id, "one") },
		func() error { return lsvd.DeleteSnapshot(ctx, st, s.id, "two") },
		func() error { return lsvd.Delete(ctx, st, s.id) },
		func() error { return lsvd.DeleteSnapshot(ctx, st, first, "later") },
		func() error { return lsvd.Delete(ctx, st, first) },
		func() error { _, _, err := lsvd.Sweep(ctx, st); return err },
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	if left := keys(t, st, "keys/"); !slices.Equal(left, []string{"keys/" + second.String()}) {
		t.Errorf("keys are left: %v", left)
	}
	c := &sealed{id: second}
	if got, err := c.read(t, st, "", nextKey); err != nil || !bytes.Equal(got, image) {
		t.Errorf("the last clone: %v", err)
	}
	if r, err := inspect.Check(ctx, st, second, nextKey, true, nil); err != nil || !r.OK() {
		t.Errorf("check: %+v, %v", r, err)
	}
}

// TestCreationDiesAnywhere ends the creation of a volume and of a clone after each request: what stays can be deleted,
// and another attempt succeeds.
func TestCreationDiesAnywhere(t *testing.T) {
	ctx := t.Context()
	s := newSealed(t, lsvd.ID{1}, userKey, 1)
	died := errs.New(errs.Unavailable, "the process died")
	for what, create := range map[string]func(store.Store, lsvd.ID) error{
		"create": func(st store.Store, id lsvd.ID) error { return lsvd.Create(ctx, st, id, sealedDisk, userKey) },
		"clone":  func(st store.Store, id lsvd.ID) error { return lsvd.Clone(ctx, st, s.id, "one", id, userKey) },
	} {
		done := false
		for at := 0; !done; at++ {
			st, n, half := storeOf(t, s.objects), 0, lsvd.ID{4}
			f := &storesim.Fault{Store: st, Hook: func(storesim.Op, string) (a storesim.Action) {
				if n == at {
					a.After = died
				} else if n > at {
					a.Before = died
				}
				n++
				return a
			}}
			if done = create(f, half) == nil; done {
				break
			}
			sweep(t, st)
			if err := create(st, lsvd.ID{5}); err != nil {
				t.Errorf("%s again, after it died at %d: %v", what, at, err)
			}
			if err := lsvd.Delete(ctx, st, half); err != nil && !errs.Is(err, errs.NotFound) {
				t.Errorf("delete of what %s left at %d: %v", what, at, err)
			}
			sweep(t, st)
			want := []string{"keys/" + s.id.String(), "keys/" + lsvd.ID{5}.String()}
			if left := keys(t, st, "keys/"); !slices.Equal(left, want) {
				t.Errorf("%s died at %d: keys %v", what, at, left)
			}
		}
	}
}
