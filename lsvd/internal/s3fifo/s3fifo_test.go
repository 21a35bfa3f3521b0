package s3fifo

import (
	"math/rand/v2"
	"testing"
)

// keys runs a policy over keys as a cache of one byte per entry.
type keys struct {
	p    *Policy
	ids  map[int]int32
	back map[int32]int
	free []int32
	next int32
	hits int
}

func newKeys(limit int64) *keys {
	return &keys{p: New(limit, limit/10, 1), ids: map[int]int32{}, back: map[int32]int{}}
}

func (k *keys) read(key int) {
	if id, ok := k.ids[key]; ok {
		k.p.Touch(id)
		k.hits++
		return
	}
	for !k.p.Fits(1) {
		id, ok := k.p.Victim()
		if !ok {
			return
		}
		delete(k.ids, k.back[id])
		delete(k.back, id)
		k.free = append(k.free, id)
	}
	id := k.next
	if n := len(k.free); n > 0 {
		id, k.free = k.free[n-1], k.free[:n-1]
	} else {
		k.next++
	}
	k.p.Add(id, uint64(key)*0x9e3779b97f4a7c15>>32, 1, false)
	k.ids[key], k.back[id] = id, key
}

func TestBoundAndScan(t *testing.T) {
	k := newKeys(100)
	for range 4 {
		for i := range 60 {
			k.read(i)
			k.read(i)
		}
	}
	for i := range 10_000 { // a scan
		k.read(1000 + i)
		if k.p.Bytes() > 100 {
			t.Fatalf("%d bytes in a cache of 100", k.p.Bytes())
		}
	}
	k.hits = 0
	for i := range 60 {
		k.read(i)
	}
	if k.hits < 50 {
		t.Errorf("after a scan only %d of 60 hot entries are left", k.hits)
	}
}

func TestGhostEntryReturnsToMain(t *testing.T) {
	k := newKeys(100)
	for i := range 200 {
		k.read(i)
	}
	k.read(80) // evicted a moment ago: back in main
	for i := range 300 {
		k.read(1000 + i)
	}
	k.hits = 0
	if k.read(80); k.hits != 1 {
		t.Error("an entry that came back soon was evicted by a scan")
	}
}

func TestRandomUseKeepsInvariants(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	k := newKeys(50)
	live := func() (n int64) {
		for q := small; q <= main; q++ {
			for id := k.p.q[q].head; id != none; id = k.p.nodes[id].next {
				n++
			}
		}
		return n
	}
	for range 20_000 {
		if rng.IntN(10) == 0 {
			for key, id := range k.ids {
				k.p.Remove(id)
				delete(k.ids, key)
				delete(k.back, id)
				k.free = append(k.free, id)
				break
			}
			continue
		}
		k.read(int(rng.ExpFloat64() * 40))
		if n := live(); n != k.p.Bytes() || n != int64(len(k.ids)) {
			t.Fatalf("%d entries are linked, %d bytes, %d keys", n, k.p.Bytes(), len(k.ids))
		}
	}
}
