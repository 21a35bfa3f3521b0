package diskcache

import (
	"errors"
	"io"

	"miren.dev/runtime/lsvd/internal/name"
	"miren.dev/runtime/lsvd/internal/wire"
	"miren.dev/runtime/pkg/errs"
)

// Version is the version of the format.
const Version = 1

const (
	tableName   = "cache-table"
	dataName    = "cache-data"
	headerMagic = "LSVDCACH"
	recordMagic = 0x43455243 // "CREC"
	headerSize  = 4096
	recordSize  = 144
)

func recordAt(id int32) int64 { return headerSize + int64(id)*recordSize }

func encodeHeader(slots int) []byte {
	w := wire.Writer{B: make([]byte, 0, headerSize)}
	w.Bytes([]byte(headerMagic))
	w.U32(Version)
	w.U32(SlotSize)
	w.U64(uint64(slots))
	w.U32(wire.CRC(w.B))
	return append(w.B, make([]byte, headerSize-len(w.B))...)
}

// readHeader reports whether what is there fits into the cache.
func (c *Cache) readHeader() (bool, error) {
	b := make([]byte, headerSize)
	if n, err := c.table.ReadAt(b, 0); errors.Is(err, io.EOF) && n == 0 {
		_, err := c.table.WriteAt(encodeHeader(len(c.slots)), 0)
		return err == nil, err
	} else if err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	slots, ok := decodeHeader(b)
	if !ok || slots > len(c.slots) {
		return false, nil
	}
	if slots < len(c.slots) {
		_, err := c.table.WriteAt(encodeHeader(len(c.slots)), 0)
		return err == nil, err
	}
	return true, nil
}

func decodeHeader(b []byte) (slots int, ok bool) {
	r := wire.Reader{B: b}
	magic, version, size, n := string(r.Bytes(8)), r.U32(), r.U32(), r.U64()
	crc := r.U32()
	if r.Err() != nil || crc != wire.CRC(b[:24]) || magic != headerMagic || version != Version || size != SlotSize || n > 1<<30 {
		return 0, false
	}
	return int(n), true
}

func encodeRecord(k Key, id int32, s *slot) []byte {
	w := wire.Writer{B: make([]byte, 0, recordSize)}
	w.U32(recordMagic)
	w.U32(uint32(id))
	w.Bytes(k.Ref.Volume[:])
	w.U64(k.Ref.Epoch)
	w.U64(k.Ref.Num)
	w.U64(k.Size)
	w.U64(k.First)
	w.U64(k.Last)
	w.U32(k.Frame)
	w.U16(uint16(s.size / block))
	w.U8(uint8(k.Ref.Kind))
	w.U8(0)
	w.U32(0)
	for _, sum := range s.sums {
		w.U32(sum)
	}
	w.U32(wire.CRC(w.B))
	return w.B
}

func decodeRecord(b []byte, id int32) (k Key, s slot, ok bool) {
	r := wire.Reader{B: b}
	magic, at := r.U32(), r.U32()
	copy(k.Ref.Volume[:], r.Bytes(16))
	k.Ref.Epoch, k.Ref.Num = r.U64(), r.U64()
	k.Size, k.First, k.Last = r.U64(), r.U64(), r.U64()
	k.Frame = r.U32()
	n := r.U16()
	k.Ref.Kind = name.Kind(r.U8())
	r.U8()
	r.U32()
	for i := range s.sums {
		s.sums[i] = r.U32()
	}
	crc := r.U32()
	if r.End() != nil || magic != recordMagic || crc != wire.CRC(b[:len(b)-4]) || at != uint32(id) || n < 1 || n > blocks {
		return k, s, false
	}
	s.frame, s.size = k.Frame, uint32(n)*block
	return k, s, true
}

// load reads the table. Records that do not hold are of empty slots.
func (c *Cache) load() error {
	size, err := c.table.Size()
	if err != nil {
		return err
	}
	// A power loss may leave a part of the header's size with all of its content.
	n := int32(min((max(size-headerSize, 0)+recordSize-1)/recordSize, int64(len(c.slots))))
	b := make([]byte, 1024*recordSize)
	for id := int32(0); id < n; id += 1024 {
		part := b[:min(1024, n-id)*recordSize]
		clear(part)
		if _, err := c.table.ReadAt(part, recordAt(id)); err != nil && !errors.Is(err, io.EOF) {
			return errs.Wrap(err, "read table")
		}
		for i := int32(0); len(part) > 0; i++ {
			k, s, ok := decodeRecord(part[:recordSize], id+i)
			part = part[recordSize:]
			if _, twice := c.find(k); !ok || twice {
				c.free = append(c.free, id+i)
				continue
			}
			c.set(id+i, k, s, true)
		}
	}
	c.top = n
	return nil
}
