package wal

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"miren.dev/runtime/lsvd/vfs"
)

// TestLogPages appends records of all sizes, past the page cache and not, to
// recycled files of a real directory, and reads them back, also in a new run.
func TestLogPages(t *testing.T) {
	fs, err := vfs.OpenDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	found, err := Find(fs, header.Volume)
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{FS: fs, Volume: header.Volume, Epoch: 1, FileSize: 8 << 20}
	l, err := Start(cfg, found)
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	buf := make([]byte, directFrom+1<<20)
	data := map[uint64][]byte{}
	var all []Chunk
	released := uint64(0)
	for range 200 {
		var extents []Extent
		for range 1 + rng.IntN(3) {
			e := Extent{Kind: Kind(1 + rng.IntN(3)), LBA: rng.Uint64N(1 << 20), Blocks: 1 + rng.Uint64N(4)}
			if rng.IntN(8) == 0 {
				e.Blocks = directFrom/Block + rng.Uint64N(64)
			}
			if e.Kind == Data {
				e.Data = buf[:e.Blocks*Block] // shared: a record has one that is large at most
				if len(extents) > 0 {
					e.Data = make([]byte, e.Blocks*Block)
				}
				for i := range e.Data {
					e.Data[i] = byte(rng.Uint32())
				}
				e.CRCs = Sums(e.Data)
			}
			extents = append(extents, e)
		}
		chunks, err := l.Append(extents, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i, c := range chunks {
			data[c.Seq] = bytes.Clone(extents[i].Data)
		}
		all = append(all, chunks...)
		switch rng.IntN(6) {
		case 0:
			if err := l.Sync(); err != nil {
				t.Fatal(err)
			}
		case 1:
			released = max(released, l.seq-min(l.seq, 30))
			l.Release(released)
		}
	}
	check := func(c *Chunk) {
		t.Helper()
		got := make([]byte, len(data[c.Seq]))
		if err := c.Read(got, 0); err != nil || !bytes.Equal(got, data[c.Seq]) {
			t.Fatalf("sequence %d: %v", c.Seq, err)
		}
	}
	for i := range all {
		if all[i].Seq > released && all[i].Kind == Data {
			check(&all[i])
		}
	}
	last := l.seq
	l.Close()
	if found, err = Find(fs, header.Volume); err != nil {
		t.Fatal(err)
	}
	defer found.Close()
	got, _, err := found.Replay(1, released, true, func(c *Chunk) error { check(c); return nil })
	if err != nil || got != last {
		t.Fatalf("replayed up to %d of %d: %v", got, last, err)
	}
}
