// Package wire encodes and decodes the fixed little-endian layouts of the
// disk's formats. A Reader never panics and never allocates by an unchecked
// length: reading past the end makes it fail, and the failure sticks.
package wire

import (
	"encoding/binary"
	"hash/crc32"

	"miren.dev/runtime/pkg/errs"
)

var table = crc32.MakeTable(crc32.Castagnoli)

// CRC is the CRC-32C of the parts, one after the other.
func CRC(parts ...[]byte) uint32 {
	var c uint32
	for _, p := range parts {
		c = crc32.Update(c, table, p)
	}
	return c
}

// CRC1 is the CRC-32C of b.
func CRC1(b []byte) uint32 { return crc32.Update(0, table, b) }

// Corrupt is an error of class Corrupt.
func Corrupt(format string, args ...any) error { return errs.New(errs.Corrupt, format, args...) }

// Writer appends values to B.
type Writer struct{ B []byte }

// U8 appends one byte.
func (w *Writer) U8(v uint8) { w.B = append(w.B, v) }

// U16 appends two bytes.
func (w *Writer) U16(v uint16) { w.B = binary.LittleEndian.AppendUint16(w.B, v) }

// U32 appends four bytes.
func (w *Writer) U32(v uint32) { w.B = binary.LittleEndian.AppendUint32(w.B, v) }

// U64 appends eight bytes.
func (w *Writer) U64(v uint64) { w.B = binary.LittleEndian.AppendUint64(w.B, v) }

// Bytes appends v as it is.
func (w *Writer) Bytes(v []byte) { w.B = append(w.B, v...) }

// Uvarint appends v in one to ten bytes.
func (w *Writer) Uvarint(v uint64) { w.B = binary.AppendUvarint(w.B, v) }

// String appends the length of s as uvarint, and s.
func (w *Writer) String(s string) {
	w.Uvarint(uint64(len(s)))
	w.B = append(w.B, s...)
}

// Reader takes values from the front of B.
type Reader struct {
	B   []byte
	err error
}

// Err is the first failure.
func (r *Reader) Err() error { return r.err }

// Bytes takes n bytes; they share memory with B.
func (r *Reader) Bytes(n int) []byte {
	if r.err != nil || n < 0 || n > len(r.B) {
		if r.err == nil {
			r.err = Corrupt("%d bytes where %d are needed", len(r.B), n)
		}
		r.B = nil
		return nil
	}
	v := r.B[:n:n]
	r.B = r.B[n:]
	return v
}

// U8 takes one byte.
func (r *Reader) U8() uint8 {
	if b := r.Bytes(1); b != nil {
		return b[0]
	}
	return 0
}

// U16 takes two bytes.
func (r *Reader) U16() uint16 {
	if b := r.Bytes(2); b != nil {
		return binary.LittleEndian.Uint16(b)
	}
	return 0
}

// U32 takes four bytes.
func (r *Reader) U32() uint32 {
	if b := r.Bytes(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

// U64 takes eight bytes.
func (r *Reader) U64() uint64 {
	if b := r.Bytes(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// Uvarint takes a uvarint.
func (r *Reader) Uvarint() uint64 {
	v, n := binary.Uvarint(r.B)
	if r.err != nil || n <= 0 {
		if r.err == nil {
			r.err = Corrupt("malformed integer")
		}
		r.B = nil
		return 0
	}
	r.B = r.B[n:]
	return v
}

// Count takes a uvarint that counts things of at least size bytes each, so
// it never exceeds what the rest can hold.
func (r *Reader) Count(size int) int {
	v := r.Uvarint()
	if r.err == nil && v > uint64(len(r.B)/size) {
		r.err = Corrupt("%d entries in %d bytes", v, len(r.B))
		r.B = nil
		return 0
	}
	return int(v)
}

// String takes a string.
func (r *Reader) String() string { return string(r.Bytes(r.Count(1))) }

// End fails unless everything has been taken.
func (r *Reader) End() error {
	if r.err == nil && len(r.B) != 0 {
		r.err = Corrupt("%d bytes too many", len(r.B))
	}
	return r.err
}
