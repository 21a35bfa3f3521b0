package readcache

import (
	"math/rand/v2"
	"testing"

	"miren.dev/runtime/lsvd/internal/keyring"
	"miren.dev/runtime/lsvd/internal/manifest"
	"miren.dev/runtime/lsvd/internal/name"
	"miren.dev/runtime/lsvd/internal/segment"
)

// TestFrameIsPlacedWithoutIndex: of what does not compress the place of a frame is known without
// its index, to the byte; of what compresses evenly, well enough.
func TestFrameIsPlacedWithoutIndex(t *testing.T) {
	const blocks = 1000
	for _, c := range []struct {
		name          string
		compress, key bool
	}{{"plain", false, false}, {"encrypted", false, true}, {"compressed", true, false}, {"compressed, encrypted", true, true}} {
		t.Run(c.name, func(t *testing.T) {
			ref := name.Ref{Volume: name.Volume{1}, Kind: name.Data, Epoch: 1}
			var key *keyring.Ring
			if c.key {
				key, _ = keyring.New(ref.Volume, nil, nil)
			}
			rng := rand.NewChaCha8([32]byte{3})
			var entries []segment.Entry
			for i := range uint64(blocks) {
				entries = append(entries, segment.Entry{LBA: 3 * i, Blocks: 1, Seq: 1})
			}
			b, err := segment.Build(segment.Head{Ref: ref, First: 1, Last: 1}, key, rng, entries, func(_ int, _ uint64, p []byte) error {
				rng.Read(p)
				if c.compress {
					clear(p[int(p[0])*8:])
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			x, _, err := segment.Open(ref, key, int64(len(b)), b)
			if err != nil {
				t.Fatal(err)
			}
			s := manifest.Segment{Ref: ref, Size: int64(len(b)), Blocks: blocks}
			for a := range x.Frames() {
				b := min(a+4, x.Frames())
				off, n := estimateRange(&s, c.key, a, b)
				at, size := x.Range(a, b)
				if off > at || off+n < at+size || off < 0 || off+n > s.Size {
					t.Errorf("frames %d to %d are at %d+%d, not in %d+%d", a, b, at, size, off, n)
				}
				if !c.compress && (off != at || n != size) {
					t.Errorf("frames %d to %d are at %d+%d, not at %d+%d", a, b, at, size, off, n)
				}
				if most := size + 2*speculativeSlack + 128<<10; n > most {
					t.Errorf("%d bytes are fetched for %d", n, size)
				}
			}
		})
	}
}
