package lsvd

import (
	"math/rand/v2"
	"testing"
	"time"

	"miren.dev/runtime/lsvd/store/storesim"
	"miren.dev/runtime/lsvd/vfs/vfssim"
)

// TestMemoryIsShared has several disks read more than their common budget: together
// they stay within it. One that reads gets what the others do not use, and disks
// that no longer read free their memory.
func TestMemoryIsShared(t *testing.T) {
	const disks, size, limit, most = 4, 4 << 20, 10 << 20, 8 << 20
	now := time.Unix(1, 0)
	m := &Memory{limit: limit}
	rng := rand.New(rand.NewPCG(1, 2))
	var all []*Device
	for i := range disks {
		st, id := &storesim.Mem{}, ID{byte(i)}
		if err := Create(t.Context(), st, id, size, nil); err != nil {
			t.Fatal(err)
		}
		d, _, err := Open(t.Context(), st, vfssim.New(), id, Options{manual: true, LogFile: 1 << 20, CutBytes: 256 << 10, MaxUnsent: 64 << 20, CacheBytes: most, MapBytes: 1 << 20, Memory: m, Compression: CompressNone})
		if err != nil {
			t.Fatal(err)
		}
		data := make([]byte, size)
		random{rng}.Read(data)
		if err := d.WriteAt(t.Context(), data, 0, 0); err != nil {
			t.Fatal(err)
		}
		if err := d.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
		all = append(all, d)
	}
	used := func() (sum int64, each []int64) {
		for _, d := range all {
			n, _, _ := d.memoryUse()
			sum += n
			each = append(each, n)
		}
		return sum, each
	}
	look := func(n int) {
		for range n {
			now = now.Add(memoryLook)
			m.look(now)
		}
		if sum, each := used(); sum > limit || m.Stats() != (MemoryStats{Limit: limit, Used: sum}) {
			t.Errorf("%v bytes are in memory, %d together", each, sum)
		}
	}
	read := func(reading ...*Device) (hits float64) {
		p := make([]byte, BlockSize)
		var before, after, misses int64
		for _, d := range reading {
			_, h, m := d.memoryUse()
			before, misses = before+h, misses-m
		}
		for i := range 2000 {
			if err := reading[i%len(reading)].ReadAt(t.Context(), p, rng.Int64N(size/BlockSize)*BlockSize); err != nil {
				t.Fatal(err)
			}
			if i%100 == 0 {
				look(1)
			}
		}
		for _, d := range reading {
			_, h, m := d.memoryUse()
			after, misses = after+h, misses+m
		}
		return float64(after-before) / float64(after-before+misses)
	}
	look(memoryIdle + 10) // the disks keep written blocks in memory too
	read(all[0])
	if hits := read(all[0]); hits < 0.99 {
		t.Errorf("a disk that is read alone has %.2f of its reads in memory", hits)
	}
	read(all...)
	if _, each := used(); min(each[0], each[1], each[2], each[3]) < limit/disks/2 {
		t.Errorf("disks that are read alike have %v bytes", each)
	}
	look(memoryIdle + 10)
	read(all[1])
	if hits := read(all[1]); hits < 0.99 {
		t.Errorf("a disk that is read while the others are idle has %.2f of its reads in memory", hits)
	}
	if _, each := used(); max(each[0], each[2], each[3]) > memoryFloor {
		t.Errorf("disks that are not read have %v bytes", each)
	}
	for _, d := range all[:disks-1] {
		if err := d.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	all = all[disks-1:]
	look(1)
	read(all[0])
	if hits := read(all[0]); hits < 0.99 {
		t.Errorf("the only open disk has %.2f of its reads in memory", hits)
	}
}
