package lsvd

import (
	"bytes"
	"context"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"miren.dev/runtime/lsvd/internal/segment"
	"miren.dev/runtime/lsvd/store/storesim"
	"miren.dev/runtime/lsvd/vfs/vfssim"
)

// dirty is a store that damages each range of an object when it is read first.
type dirty struct {
	storesim.Mem
	left atomic.Int64
}

func (s *dirty) GetRange(ctx context.Context, key string, off, n int64) ([]byte, error) {
	b, err := s.Mem.GetRange(ctx, key, off, n)
	if err == nil && n > segment.IndexTail && s.left.Add(-1) >= 0 {
		for i := 0; i < len(b); i += 512 {
			b[i] ^= 4
		}
	}
	return b, err
}

// TestSpeculativeFetchIsVerified: what was fetched before the index was known is not
// believed.
func TestSpeculativeFetchIsVerified(t *testing.T) {
	for _, compression := range []Compression{CompressAll, CompressNone} {
		st, id := &dirty{}, NewID()
		if err := Create(t.Context(), st, id, 8<<20, nil); err != nil {
			t.Fatal(err)
		}
		content := make([]byte, 8<<20)
		rng := rand.NewChaCha8([32]byte{3})
		for i := 0; i < len(content); i += 4096 {
			rng.Read(content[i : i+3000])
		}
		open := func() *Device {
			d, _, err := Open(t.Context(), st, vfssim.New(), id, Options{Compression: compression, manual: true})
			if err != nil {
				t.Fatal(err)
			}
			return d
		}
		d := open()
		if err := d.WriteAt(t.Context(), content, 0, 0); err != nil {
			t.Fatal(err)
		}
		if err := d.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		d = open()
		p := make([]byte, 4096)
		for i, at := range []int64{5 << 20, 5<<20 + 512<<10} { // the first reads the index too
			before := d.Stats().StoreReads
			st.left.Store(1)
			if err := d.ReadAt(t.Context(), p, at); err != nil || !bytes.Equal(p, content[at:at+4096]) {
				t.Fatalf("read at %d: %v", at, err)
			}
			if n := d.Stats().StoreReads - before; n != int64(3-i) {
				t.Errorf("%d reads of the store", n)
			}
		}
		if err := d.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}
