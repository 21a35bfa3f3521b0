package manifest

import (
	"encoding/binary"
	"reflect"
	"strings"
	"testing"

	"miren.dev/runtime/lsvd/internal/extent"
	"miren.dev/runtime/lsvd/internal/keyring"
	"miren.dev/runtime/lsvd/internal/name"
	"miren.dev/runtime/lsvd/internal/wire"
	"miren.dev/runtime/pkg/errs"
)

var (
	one = name.Volume{1}
	two = name.Volume{2}
	cp  = name.Ref{Volume: one, Kind: name.Map, Epoch: 4, Num: 9}
)

func sample() *Manifest {
	return &Manifest{
		Volume: one, Revision: 2, Epoch: 4, ChainEpoch: 3, ChainNext: 5, Durable: 600, Size: 1 << 30, NextSegment: 77, Owner: [16]byte{6},
		Created: 8, Clean: true, Encrypted: true, Uncounted: true, Origin: "parent@snapshot", Root: &Root{Ref: cp, Size: 1000, Seq: 500},
		Maps: []name.Ref{{Volume: two, Kind: name.Map, Epoch: 1}, cp},
		Segments: []Segment{
			{Num: 1, Ref: name.Ref{Volume: two, Kind: name.Data, Epoch: 1, Num: 1}, Size: 10, Blocks: 1, First: 1, Last: 4, Live: 1},
			{Num: 76, Ref: name.Ref{Volume: one, Kind: name.GC, Epoch: 3, Num: 2}, Size: 1 << 40, Blocks: 9, First: 2, Last: 600},
		},
		Boot: &name.Ref{Volume: two, Kind: name.Boot, Epoch: 1, Num: 3},
	}
}

func TestManifestRoundTripsAndDetectsFlips(t *testing.T) {
	for _, m := range []*Manifest{sample(), {Volume: one, Size: 4096, Maps: []name.Ref{}, Segments: []Segment{}}} {
		b := m.Encode("manifests/m")
		got, err := Decode(b)
		if err != nil || !reflect.DeepEqual(got, m) {
			t.Fatalf("%+v %v", got, err)
		}
		for bit := range len(b) * 8 {
			b[bit/8] ^= 1 << (bit % 8)
			if _, err := Decode(b); err == nil {
				t.Errorf("bit %d flipped unnoticed", bit)
			}
			b[bit/8] ^= 1 << (bit % 8)
		}
	}
}

// TestFlagsOfLaterPrograms: a manifest with a flag that this program does not know is refused.
func TestFlagsOfLaterPrograms(t *testing.T) {
	b := sample().Encode("manifests/m")
	b[12] |= 16
	b = binary.LittleEndian.AppendUint32(b[:len(b)-4], wire.CRC(b[:len(b)-4]))
	if _, err := Decode(b); !errs.Is(err, errs.FailedPrecondition) || !strings.Contains(err.Error(), "know 0x10") {
		t.Errorf("a manifest with an unknown flag: %v", err)
	}
}

func TestClaimIsInHead(t *testing.T) {
	m := sample()
	b := m.Encode("manifests/m")
	if epoch, owner, ok := Claim(b[:HeadSize]); !ok || epoch != m.Epoch || owner != m.Owner {
		t.Errorf("%d %x %v", epoch, owner, ok)
	}
	for _, b := range [][]byte{nil, b[:HeadSize-1], make([]byte, HeadSize)} {
		if _, _, ok := Claim(b); ok {
			t.Errorf("%q has a claim", b)
		}
	}
}

func checkpoint(keys *keyring.Ring) []byte {
	c := &Checkpoint{Ref: cp, Keys: keys}
	c.Leaf(0, []extent.Run{{Start: 0, N: 3, Off: 9, Src: 1}, {Start: 500, N: 12, Off: 0, Src: 76}})
	c.Keep(5, name.Ref{Volume: two, Kind: name.Map, Epoch: 1}, 99, 3, 20)
	c.Leaf(1<<20, []extent.Run{{Start: 511, N: 1, Off: 1 << 20, Src: 1}})
	return c.Encode()
}

func pages(d *Directory, keys *keyring.Ring, b []byte) (all [][]extent.Run, err error) {
	for _, p := range d.Pages {
		if d.Objects[p.Object] == cp {
			runs, err := DecodePage(cp, p.Leaf, keys, b[min(int(p.Off), len(b)):min(int(p.Off+p.Len), len(b))])
			if err != nil {
				return nil, err
			}
			all = append(all, runs)
		}
	}
	return all, nil
}

func TestDirectoryIsReadFromTail(t *testing.T) {
	b := checkpoint(nil)
	size := int64(len(b))
	if d, need, err := DecodeDirectory(cp, nil, size, b[size-mapTrailer:]); d != nil || need <= mapTrailer || err != nil {
		t.Fatalf("of too short a tail: %+v %d %v", d, need, err)
	} else if d, _, err := DecodeDirectory(cp, nil, size, b[size-need:]); d == nil || err != nil {
		t.Fatalf("of the tail: %v", err)
	}
	got, _, err := DecodeDirectory(cp, nil, size, b)
	if err != nil || len(got.Pages) != 3 || len(got.Objects) != 2 || got.Sizes[0] != 99 || got.Sizes[1] != size {
		t.Fatalf("%+v: %v", got, err)
	}
	if k := got.Pages[1]; k.Leaf != 5 || got.Objects[k.Object].Volume != two || k.Off != 3 || k.Len != 20 {
		t.Errorf("%+v", k)
	}
	all, err := pages(got, nil, b)
	if err != nil || len(all) != 2 || all[0][1] != (extent.Run{Start: 500, N: 12, Src: 76}) || len(all[1]) != 1 {
		t.Fatalf("%+v %v", all, err)
	}
	for bit := range len(b) * 8 {
		b[bit/8] ^= 1 << (bit % 8)
		d, _, err := DecodeDirectory(cp, nil, size, b)
		if err == nil {
			_, err = pages(d, nil, b)
		}
		if err == nil {
			t.Errorf("bit %d flipped unnoticed", bit)
		}
		b[bit/8] ^= 1 << (bit % 8)
	}
}

// The fuzzers repair the checksums of their input, to get past them.

func FuzzManifest(f *testing.F) {
	b := sample().Encode("manifests/m")
	f.Add(b[:len(b)-4])
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := Decode(binary.LittleEndian.AppendUint32(b, wire.CRC(b)))
		if err != nil {
			return
		}
		again, err := Decode(m.Encode("manifests/m"))
		if err != nil || !reflect.DeepEqual(m, again) {
			t.Errorf("%+v became %+v: %v", m, again, err)
		}
	})
}

func FuzzDirectory(f *testing.F) {
	b := checkpoint(nil)
	body := b[:len(b)-mapTrailer]
	t := wire.Reader{B: b[len(b)-mapTrailer+16:]}
	f.Add(body[len(body)-int(t.U32()):])
	f.Fuzz(func(t *testing.T, dir []byte) {
		var w wire.Writer
		w.Bytes(dir)
		w.Bytes([]byte(mapMagic))
		w.U32(mapVersion)
		w.U32(0)
		w.U32(uint32(len(dir)))
		w.Bytes(cp.Volume[:])
		w.U64(cp.Epoch)
		w.U64(cp.Num)
		w.Bytes(make([]byte, keyring.MACSize))
		w.U32(wire.CRC(dir))
		w.U32(wire.CRC(w.B[len(dir):]))
		if d, _, err := DecodeDirectory(cp, nil, int64(len(w.B)), w.B); err == nil {
			pages(d, nil, w.B)
		}
	})
}

func FuzzPage(f *testing.F) {
	b := checkpoint(nil)
	d, _, _ := DecodeDirectory(cp, nil, int64(len(b)), b)
	f.Add(b[:d.Pages[0].Len-4])
	f.Fuzz(func(t *testing.T, b []byte) {
		runs, err := DecodePage(cp, 0, nil, binary.LittleEndian.AppendUint32(b, wire.CRC(b)))
		if err != nil {
			return
		}
		end := 0
		for _, r := range runs {
			if int(r.Start) < end || r.N == 0 {
				t.Errorf("run %+v after %d", r, end)
			}
			end = int(r.Start) + int(r.N)
		}
		if end > extent.LeafBlocks {
			t.Errorf("leaf ends at %d", end)
		}
	})
}
