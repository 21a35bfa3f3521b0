package wal

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"miren.dev/runtime/lsvd/vfs"
	"miren.dev/runtime/lsvd/vfs/vfssim"
	"miren.dev/runtime/pkg/errs"
)

// TestLoadedChunksAreReadable loads chunks of all sizes and kinds from several files, whole and
// from somewhere on, and reads pieces of them; and it finds a damaged block.
func TestLoadedChunksAreReadable(t *testing.T) {
	dir, err := vfs.OpenDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for name, fs := range map[string]vfs.FS{"dir": dir, "sim": vfssim.New()} {
		t.Run(name, func(t *testing.T) {
			l := begin(t, fs, 8<<20)
			defer l.Close()
			rng := rand.New(rand.NewPCG(3, 4))
			var all []Chunk
			data := map[uint64][]byte{}
			for range 300 {
				e := Extent{Kind: Kind(1 + rng.IntN(3)), LBA: rng.Uint64N(1 << 20), Blocks: 1 + rng.Uint64N(20)}
				if rng.IntN(4) > 0 {
					e.Kind = Data
				}
				if e.Kind == Data {
					switch rng.IntN(40) {
					case 0:
						e.Blocks = loadPiece / Block
					case 1:
						e.Blocks = loadPiece/Block + 30 // is not loaded
					}
					e.Data = make([]byte, e.Blocks*Block)
					for i := 0; i < len(e.Data); i += 64 {
						e.Data[i] = byte(rng.Uint32())
					}
					e.CRCs = Sums(e.Data)
				}
				chunks, err := l.Append([]Extent{e}, nil)
				if err != nil {
					t.Fatal(err)
				}
				data[chunks[0].Seq] = e.Data
				all = append(all, chunks...)
			}
			if n := l.Held(); n < 3*8<<20 {
				t.Fatalf("the log has only %d bytes", n)
			}
			for _, from := range []int{0, 1, 150, len(all) - 1, len(all)} {
				x := Load(all[from:])
				loaded := 0
				for _, i := range rng.Perm(len(all) - from) {
					c := &all[from+i]
					if c.Kind != Data {
						continue
					}
					if x.data[i] != nil {
						loaded++
					} else if c.Blocks <= loadPiece/Block {
						t.Errorf("sequence %d of %d blocks is not loaded", c.Seq, c.Blocks)
					}
					first := rng.Uint64N(c.Blocks)
					got := make([]byte, Block*(1+rng.Uint64N(c.Blocks-first)))
					if err := x.Read(c, got, first); err != nil || !bytes.Equal(got, data[c.Seq][first*Block:][:len(got)]) {
						t.Fatalf("sequence %d, block %d: %v", c.Seq, first, err)
					}
				}
				if loaded == 0 && from < len(all)/2 {
					t.Error("nothing is loaded")
				}
				x.Free()
			}
			c := &all[len(all)/2]
			for c.Kind != Data || c.Blocks > 20 {
				c = &all[c.Seq] // the next
			}
			if _, err := c.file.f.WriteAt([]byte("damage"), c.off+100); err != nil {
				t.Fatal(err)
			}
			x := Load(all)
			defer x.Free()
			if err := x.Read(c, make([]byte, Block), 0); !errs.Is(err, errs.Corrupt) {
				t.Errorf("a damaged block is read: %v", err)
			}
		})
	}
}
