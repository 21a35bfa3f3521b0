package segment

import (
	"miren.dev/runtime/lsvd/internal/keyring"
	"miren.dev/runtime/lsvd/internal/name"
	"miren.dev/runtime/lsvd/internal/wire"
	"miren.dev/runtime/lsvd/store"
	"miren.dev/runtime/pkg/errs"
)

// FrameCount is the number of frames of a segment with so many blocks.
func FrameCount(blocks uint64) int { return int((blocks + FrameBlocks - 1) / FrameBlocks) }

// Slim returns the index without its entries: enough to read frames.
func (x *Index) Slim() *Index {
	s := *x
	s.Entries = nil
	return &s
}

// PlainSize is how many bytes of data frame i has.
func (x *Index) PlainSize(i int) int {
	return int(min(FrameBlocks, x.Blocks-uint64(i)*FrameBlocks)) * Block
}

// IsPlain reports whether the stored bytes of frame i are its data.
func (x *Index) IsPlain(i int) bool {
	return x.frames[i].codec == codecNone && x.aead == nil && int(x.frames[i].size) == x.PlainSize(i)
}

// Holds reports whether b is the stored bytes of frame i, undamaged.
func (x *Index) Holds(i int, b []byte) bool {
	return len(b) == int(x.frames[i].size) && wire.CRC(b) == x.frames[i].crc
}

// DecodeInto decodes frame i from b, which its stored bytes begin, into dst,
// which has PlainSize(i) bytes. It may overwrite b.
func (x *Index) DecodeInto(i int, b, dst []byte) error {
	f := x.frames[i]
	if len(b) < int(f.size) || !x.Holds(i, b[:f.size]) {
		return wire.Corrupt("segment %s: frame %d is damaged", x.Ref, i)
	}
	b = b[:f.size]
	var err error
	if x.aead != nil {
		if b, err = x.aead.Open(b[:0], nonce(uint32(i)), b, nil); err != nil {
			return wire.Corrupt("segment %s: frame %d does not decrypt", x.Ref, i)
		}
	}
	if f.codec == codecZstd {
		plain, err := decoder().DecodeAll(b, dst[:0])
		if err != nil {
			return wire.Corrupt("segment %s: frame %d: %v", x.Ref, i, err)
		}
		b = plain
	}
	if len(b) != len(dst) || len(b) != x.PlainSize(i) {
		return wire.Corrupt("segment %s: frame %d has %d bytes", x.Ref, i, len(b))
	}
	copy(dst, b) // of itself, after zstd
	return nil
}

// IndexTail is how much of the end of a segment is read at first: most indexes
// fit.
const IndexTail = 32 << 10

// ReadIndex reads the index, with its entries, of a segment of size bytes that
// has blocks blocks. fetch reads a range of the object.
func ReadIndex(ref name.Ref, keys *keyring.Ring, size int64, blocks uint64, fetch func(off, n int64) ([]byte, error)) (*Index, error) {
	for n := min(size, IndexTail); ; {
		var x *Index
		var need int64
		err := store.RetryCorrupt(func() error {
			tail, err := fetch(size-n, n)
			if err == nil {
				x, need, err = Open(ref, keys, size, tail)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
		if x == nil {
			n = need
			continue
		}
		if x.Fence || x.Blocks != blocks {
			return nil, errs.New(errs.Corrupt, "segment %s is not what the manifest says", ref)
		}
		return x, nil
	}
}
