package wal

import (
	"errors"
	"io"

	"miren.dev/runtime/lsvd/internal/wire"
)

// Sizes of the index of a file.
const (
	indexMagic   = "LSVDLIDX"
	indexRecord  = 8
	indexTrailer = 80
	// indexGuess is how much of the end of a file is read to find its index.
	indexGuess = 64 << 10
)

// indexSize is the size, in bytes, of the entry of a record in the index of its file.
func indexSize(extents []Extent) (n int) {
	for i := range extents {
		n += extentSize + 4*len(extents[i].CRCs)
	}
	return indexRecord + n
}

// indexer collects the index of the file that is being written.
type indexer struct {
	w       wire.Writer
	records uint32
	synced  uint64 // the most that a record promised
}

// add takes in a record of n extents that begins with seq. Its body is what
// appendExtents made of them.
func (x *indexer) add(seq, synced uint64, n int, body []byte) {
	x.w.U32(uint32(n))
	x.w.U32(unsynced(seq, synced))
	x.w.Bytes(body)
	x.records++
	x.synced = max(x.synced, synced)
}

// room is the size of the index in the file, in bytes, after n more bytes.
func (x *indexer) room(n int) int64 { return int64(len(x.w.B) + n + indexTrailer) }

// finish returns the index of a file whose records end at end with the
// sequence number last. The next file begins; the result is valid until then.
func (x *indexer) finish(h *Header, last uint64, end int64) []byte {
	entries := uint32(len(x.w.B))
	x.w.Bytes([]byte(indexMagic))
	x.w.U32(entries)
	x.w.U32(x.records)
	x.w.Bytes(h.Volume[:])
	x.w.U64(h.Epoch)
	x.w.U64(h.Generation)
	x.w.U64(last)
	x.w.U64(x.synced)
	x.w.U64(uint64(end))
	x.w.U32(wire.CRC1(x.w.B))
	x.w.U32(0)
	b := x.w.B
	x.reset()
	return b
}

func (x *indexer) reset() { x.w.B, x.records, x.synced = x.w.B[:0], 0, 0 }

// trailer is the end of an index.
type trailer struct {
	entries, records int
	last, synced     uint64
	end              int64
}

// decodeTrailer reads the trailer of the index of the file h.
func decodeTrailer(b []byte, h Header) (t trailer, err error) {
	r := wire.Reader{B: b}
	magic := r.Bytes(8)
	t.entries, t.records = int(r.U32()), int(r.U32())
	volume := r.Bytes(16)
	epoch, gen := r.U64(), r.U64()
	t.last, t.synced, t.end = r.U64(), r.U64(), int64(r.U64())
	r.U32()
	reserved := r.U32()
	switch {
	case r.End() != nil:
		return t, r.End()
	case string(magic) != indexMagic || string(volume) != string(h.Volume[:]) || epoch != h.Epoch || gen != h.Generation || reserved != 0:
		return t, wire.Corrupt("not an index of this generation")
	}
	return t, nil
}

// decodeIndex reads an index, its trailer included, which decodeTrailer has
// accepted: what parse would find, had nothing happened to the records.
func (f *File) decodeIndex(b []byte, t trailer) (p parsed, err error) {
	crc := wire.Reader{B: b[len(b)-8:]}
	if crc.U32() != wire.CRC1(b[:len(b)-8]) {
		return p, wire.Corrupt("index is damaged")
	}
	r := wire.Reader{B: b[:t.entries]}
	count := t.last + 1 - f.header.First // of extents
	sums := int64(t.entries) - indexRecord*int64(t.records) - extentSize*int64(count)
	if count > uint64(t.entries)/extentSize || sums < 0 {
		return p, wire.Corrupt("index does not add up")
	}
	p = parsed{chunks: make([]Chunk, 0, count), end: headerSize, synced: t.synced, indexed: true}
	crcs := make([]uint32, 0, sums/4)
	var extents []Extent
	seq := f.header.First
	for range t.records {
		n, _ := int(r.U32()), r.U32()
		var blocks int
		if extents, blocks, err = takeExtents(&r, extents[:0], n); err != nil {
			return p, err
		}
		from := len(crcs)
		if crcs, err = takeCRCs(&r, crcs, blocks); err != nil {
			return p, err
		}
		p.end += int64(roundUp(recordHead + extentSize*n + 4*blocks))
		seq = p.add(f, seq, extents, crcs[from:])
	}
	if p.end != t.end || seq-1 != t.last {
		return p, wire.Corrupt("index does not add up")
	}
	return p, r.End()
}

// index reads the index of the file. It is nil if there is none that holds.
func (f *File) index() (*parsed, error) {
	size, err := f.f.Size()
	if err != nil || size < headerSize+indexTrailer {
		return nil, err
	}
	read := func(b []byte) error {
		_, err := f.f.ReadAt(b, size-int64(len(b)))
		if errors.Is(err, io.EOF) {
			err = nil // it has shrunk: what was not read does not hold
		}
		return err
	}
	b := make([]byte, min(indexGuess, size-headerSize))
	if err := read(b); err != nil {
		return nil, err
	}
	t, err := decodeTrailer(b[len(b)-indexTrailer:], f.header)
	n := int64(t.entries) + indexTrailer
	if err != nil || n > size-headerSize {
		return nil, nil
	}
	if n > int64(len(b)) {
		b = make([]byte, n)
		if err := read(b); err != nil {
			return nil, err
		}
	}
	p, err := f.decodeIndex(b[int64(len(b))-n:], t)
	if err != nil || p.end > size-n {
		return nil, nil
	}
	f.indexed.Store(true)
	return &p, nil
}

// seal writes the index of a file that is full.
func (f *File) seal(index []byte, size int64) error {
	if f.hurt.Load() {
		return nil
	}
	if _, err := f.f.WriteAt(index, size-int64(len(index))); err != nil {
		return err
	}
	f.indexed.Store(true)
	if f.hurt.Load() { // found meanwhile
		f.distrust()
	}
	return nil
}

// distrust makes the index of a file void after a read of a damaged block, so that
// the next Open checks every block of the file. It ignores errors: the damage
// matters only as long as the file is in use.
func (f *File) distrust() {
	f.hurt.Store(true)
	if size, err := f.f.Size(); err == nil && f.indexed.Load() && size >= headerSize+indexTrailer {
		if _, err := f.f.WriteAt(zeros[:indexTrailer], size-indexTrailer); err == nil {
			_ = f.f.Sync() // see above
		}
	}
}
