package lsvd

import (
	"testing"
	"time"

	"miren.dev/runtime/lsvd/store/storesim"
	"miren.dev/runtime/lsvd/store/storetest"
	"miren.dev/runtime/lsvd/vfs/vfssim"
	"miren.dev/runtime/pkg/errs"
)

// TestCrashLoop opens a volume 200 times, writes or only reads, and is killed each time.
// Neither the requests of an opening nor the objects in the store become more after the
// first 100. The volume has every write.
func TestCrashLoop(t *testing.T) {
	for _, writes := range []bool{false, true} {
		ctx, mem, id, fs := t.Context(), &storesim.Mem{}, ID{1}, vfssim.New()
		st := &storetest.Counter{Store: mem}
		if err := Create(ctx, st, id, 1<<20, nil); err != nil {
			t.Fatal(err)
		}
		var requests, objects [2]int // most of lives 68 to 99, and 168 to 199
		for life := range 200 {
			st.Take()
			d, _, err := Open(ctx, st, fs, id, Options{manual: true, LogFile: 64 << 10, CutBytes: 64 << 10})
			if err != nil {
				t.Fatalf("life %d: %v", life, err)
			}
			n := 0
			for _, k := range st.Take() {
				n += k
			}
			p := make([]byte, BlockSize)
			if err := d.ReadAt(ctx, p, 0); err != nil || writes && string(p) != string(blockOf(0, uint32(life))) {
				t.Fatalf("life %d: another content (%v)", life, err)
			}
			if writes {
				if err = d.WriteAt(ctx, blockOf(0, uint32(life+1)), 0, 0); err == nil {
					err = d.Drain(ctx)
				}
				if err == nil {
					err = d.runMaintenance(ctx)
				}
				if err != nil {
					t.Fatalf("life %d: %v", life, err)
				}
			}
			fs.Kill()
			if life%100 < 68 {
				continue
			}
			there := 0
			for range mem.List(ctx, "") {
				there++
			}
			requests[life/100], objects[life/100] = max(requests[life/100], n), max(objects[life/100], there)
		}
		t.Logf("writes %t: %d requests of an opening, %d objects", writes, requests, objects)
		if requests[1] > requests[0] || objects[1] > objects[0] {
			t.Errorf("writes %t: after 100 and 200 crashes %d requests of an opening, %d objects", writes, requests, objects)
		}
	}
}

// TestLateOwnerWithoutFence takes a volume over so often that the fence of its first owner
// is deleted. That one did not run meanwhile; it cannot publish.
func TestLateOwnerWithoutFence(t *testing.T) {
	ctx, st, id := t.Context(), &storesim.Mem{}, ID{1}
	if err := Create(ctx, st, id, 1<<20, nil); err != nil {
		t.Fatal(err)
	}
	now := time.Unix(1, 0)
	first, _, err := Open(ctx, st, vfssim.New(), id, Options{manual: true, Now: func() time.Time { return now }})
	if err == nil {
		err = first.WriteAt(ctx, blockOf(0, 1), 0, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	for range keptFences + 2 {
		now = now.Add(time.Minute)
		if _, _, err := Open(ctx, st, vfssim.New(), id, Options{manual: true, AcceptLoss: true}); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := st.Get(ctx, first.chainRef(0).Key()); !errs.Is(err, errs.NotFound) {
		t.Errorf("the fence of the first owner: %v", err)
	}
	if err := first.Drain(ctx); !errs.Is(err, errs.Conflict) || first.Stats().UnsentBytes == 0 {
		t.Errorf("the first owner publishes: %v", err)
	}
}
