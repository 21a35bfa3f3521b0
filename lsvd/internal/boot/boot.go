// Package boot is the format of boot lists: which blocks of a disk were read
// first after it was opened, in order. A list is a hint and nothing else: it
// names addresses, so that it holds wherever their data is by now.
//
// A list, little-endian, uvarints where marked v:
//
//	 0  "LSVDBOOT"
//	 8  version u32
//	12  0 u32
//	16  volume [16], epoch u64, number u64: of the object
//	48  v number of pieces, then each: v address, as the difference d to what
//	    would follow the piece before, zigzag: 2d, or -2d-1 if it is negative;
//	    u16 a bit for each block of it that was read, from the lowest
//	    CRC-32C of all before u32
//
// An address counts pieces of 16 blocks, 64 KiB. No piece is in a list twice.
package boot

import (
	"miren.dev/runtime/lsvd/internal/name"
	"miren.dev/runtime/lsvd/internal/wire"
	"miren.dev/runtime/pkg/errs"
)

// Version is the version of the format.
const Version = 1

const magic = "LSVDBOOT"

// Sizes of the format.
const (
	PieceBlocks = 16
	// MaxPieces bounds a list: 64 MiB of a disk.
	MaxPieces = 1024
	// MaxSize bounds the object of a list, in bytes.
	MaxSize = 64 + MaxPieces*(10+2)

	maxAddress = 1 << 48
)

// Piece is some of 16 blocks in a row.
type Piece struct {
	Address uint64 // of the first of them, in pieces
	Blocks  uint16 // a bit for each
}

// Encode returns the object of a list.
func Encode(ref name.Ref, list []Piece) []byte {
	var w wire.Writer
	w.Bytes([]byte(magic))
	w.U32(Version)
	w.U32(0)
	w.Bytes(ref.Volume[:])
	w.U64(ref.Epoch)
	w.U64(ref.Num)
	w.Uvarint(uint64(len(list)))
	next := int64(0)
	for _, p := range list {
		d := int64(p.Address) - next
		w.Uvarint(uint64(d<<1 ^ d>>63))
		w.U16(p.Blocks)
		next = int64(p.Address) + 1
	}
	w.U32(wire.CRC(w.B))
	return w.B
}

// Decode reads the list ref.
func Decode(ref name.Ref, b []byte) ([]Piece, error) {
	bad := func(what string) ([]Piece, error) { return nil, wire.Corrupt("boot list %s: %s", ref, what) }
	if len(b) < 52 || len(b) > MaxSize || string(b[:8]) != magic {
		return bad("is none")
	}
	sum := wire.Reader{B: b[len(b)-4:]}
	if sum.U32() != wire.CRC(b[:len(b)-4]) {
		return bad("is damaged")
	}
	r := wire.Reader{B: b[8 : len(b)-4]}
	if v := r.U32(); v != Version {
		return nil, errs.New(errs.FailedPrecondition, "boot list %s has version %d, this program knows %d", ref, v, Version)
	}
	r.U32()
	got := name.Ref{Kind: name.Boot}
	copy(got.Volume[:], r.Bytes(16))
	got.Epoch, got.Num = r.U64(), r.U64()
	list := make([]Piece, r.Count(3))
	if got != ref || len(list) > MaxPieces {
		return bad("is of another, or too long")
	}
	next := int64(0)
	seen := make(map[uint64]bool, len(list))
	for i := range list {
		z := r.Uvarint()
		at := next + (int64(z>>1) ^ -int64(z&1))
		p := Piece{Address: uint64(at), Blocks: r.U16()}
		if z > 4*maxAddress || at < 0 || at >= maxAddress || p.Blocks == 0 || seen[p.Address] {
			return bad("has an impossible piece")
		}
		seen[p.Address] = true
		list[i], next = p, at+1
	}
	return list, r.End()
}
