package schema

import (
	"encoding/binary"
	"time"
)

// The encodings below order bytewise as their values do, and two values of one
// type are equal exactly if their encodings are.

// EncodeIndexString encodes a string, enum or reference.
func EncodeIndexString(s string) []byte { return []byte(s) }

// EncodeIndexInt encodes an integer: big endian with the sign bit flipped.
func EncodeIndexInt(i int64) []byte {
	return binary.BigEndian.AppendUint64(nil, uint64(i)^1<<63)
}

// EncodeIndexBool encodes false as 0 and true as 1.
func EncodeIndexBool(b bool) []byte {
	if b {
		return []byte{1}
	}
	return []byte{0}
}

// EncodeIndexDuration encodes a duration in nanoseconds.
func EncodeIndexDuration(d time.Duration) []byte { return EncodeIndexInt(int64(d)) }

// EncodeIndexTime encodes an instant: seconds since 1970 as an integer, then
// nanoseconds in four bytes.
func EncodeIndexTime(t time.Time) []byte {
	b := EncodeIndexInt(t.Unix())
	return binary.BigEndian.AppendUint32(b, uint32(t.Nanosecond()))
}

// AddIndex, AddUnique and AddRef are for generated code.

// AddIndex adds an indexed value.
func (e *Extracted) AddIndex(attr string, value []byte) {
	e.Index = append(e.Index, IndexEntry{attr, value})
}

// AddUnique adds a unique value.
func (e *Extracted) AddUnique(attr string, value []byte, global bool) {
	e.Unique = append(e.Unique, UniqueEntry{attr, value, global})
}

// AddRef adds a reference unless id is empty.
func (e *Extracted) AddRef(attr, kind string, id ID, d OnDelete) {
	if id != "" {
		e.Refs = append(e.Refs, RefEntry{attr, kind, id, d})
	}
}
