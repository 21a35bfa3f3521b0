package boot

import (
	"reflect"
	"testing"

	"miren.dev/runtime/lsvd/internal/name"
	"miren.dev/runtime/lsvd/internal/wire"
	"miren.dev/runtime/pkg/errs"
)

var ref = name.Ref{Volume: name.Volume{3}, Kind: name.Boot, Epoch: 5, Num: 1}

func sample() []Piece {
	return []Piece{{0, 1}, {1, 0xffff}, {1 << 30, 0x8000}, {7, 0x10}, {maxAddress - 1, 3}}
}

func TestListRoundTrips(t *testing.T) {
	long := make([]Piece, MaxPieces)
	for i := range long {
		long[i] = Piece{uint64(i%2*(maxAddress-MaxPieces) + i), 1}
	}
	for _, list := range [][]Piece{{}, sample(), long} {
		b := Encode(ref, list)
		got, err := Decode(ref, b)
		if err != nil || !reflect.DeepEqual(got, list) || len(b) > MaxSize {
			t.Fatalf("%v %v, %d bytes", got, err, len(b))
		}
		other := ref
		other.Num++
		if _, err := Decode(other, b); !errs.Is(err, errs.Corrupt) {
			t.Errorf("passed for another: %v", err)
		}
	}
	b := Encode(ref, sample())
	for bit := range len(b) * 8 {
		b[bit/8] ^= 1 << (bit % 8)
		if _, err := Decode(ref, b); err == nil {
			t.Errorf("bit %d flipped unnoticed", bit)
		}
		b[bit/8] ^= 1 << (bit % 8)
	}
	for _, list := range [][]Piece{{{3, 1}, {3, 1}}, {{3, 0}}, {{maxAddress, 1}}, append(long, Piece{3, 1})} {
		if _, err := Decode(ref, Encode(ref, list)); !errs.Is(err, errs.Corrupt) {
			t.Errorf("a list that cannot be was read: %v", err)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(Encode(ref, sample()))
	f.Add(Encode(ref, nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		list, err := Decode(ref, b)
		if err != nil {
			return
		}
		if again, err := Decode(ref, Encode(ref, list)); err != nil || len(list) > 0 && !reflect.DeepEqual(again, list) {
			t.Errorf("%v %v", again, err)
		}
	})
}

// sealed is a list with these bytes as its pieces.
func sealed(pieces []byte) []byte {
	empty := Encode(ref, nil)
	w := wire.Writer{B: append(empty[:48:48], pieces...)}
	w.U32(wire.CRC(w.B))
	return w.B
}

// FuzzPieces goes past the checksum.
func FuzzPieces(f *testing.F) {
	b := Encode(ref, sample())
	f.Add(b[48 : len(b)-4])
	f.Fuzz(func(t *testing.T, b []byte) {
		list, err := Decode(ref, sealed(b))
		if err != nil {
			return
		}
		for _, p := range list {
			if p.Address >= maxAddress || p.Blocks == 0 {
				t.Errorf("%+v", p)
			}
		}
	})
}
