package lsvd

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"

	"miren.dev/runtime/lsvd/store/storesim"
	"miren.dev/runtime/lsvd/store/storetest"
	"miren.dev/runtime/lsvd/vfs"
	"miren.dev/runtime/lsvd/vfs/vfssim"
)

// fleetSteps uses one volume of st in all ways and returns the requests of each step.
func fleetSteps(t *testing.T, st *storetest.Counter) []map[string]int {
	t.Helper()
	var steps []map[string]int
	ctx, rng := t.Context(), rand.New(rand.NewPCG(7, 7))
	step := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		n := st.Take()
		if n == nil {
			n = map[string]int{}
		}
		n[what] = 0
		steps = append(steps, n)
	}
	open := func(id ID, fs vfs.FS) *Device {
		t.Helper()
		d, _, err := Open(ctx, st, fs, id, Options{manual: true, Random: random{rng}, LogFile: 1 << 20, CutBytes: 256 << 10, MaxUnsent: 64 << 20, Checkpoint: 2})
		step("open", err)
		return d
	}
	write := func(d *Device) {
		t.Helper()
		p := make([]byte, 64<<10)
		for range 64 {
			random{rng}.Read(p)
			if err := d.WriteAt(ctx, p, rng.Int64N(4<<20/BlockSize)*BlockSize, 0); err != nil {
				t.Fatal(err)
			}
		}
		step("maintenance", d.runMaintenance(ctx))
		step("drain", d.Drain(ctx))
		step("checkpoint", d.checkpoint(ctx, false))
		_, err := d.GC(ctx, 1)
		step("collect", err)
	}
	id, clone := ID{200}, ID{201}
	step("create", Create(ctx, st, id, 8<<20, nil))
	fs, cfs := vfssim.New(), vfssim.New()
	d := open(id, fs)
	write(d)
	step("snapshot", d.Snapshot(ctx, "s"))
	write(d)
	step("clone", Clone(ctx, st, id, "s", clone, nil))
	write(d)
	c := open(clone, cfs)
	write(c)
	step("snapshot of clone", c.Snapshot(ctx, "s"))
	step("close clone", c.Close(ctx))
	step("delete snapshot", DeleteSnapshot(ctx, st, id, "s"))
	write(d)
	step("close", d.Close(ctx))
	d = open(id, fs)
	step("close", d.Close(ctx))
	step("delete", Delete(ctx, st, id))
	c = open(clone, cfs)
	write(c)
	step("close clone", c.Close(ctx))
	return steps
}

// TestRequestsAmongOthers holds that the requests for a volume do not depend on how
// many others the store has, nor on clones among them.
func TestRequestsAmongOthers(t *testing.T) {
	ctx := t.Context()
	alone := fleetSteps(t, &storetest.Counter{Store: &storesim.Mem{}})
	st := &storesim.Mem{}
	for i := range 900 {
		id := ID{byte(i), byte(i >> 8), 1}
		if err := Create(ctx, st, id, 1<<20, nil); err != nil {
			t.Fatal(err)
		}
		if i%10 > 0 {
			continue
		}
		d, _, err := Open(ctx, st, vfssim.New(), id, Options{manual: true})
		if err == nil {
			err = d.WriteAt(ctx, make([]byte, BlockSize), 0, 0)
		}
		if err == nil {
			err = d.Snapshot(ctx, "s")
		}
		if err == nil {
			err = Clone(ctx, st, id, "s", ID{byte(i), byte(i >> 8), 2}, nil)
		}
		if err == nil && i%20 > 0 {
			err = d.Close(ctx)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	among := fleetSteps(t, &storetest.Counter{Store: st})
	for i, n := range alone {
		if !maps.Equal(n, among[i]) {
			t.Errorf("step %d: %v alone, %v among 1000", i, n, among[i])
		} else if testing.Verbose() {
			t.Log(i, fmt.Sprint(n))
		}
	}
}

// TestCleanOpeningsLeaveNothing opens and closes a volume many times: the objects that
// the next opening lists do not become more.
func TestCleanOpeningsLeaveNothing(t *testing.T) {
	st, id, fs := &storesim.Mem{}, ID{1}, vfssim.New()
	if err := Create(t.Context(), st, id, 1<<20, nil); err != nil {
		t.Fatal(err)
	}
	objects := func() (n int) {
		for range st.List(t.Context(), "") {
			n++
		}
		return n
	}
	before := 0
	for i := range 20 {
		d, _, err := Open(t.Context(), st, fs, id, Options{manual: true})
		if err == nil && i == 0 {
			err = d.WriteAt(t.Context(), blockOf(0, 1), 0, 0)
		}
		if err == nil {
			err = d.Close(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			before = objects()
		}
	}
	if n := objects(); n > before {
		t.Errorf("%d objects became %d", before, n)
	}
}
