// Package wal is the local log of a disk: fixed-size files, written from the
// front, recycled when their content has reached the store.
//
// File: a header in the first 4096 bytes, then records, each at a multiple of
// 512 bytes. Records do not cross files. All integers are little-endian.
//
//	header              record
//	 0  "LSVDLOGF"       0  "LREC"
//	 8  version u32      4  head length u32: this, extents, block CRCs
//	12  0 u32            8  data length u32
//	16  volume [16]     12  number of extents u32
//	32  epoch u64       16  volume [16]
//	40  generation u64  32  epoch u64
//	48  first seq u64   40  generation u64
//	56  prev epoch u64  48  seq of the first extent u64
//	64  prev seq u64    56  CRC-32C of the head but this field u32
//	72  CRC-32C u32     60  unsynced u32, see below
//	                    64  extents, 24 bytes each:
//	                        kind u8, 0 [7], address u64, blocks u64
//	                        then a CRC-32C u32 per block of data
//	                        zeros to a multiple of 512, then the data
//
// A record is valid in a file when its CRCs hold and volume, epoch and
// generation are those of the file's header. Records of an earlier use of the file
// are never valid. Each extent has the next sequence number; a scan takes
// records while the numbers continue without a gap.
//
// Unsynced says how many of the numbers before the record's first were not
// known to be durable when it was written (at most 2^32-1). So a record
// that is there promises earlier ones, and a scan that ends before what was
// promised has found damage, not the end of what a power loss has left. Damage
// after the last promise looks like a power loss.
//
// A file that is full ends with an index: the heads of its records once more,
//
//	index: per record                    trailer
//	 0  number of extents u32             0  "LSVDLIDX"
//	 4  unsynced u32                      8  length of what is before it u32
//	 8  extents, 24 bytes each           12  number of records u32
//	    a CRC-32C u32 per block          16  volume [16]
//	                                     32  epoch u64
//	                                     40  generation u64
//	                                     48  last seq u64
//	                                     56  the most that was known to be durable u64
//	                                     64  end of the last record u64
//	                                     72  CRC-32C u32, 0 u32
//
// What is promised cannot be torn, so a file that is promised as a whole is
// replayed from its index, and its blocks are checked when they are read; all
// others are read whole, with or without an index. A reader that finds a damaged
// block makes the index void. The log syncs full files without a caller of Sync, so
// that few records are not promised. A file without a valid index loses nothing: it
// is read whole.
//
// An epoch's files say in prev what they continue: all records of prev epoch
// up to prev seq, and no others, come before them.
package wal

import (
	"encoding/binary"

	"miren.dev/runtime/lsvd/internal/name"
	"miren.dev/runtime/lsvd/internal/wire"
)

// Version is the version of the log format.
const Version = 1

// Sizes of the format.
const (
	Block      = 4096
	headerSize = 4096
	align      = 512
	recordHead = 64
	extentSize = 24
	// MaxData bounds the data of a record, MaxExtents its extents.
	MaxData    = 4 << 20
	MaxExtents = 1024
)

const (
	fileMagic   = "LSVDLOGF"
	recordMagic = 0x4345524c // "LREC"
)

// Kind is what an extent does; its value is stored.
type Kind uint8

// The kinds of extents.
const (
	Data Kind = 1
	Zero Kind = 2 // reads as zeros from here on
	Trim Kind = 3 // the same, asked for as a trim
)

// Extent is one logged change of the disk.
type Extent struct {
	Kind   Kind
	LBA    uint64
	Blocks uint64
	Data   []byte   // of Data: Blocks*Block bytes
	CRCs   []uint32 // of its blocks, by Sums; a Chunk keeps them
}

// Sums returns the CRCs of the blocks of data.
func Sums(data []byte) []uint32 {
	crcs := make([]uint32, len(data)/Block)
	for k := range crcs {
		crcs[k] = wire.CRC1(data[k*Block : (k+1)*Block])
	}
	return crcs
}

// Header is the header of a log file.
type Header struct {
	Volume     name.Volume
	Epoch      uint64
	Generation uint64
	First      uint64 // seq of the first record
	PrevEpoch  uint64
	PrevSeq    uint64
}

// EncodeHeader returns the first block of a file.
func EncodeHeader(h Header) []byte {
	w := wire.Writer{B: make([]byte, 0, headerSize)}
	w.Bytes([]byte(fileMagic))
	w.U32(Version)
	w.U32(0)
	w.Bytes(h.Volume[:])
	w.U64(h.Epoch)
	w.U64(h.Generation)
	w.U64(h.First)
	w.U64(h.PrevEpoch)
	w.U64(h.PrevSeq)
	w.U32(wire.CRC(w.B))
	return w.B[:headerSize]
}

// DecodeHeader reads the first block of a file. Anything but an intact header
// of this version is Corrupt.
func DecodeHeader(b []byte) (Header, error) {
	var h Header
	all := b
	r := wire.Reader{B: b}
	magic := string(r.Bytes(8))
	version := r.U32()
	reserved := r.U32()
	copy(h.Volume[:], r.Bytes(16))
	h.Epoch = r.U64()
	h.Generation = r.U64()
	h.First = r.U64()
	h.PrevEpoch = r.U64()
	h.PrevSeq = r.U64()
	sum := r.U32()
	switch {
	case r.Err() != nil:
		return h, r.Err()
	case magic != fileMagic || wire.CRC(all[:72]) != sum || reserved != 0:
		return h, wire.Corrupt("log file header is damaged")
	case version != Version:
		return h, wire.Corrupt("log file has version %d, this program knows %d", version, Version)
	}
	return h, nil
}

// recordSize is the space that a record of the extents takes in a file, and
// how much of it is head and data.
func recordSize(extents []Extent) (total, head, data int) {
	for _, e := range extents {
		data += len(e.Data)
	}
	head = recordHead + extentSize*len(extents) + data/Block*4
	return roundUp(head) + data, head, data
}

func roundUp(n int) int { return (n + align - 1) &^ (align - 1) }

// appendHead appends the encoded head of a record to buf, padded; the data of
// the extents follows it. Their CRCs are set.
func appendHead(buf []byte, h *Header, seq, synced uint64, extents []Extent) []byte {
	_, head, data := recordSize(extents)
	w := wire.Writer{B: buf}
	start := len(buf)
	w.U32(recordMagic)
	w.U32(uint32(head))
	w.U32(uint32(data))
	w.U32(uint32(len(extents)))
	w.Bytes(h.Volume[:])
	w.U64(h.Epoch)
	w.U64(h.Generation)
	w.U64(seq)
	w.U32(0) // the CRC, below
	w.U32(unsynced(seq, synced))
	appendExtents(&w, extents)
	rec := w.B[start:]
	binary.LittleEndian.PutUint32(rec[56:], wire.CRC(rec[:56], rec[60:]))
	w.Bytes(padding[:roundUp(head)-head])
	return w.B
}

var padding [align]byte

// unsynced is how many numbers before seq are not known to be durable.
func unsynced(seq, synced uint64) uint32 { return uint32(min(seq-1-synced, 1<<32-1)) }

// appendExtents appends extents and then the CRCs of their blocks.
func appendExtents(w *wire.Writer, extents []Extent) {
	for i := range extents {
		e := &extents[i]
		w.U64(uint64(e.Kind))
		w.U64(e.LBA)
		w.U64(e.Blocks)
	}
	for i := range extents {
		for _, c := range extents[i].CRCs {
			w.U32(c)
		}
	}
}

// takeExtents appends the n extents of a record to those given, and tells how
// many blocks of data they have.
func takeExtents(r *wire.Reader, extents []Extent, n int) ([]Extent, int, error) {
	if n < 1 || n > MaxExtents {
		return nil, 0, wire.Corrupt("record of %d extents", n)
	}
	blocks := uint64(0)
	for range n {
		kind := r.U64()
		e := Extent{Kind: Kind(kind), LBA: r.U64(), Blocks: r.U64()}
		switch {
		case r.Err() != nil:
			return nil, 0, r.Err()
		case kind < uint64(Data) || kind > uint64(Trim) || e.Blocks == 0 || e.LBA+e.Blocks < e.LBA || e.Kind == Data && e.Blocks > MaxData/Block:
			return nil, 0, wire.Corrupt("record has an impossible extent")
		case e.Kind == Data:
			blocks += e.Blocks
		}
		extents = append(extents, e)
	}
	if blocks > MaxData/Block {
		return nil, 0, wire.Corrupt("record has %d blocks of data", blocks)
	}
	return extents, int(blocks), nil
}

// takeCRCs appends the CRCs of n blocks to those given.
func takeCRCs(r *wire.Reader, crcs []uint32, n int) ([]uint32, error) {
	b := r.Bytes(4 * n)
	for ; len(b) > 0; b = b[4:] {
		crcs = append(crcs, binary.LittleEndian.Uint32(b))
	}
	return crcs, r.Err()
}

// headInfo is the fixed part of a record.
type headInfo struct {
	head, data, count int
	seq               uint64
	synced            uint64 // all up to here was durable when it was written
}

// decodeFixed reads the fixed part of a record of the file h and checks what
// can be checked before the rest is read.
func decodeFixed(b []byte, h Header) (headInfo, error) {
	r := wire.Reader{B: b}
	magic := r.U32()
	i := headInfo{head: int(r.U32()), data: int(r.U32()), count: int(r.U32())}
	volume := r.Bytes(16)
	epoch, gen := r.U64(), r.U64()
	i.seq = r.U64()
	r.U32()
	unsynced := uint64(r.U32())
	if unsynced < i.seq {
		i.synced = i.seq - 1 - unsynced
	}
	switch {
	case r.Err() != nil:
		return i, r.Err()
	case magic != recordMagic || string(volume) != string(h.Volume[:]) || epoch != h.Epoch || gen != h.Generation:
		return i, wire.Corrupt("not a record of this generation")
	case i.data > MaxData || i.data%Block != 0 || i.count < 1 || i.count > MaxExtents || i.head != recordHead+extentSize*i.count+i.data/Block*4:
		return i, wire.Corrupt("record has impossible lengths")
	}
	return i, nil
}

// decodeHead reads a whole record head, which decodeFixed has accepted.
func decodeHead(b []byte, i headInfo) ([]Extent, []uint32, error) {
	if len(b) < i.head {
		return nil, nil, wire.Corrupt("record is cut off")
	}
	b = b[:i.head]
	fixed := wire.Reader{B: b[56:60]}
	if fixed.U32() != wire.CRC(b[:56], b[60:]) {
		return nil, nil, wire.Corrupt("record head is damaged")
	}
	r := wire.Reader{B: b[recordHead:]}
	extents, blocks, err := takeExtents(&r, make([]Extent, 0, i.count), i.count)
	if err != nil {
		return nil, nil, err
	}
	if blocks != i.data/Block {
		return nil, nil, wire.Corrupt("record has %d blocks of data for %d", i.data/Block, blocks)
	}
	crcs, err := takeCRCs(&r, make([]uint32, 0, blocks), blocks)
	if err != nil {
		return nil, nil, err
	}
	return extents, crcs, r.End()
}
