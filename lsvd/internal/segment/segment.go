// Package segment is the format of the immutable objects that hold a disk's
// data. A segment has the blocks of one cut (or of one GC run) sorted by
// address, in frames of 64 KiB that are compressed and, with a key, encrypted
// one by one; an index that is readable alone; and a trailer that names the
// segment, so that no other object passes for it.
//
//	frames | index | trailer (140 bytes, at the end of the object)
//
//	trailer               index, uvarints unless said otherwise
//	  0  "LSVDSEGM"       number of entries, then each:
//	  8  version u32        address - end of the entry before
//	 12  kind u8            blocks*2, +1 if it has no data (reads as zeros)
//	 13  flags u8           last - original seq
//	 14  0 u16            number of frames, then each:
//	 16  volume [16]        stored bytes
//	 32  epoch u64          codec u8: 0 none, 1 zstd
//	 40  number u64         CRC-32C u32 of the stored bytes
//	 48  first seq u64
//	 56  last seq u64     flags: 1 encrypted, 2 fence, 4 the next segment is of the same cut
//	 64  salt [16]
//	 80  index length u32
//	 84  CRC-32C of the index u32
//	 88  length of all frames u64
//	 96  blocks of data u32
//	100  0 u32
//	104  XXH64 of all before the trailer u64
//	112  0 [24]
//	136  CRC-32C of the trailer before u32
//
// The data of the entries lies one after the other, 16 blocks to a frame; the
// last may be shorter. Encrypted frames and index are AES-256-GCM under the
// key HKDF-SHA-256(data key, salt, trailer bytes 0..64), with the frame's
// number as nonce (the index has 2^32-1); CRCs are of the encrypted bytes.
//
// A fence is a trailer alone. It ends the chain of an epoch: see package lsvd.
package segment

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/binary"
	"io"
	"slices"
	"sync"

	"github.com/cespare/xxhash/v2"
	"github.com/klauspost/compress/zstd"

	"miren.dev/runtime/lsvd/internal/keyring"
	"miren.dev/runtime/lsvd/internal/name"
	"miren.dev/runtime/lsvd/internal/sched"
	"miren.dev/runtime/lsvd/internal/wire"
	"miren.dev/runtime/pkg/errs"
)

// Version is the version of the segment format, the only one that is read.
const Version = 3

// Sizes of the format.
const (
	Block       = 4096
	FrameBlocks = 16
	FrameSize   = FrameBlocks * Block
	TrailerSize = 140
	TagSize     = 16 // what encryption adds to a frame
	LeastFrame  = 6  // bytes that the index has of a frame, at least
	// MaxBlocks bounds the data of a segment.
	MaxBlocks = 1 << 20
)

const (
	magic         = "LSVDSEGM"
	flagEncrypted = 1
	flagFence     = 2
	flagMore      = 4
	knownFlags    = flagEncrypted | flagFence | flagMore
	indexNonce    = 1<<32 - 1
	codecNone     = 0
	codecZstd     = 1
)

// Entry is one piece of the address space that a segment defines.
type Entry struct {
	LBA    uint64
	Blocks uint64
	Seq    uint64 // the original sequence number, also after GC moved it
	Zero   bool   // reads as zeros, no data
}

// Head names a segment.
type Head struct {
	name.Ref
	First, Last uint64 // of a cut: all sequence numbers in it
	Plain       bool   // for Build: compress nothing but zeros
	More        bool   // of a cut that goes on in the next segment of the chain
}

type frame struct {
	off   int64
	size  uint32
	codec uint8
	crc   uint32
}

// Index is the decoded index of a segment.
type Index struct {
	Head
	Entries []Entry
	Blocks  uint64
	Fence   bool
	frames  []frame
	aead    cipher.AEAD
}

var (
	encoder = sync.OnceValue(func() *zstd.Encoder {
		e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(2))
		if err != nil {
			panic(err) // the options are constants
		}
		return e
	})
	decoder = sync.OnceValue(func() *zstd.Decoder {
		d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderMaxMemory(1<<20))
		if err != nil {
			panic(err)
		}
		return d
	})
)

func headBytes(h Head, flags uint8) []byte {
	w := wire.Writer{B: make([]byte, 0, TrailerSize)}
	w.Bytes([]byte(magic))
	w.U32(Version)
	w.U8(uint8(h.Kind))
	w.U8(flags)
	w.U16(0)
	w.Bytes(h.Volume[:])
	w.U64(h.Epoch)
	w.U64(h.Num)
	w.U64(h.First)
	w.U64(h.Last)
	return w.B
}

func newAEAD(key, salt, head []byte) (cipher.AEAD, error) {
	k, err := hkdf.Key(sha256.New, key, salt, string(head), 32)
	if err != nil {
		return nil, err
	}
	b, err := aes.NewCipher(k)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(b)
}

func nonce(n uint32) []byte {
	var b [12]byte
	binary.LittleEndian.PutUint32(b[:], n)
	return b[:]
}

var zeros [FrameSize]byte

// Build encodes a segment. read fills p with data of entries[i] from its block
// first on; it is called for consecutive pieces, in order. random gives 16
// bytes of salt if there are keys. Entries must be sorted by address and not
// overlap. It holds no more than the object and one frame in memory.
func Build(h Head, keys *keyring.Ring, random io.Reader, entries []Entry, read func(i int, first uint64, p []byte) error) ([]byte, error) {
	var flags uint8
	var salt [16]byte
	var aead cipher.AEAD
	if h.More {
		flags |= flagMore
	}
	key, err := keys.Data(h.Volume)
	if err != nil {
		return nil, err
	}
	if key != nil {
		flags |= flagEncrypted
		if _, err := io.ReadFull(random, salt[:]); err != nil {
			return nil, err
		}
		if aead, err = newAEAD(key, salt[:], headBytes(h, flags)); err != nil {
			return nil, err
		}
	}
	blocks := uint64(0)
	for _, e := range entries {
		if !e.Zero {
			blocks += e.Blocks
		}
	}
	if blocks > MaxBlocks {
		return nil, errs.New(errs.Internal, "segment of %d blocks", blocks)
	}
	count := (blocks + FrameBlocks - 1) / FrameBlocks
	var index, frames wire.Writer
	index.Uvarint(uint64(len(entries)))
	var out []byte
	plain := make([]byte, 0, FrameSize)
	n := uint32(0)
	flush := func() {
		at := len(out)
		codec := uint8(codecZstd)
		if h.Plain && !bytes.Equal(plain, zeros[:len(plain)]) {
			codec, out = codecNone, append(out, plain...)
		} else if out = encoder().EncodeAll(plain, out); len(out)-at > len(plain)*15/16 {
			codec, out = codecNone, append(out[:at], plain...)
		}
		if aead != nil {
			out = aead.Seal(out[:at], nonce(n), out[at:], nil)
		}
		if n == 0 { // what the first frame became tells about the rest
			out = slices.Grow(out, int(count-1)*(len(out)+len(out)/8)+len(entries)*8+int(count)*8+TrailerSize)
		}
		stored := out[at:]
		frames.Uvarint(uint64(len(stored)))
		frames.U8(codec)
		frames.U32(wire.CRC1(stored))
		plain = plain[:0]
		n++
		sched.Yield()
	}
	end := uint64(0)
	for i, e := range entries {
		index.Uvarint(e.LBA - end)
		end = e.LBA + e.Blocks
		var zero uint64
		if e.Zero {
			zero = 1
		}
		for done := uint64(0); zero == 0 && done < e.Blocks; {
			k := min(e.Blocks-done, uint64(FrameSize-len(plain))/Block)
			at := len(plain)
			plain = plain[:at+int(k*Block)]
			if err := read(i, done, plain[at:]); err != nil {
				return nil, err
			}
			if done += k; len(plain) == FrameSize {
				flush()
			}
		}
		index.Uvarint(e.Blocks<<1 | zero)
		index.Uvarint(h.Last - e.Seq)
	}
	if len(plain) > 0 {
		flush()
	}
	index.Uvarint(count)
	index.Bytes(frames.B)
	size := len(out)
	if aead != nil {
		index.B = aead.Seal(nil, nonce(indexNonce), index.B, nil)
	}
	out = append(out, index.B...)
	return appendTrailer(out, h, flags, salt, index.B, size, blocks), nil
}

// Fence encodes the fence that ends a chain where segment ref would be.
func Fence(ref name.Ref) []byte {
	return appendTrailer(nil, Head{Ref: ref}, flagFence, [16]byte{}, nil, 0, 0)
}

func appendTrailer(body []byte, h Head, flags uint8, salt [16]byte, index []byte, frames int, blocks uint64) []byte {
	sum := checksum(body)
	t := wire.Writer{B: headBytes(h, flags)}
	t.Bytes(salt[:])
	t.U32(uint32(len(index)))
	t.U32(wire.CRC(index))
	t.U64(uint64(frames))
	t.U32(uint32(blocks))
	t.U32(0)
	t.Bytes(sum[:])
	t.U32(wire.CRC(t.B))
	return append(body, t.B...)
}

// checksum is that of a whole object, with the zeros that follow it.
func checksum(body []byte) (sum [32]byte) {
	binary.LittleEndian.PutUint64(sum[:], xxhash.Sum64(body))
	return sum
}

// Open decodes the index of the segment ref, from its last bytes. If tail is
// too short for the index, it returns how many bytes of the end are needed.
// With keys, a segment that is not encrypted is refused: only fences are plain.
func Open(ref name.Ref, keys *keyring.Ring, size int64, tail []byte) (*Index, int64, error) {
	bad := func(what string) (*Index, int64, error) {
		return nil, 0, wire.Corrupt("segment %s: %s", ref, what)
	}
	if len(tail) < TrailerSize || int64(len(tail)) > size {
		return bad("is cut off")
	}
	t := tail[len(tail)-TrailerSize:]
	r := wire.Reader{B: t}
	x := &Index{}
	m := string(r.Bytes(8))
	version := r.U32()
	x.Kind = name.Kind(r.U8())
	flags := r.U8()
	r.U16()
	copy(x.Volume[:], r.Bytes(16))
	x.Epoch, x.Num, x.First, x.Last = r.U64(), r.U64(), r.U64(), r.U64()
	salt := r.Bytes(16)
	indexLen, indexCRC, frames := r.U32(), r.U32(), r.U64()
	x.Blocks = uint64(r.U32())
	r.U32()
	r.Bytes(32)
	crc := r.U32()
	if m != magic || wire.CRC(t[:136]) != crc {
		return bad("trailer is damaged")
	}
	if err := unreadable(ref, version, flags); err != nil {
		return nil, 0, err
	}
	switch {
	case x.Ref != ref:
		return bad("is segment " + x.Ref.String())
	case frames > 1<<40 || int64(frames)+int64(indexLen)+TrailerSize != size:
		return bad("has another length than it says")
	}
	if flags&flagFence != 0 {
		x.Fence = true
		return x, 0, nil
	}
	key, err := keys.Data(ref.Volume)
	if err != nil {
		return nil, 0, err
	}
	if key != nil && flags&flagEncrypted == 0 {
		return bad("is not encrypted, and the volume is: something without its key wrote it")
	}
	x.More = flags&flagMore != 0
	need := int64(indexLen) + TrailerSize
	if need > int64(len(tail)) {
		return nil, need, nil
	}
	index := tail[int64(len(tail))-need : len(tail)-TrailerSize]
	if wire.CRC(index) != indexCRC {
		return bad("index is damaged")
	}
	if flags&flagEncrypted != 0 {
		if key == nil {
			return nil, 0, errs.New(errs.FailedPrecondition, "segment %s is encrypted and there is no key", ref)
		}
		if x.aead, err = newAEAD(key, salt, t[:64]); err != nil {
			return nil, 0, err
		}
		if index, err = x.aead.Open(nil, nonce(indexNonce), index, nil); err != nil {
			return bad("index does not decrypt with this key")
		}
	}
	if err := x.decode(index, int64(frames)); err != nil {
		return bad(err.Error())
	}
	return x, 0, nil
}

// unreadable says why this program cannot know what a segment means, which another one
// wrote; nil if it can.
func unreadable(ref name.Ref, version uint32, flags uint8) error {
	const hint = "use the program that wrote it"
	switch {
	case version != Version:
		return errs.New(errs.FailedPrecondition, "segment %s has version %d, this program knows %d", ref, version, Version).WithHint(hint)
	case flags&^knownFlags != 0:
		return errs.New(errs.FailedPrecondition, "segment %s has flags %#x, of which this program does not know %#x", ref, flags, flags&^knownFlags).WithHint(hint)
	}
	return nil
}

func (x *Index) decode(b []byte, frames int64) error {
	r := wire.Reader{B: b}
	x.Entries = make([]Entry, r.Count(3))
	end, blocks := uint64(0), uint64(0)
	for i := range x.Entries {
		gap, n, back := r.Uvarint(), r.Uvarint(), r.Uvarint()
		e := Entry{LBA: end + gap, Blocks: n >> 1, Zero: n&1 == 1, Seq: x.Last - back}
		if e.Blocks == 0 || e.LBA < end || e.LBA+e.Blocks < e.LBA || back > x.Last {
			return wire.Corrupt("index has an impossible entry")
		}
		end = e.LBA + e.Blocks
		if !e.Zero {
			blocks += e.Blocks
		}
		x.Entries[i] = e
	}
	if blocks != x.Blocks || blocks > MaxBlocks {
		return wire.Corrupt("index and trailer differ in blocks")
	}
	x.frames = make([]frame, r.Count(6))
	off := int64(0)
	for i := range x.frames {
		size := r.Uvarint()
		f := frame{off: off, size: uint32(size), codec: r.U8(), crc: r.U32()}
		if size > FrameSize+16 || f.codec > codecZstd {
			return wire.Corrupt("index has an impossible frame")
		}
		off += int64(size)
		x.frames[i] = f
	}
	if err := r.End(); err != nil {
		return err
	}
	if off != frames || uint64(len(x.frames)) != (blocks+FrameBlocks-1)/FrameBlocks {
		return wire.Corrupt("index and trailer differ in frames")
	}
	return nil
}

// Last reads the last sequence number of the segment ref from its trailer.
func Last(ref name.Ref, trailer []byte) (uint64, error) {
	if len(trailer) != TrailerSize || string(trailer[:8]) != magic || wire.CRC1(trailer[:136]) != binary.LittleEndian.Uint32(trailer[136:]) {
		return 0, wire.Corrupt("segment %s: trailer is damaged", ref)
	}
	return binary.LittleEndian.Uint64(trailer[56:]), nil
}

// Verify opens a whole segment and checks all of it.
func Verify(ref name.Ref, keys *keyring.Ring, object []byte) (*Index, error) {
	x, _, err := Open(ref, keys, int64(len(object)), object)
	if err != nil {
		return nil, err
	}
	body, t := object[:len(object)-TrailerSize], object[len(object)-TrailerSize:]
	if sum := checksum(body); string(sum[:]) != string(t[104:136]) {
		return nil, wire.Corrupt("segment %s: checksum differs", ref)
	}
	return x, nil
}

// Intact checks the trailer and the checksum of a whole segment, which needs no
// key. It reads neither the index nor the frames of an encrypted one.
func Intact(ref name.Ref, object []byte) error {
	_, _, err := Open(ref, nil, int64(len(object)), object)
	if err != nil && !errs.Is(err, errs.FailedPrecondition) {
		return err
	}
	body, t := object[:len(object)-TrailerSize], object[len(object)-TrailerSize:]
	if err := unreadable(ref, binary.LittleEndian.Uint32(t[8:]), t[13]); err != nil {
		return err
	}
	if sum := checksum(body); string(sum[:]) != string(t[104:136]) {
		return wire.Corrupt("segment %s: checksum differs", ref)
	}
	return nil
}

// Frames is the number of frames.
func (x *Index) Frames() int { return len(x.frames) }

// Range is where the frames [a,b) are in the object.
func (x *Index) Range(a, b int) (off, size int64) {
	last := x.frames[b-1]
	return x.frames[a].off, last.off + int64(last.size) - x.frames[a].off
}
