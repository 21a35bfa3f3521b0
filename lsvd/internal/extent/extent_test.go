package extent

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// model is the flat array that a Map stands for.
type model []Value

func (m model) set(lba, n uint64, v Value) {
	for i := range n {
		m[lba+i] = v.Skip(i)
	}
}

func (m model) del(lba, n uint64) {
	for i := range n {
		m[lba+i] = Value{}
	}
}

func check(t *testing.T, name string, m *Map, want model) {
	t.Helper()
	got := make(model, len(want))
	var last uint64
	m.Walk(0, uint64(len(want)), func(lba, n uint64, v Value) bool {
		if lba < last || n == 0 {
			t.Fatalf("%s: piece %d+%d after %d", name, lba, n, last)
		}
		last = lba + n
		got.set(lba, n, v)
		return true
	})
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("%s: block %d is %v, want %v", name, i, got[i], want[i])
		}
	}
}

func checkGet(t *testing.T, m *Map, want model) {
	t.Helper()
	for lba := uint64(0); lba < uint64(len(want)); {
		v, n, is := m.Get(lba)
		ok := is == Mapped
		if n == 0 || is == Absent {
			t.Fatalf("nothing at %d", lba)
		}
		for i := range min(n, uint64(len(want))-lba) {
			if ok && want[lba+i] != v.Skip(i) || !ok && want[lba+i] != (Value{}) {
				t.Fatalf("block %d is %v, Get(%d) says %v, %v", lba+i, want[lba+i], lba, v.Skip(i), ok)
			}
		}
		lba += n
	}
}

func TestAgainstModel(t *testing.T) {
	const blocks = 300 * LeafBlocks // two levels
	for seed := range uint64(6) {
		rng := rand.New(rand.NewPCG(seed, 1))
		m, want := New(blocks), make(model, blocks)
		live := map[uint64]int64{}
		m.Dropped = func(src, n uint64) { live[src] -= int64(n) }
		var snap *Map
		var snapWant model
		for op := range 1500 {
			lba := rng.Uint64N(blocks)
			n := 1 + rng.Uint64N(min(blocks-lba, []uint64{8, 64, 2000, blocks}[rng.IntN(4)]))
			src := uint64(1 + rng.IntN(50))
			switch rng.IntN(10) {
			case 0:
				m.Delete(lba, n)
				want.del(lba, n)
			case 1:
				m.Set(lba, n, Value{Src: src, Off: Zero})
				want.set(lba, n, Value{Src: src, Off: Zero})
			case 2:
				if op%20 == 0 {
					if snap != nil {
						check(t, "snapshot", snap, snapWant)
					}
					snap = m.Snapshot()
					snapWant = append(model(nil), want...)
				}
			default:
				n = min(n, 256)
				v := Value{Src: src, Off: uint32(rng.IntN(1000))}
				m.Set(lba, n, v)
				want.set(lba, n, v)
				live[src] += int64(n)
			}
		}
		check(t, "map", m, want)
		checkGet(t, m, want)
		have := map[uint64]int64{}
		for _, v := range want {
			if v.Src != 0 && !v.IsZero() {
				have[v.Src]++
			}
		}
		for src, n := range live {
			if have[src] != n {
				t.Fatalf("seed %d: source %d counts %d blocks, has %d", seed, src, n, have[src])
			}
		}
		if snap != nil {
			check(t, "snapshot", snap, snapWant)
		}
	}
}

// TestDroppedLeavesAreReadBack stores leaves outside, drops them and brings them back.
func TestDroppedLeavesAreReadBack(t *testing.T) {
	const blocks = 300 * LeafBlocks
	for seed := range uint64(4) {
		rng := rand.New(rand.NewPCG(seed, 2))
		m, want := New(blocks), make(model, blocks)
		live := map[uint64]int64{}
		m.Dropped = func(src, n uint64) { live[src] -= int64(n) }
		stored, next := map[Page][]Run{}, uint32(1)
		load := func(lba, n uint64) {
			for !m.Loaded(lba, n) {
				type absent struct {
					leaf uint64
					p    Page
				}
				var found []absent
				m.Absent(lba, n, func(leaf uint64, p Page) bool {
					found = append(found, absent{leaf, p})
					return len(found) < 3
				})
				for _, x := range found {
					m.Load(x.leaf, Page{Object: 9, Len: 1}, nil) // of another time: ignored
					m.Load(x.leaf, x.p, slices.Clone(stored[x.p]))
				}
			}
		}
		evicted := false
		for op := range 600 {
			lba := rng.Uint64N(blocks)
			n := 1 + rng.Uint64N(min(blocks-lba, []uint64{8, 300, 3000}[rng.IntN(3)]))
			switch rng.IntN(8) {
			case 0:
				load(lba, n)
				m.Delete(lba, n)
				want.del(lba, n)
			case 1: // a checkpoint, from a snapshot
				type leafPage struct {
					leaf uint64
					p    Page
				}
				var dirty []leafPage
				m.Snapshot().Leaves(func(leaf uint64, p Page, runs []Run) {
					if p.Len > 0 {
						return
					}
					p = Page{Object: 1, Off: next, Len: 1}
					next++
					stored[p] = slices.Clone(runs)
					dirty = append(dirty, leafPage{leaf, p})
				})
				for _, d := range dirty {
					m.SetPage(d.leaf, d.p)
				}
			case 2:
				before := m.Evict(false, 1<<40)
				after := m.Evict(rng.IntN(2) == 0, []int64{0, 1 << 40}[rng.IntN(2)])
				evicted = evicted || after < before
			default:
				n = min(n, 256)
				load(lba, n)
				v := Value{Src: uint64(1 + op%50), Off: uint32(rng.IntN(1000))}
				m.Set(lba, n, v)
				want.set(lba, n, v)
				live[v.Src] += int64(n)
			}
		}
		if !evicted {
			t.Error("nothing was evicted")
		}
		load(0, blocks)
		check(t, "map", m, want)
		have := map[uint64]int64{}
		for _, v := range want {
			have[v.Src]++
		}
		for src, n := range live {
			if have[src] != n {
				t.Fatalf("seed %d: source %d counts %d blocks, has %d", seed, src, n, have[src])
			}
		}
	}
}

func TestAbsentLeafIsNotEmpty(t *testing.T) {
	m := New(LeafBlocks * fan * 2)
	m.SetPage(3, Page{Len: 1})
	for what, f := range map[string]func(){
		"walk":       func() { m.Walk(0, 4*LeafBlocks, func(uint64, uint64, Value) bool { return true }) },
		"set":        func() { m.Set(3*LeafBlocks, 1, Value{Src: 1}) },
		"delete":     func() { m.Delete(0, LeafBlocks*fan) },
		"delete all": func() { m.Delete(0, LeafBlocks*fan*2) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s took an absent leaf for empty", what)
				}
			}()
			f()
		}()
	}
}

func BenchmarkSet(b *testing.B) {
	b.ReportAllocs()
	rng := rand.New(rand.NewPCG(1, 1))
	m := New(1 << 32)
	for i := range b.N {
		if i%4096 == 0 {
			m = New(1 << 32) // as the cuts do
		}
		m.Set(rng.Uint64N(1<<18), 1, Value{Src: uint64(i)})
	}
}

func TestHugeZeroIsCheap(t *testing.T) {
	const blocks = 1 << 28 // 1 TiB
	m := New(blocks)
	if allocs := testing.AllocsPerRun(5, func() { m.Set(3, blocks-5, Value{Src: 9, Off: Zero}) }); allocs > 100 {
		t.Errorf("zeroing 1 TiB allocates %v times", allocs)
	}
	pieces := 0
	m.Walk(0, blocks, func(lba, n uint64, v Value) bool {
		pieces++
		if lba != 3 || n != blocks-5 || !v.IsZero() {
			t.Errorf("piece %d+%d %v", lba, n, v)
		}
		return true
	})
	if pieces != 1 {
		t.Errorf("%d pieces", pieces)
	}
	m.Set(1000, 1, Value{Src: 1})
	m.Delete(0, blocks)
	m.Walk(0, blocks, func(uint64, uint64, Value) bool { t.Error("not empty"); return false })
}
