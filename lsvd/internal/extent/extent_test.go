package extent

import (
	"math/rand/v2"
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

func TestAgainstModel(t *testing.T) {
	const blocks = 300 * LeafBlocks // two levels
	for seed := range uint64(6) {
		rng := rand.New(rand.NewPCG(seed, 1))
		m, want := New(blocks), make(model, blocks)
		live := map[uint64]int64{}
		m.Dropped = func(src, n uint64) { live[src] -= int64(n) }
		var snap, base *Map
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
					base, snap = snap, m.Snapshot()
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
		// A snapshot plus its difference to the map is the map.
		for _, from := range []*Map{nil, base, snap} {
			c := New(blocks)
			if from != nil {
				c = from.Snapshot()
			}
			m.Diff(from, func(leaf uint64, runs []Run) {
				if runs == nil {
					c.Delete(leaf*LeafBlocks, LeafBlocks)
				} else {
					c.SetLeaf(leaf, runs)
				}
			})
			check(t, "difference", c, want)
		}
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
