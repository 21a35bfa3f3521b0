package agentproto

import (
	"encoding/binary"
	"errors"
)

// ErrMalformed is returned for bytes that are no message of the expected type.
var ErrMalformed = errors.New("agentproto: malformed message")

func putUint(b []byte, v uint64) []byte { return binary.AppendUvarint(b, v) }

func putInt(b []byte, v int64) []byte { return binary.AppendVarint(b, v) }

func putBool(b []byte, v bool) []byte {
	if v {
		return append(b, 1)
	}
	return append(b, 0)
}

func putString(b []byte, s string) []byte {
	return append(putUint(b, uint64(len(s))), s...)
}

func putBytes(b, p []byte) []byte { return append(putUint(b, uint64(len(p))), p...) }

func putStrings(b []byte, list []string) []byte {
	b = putUint(b, uint64(len(list)))
	for _, s := range list {
		b = putString(b, s)
	}
	return b
}

// decoder reads fields in order. After the end of the input every field is
// zero; a malformed field makes every later read fail.
type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) err() error {
	if d.bad {
		return ErrMalformed
	}
	return nil
}

func (d *decoder) fail() {
	d.bad, d.b = true, nil
}

func (d *decoder) uint() uint64 {
	if len(d.b) == 0 {
		return 0
	}
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.fail()
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) int() int64 {
	if len(d.b) == 0 {
		return 0
	}
	v, n := binary.Varint(d.b)
	if n <= 0 {
		d.fail()
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) bool() bool { return d.uint() != 0 }

// offset is a position in a stream, which fits an int64.
func (d *decoder) offset() int64 {
	v := d.uint()
	if v > 1<<62 {
		d.fail()
		return 0
	}
	return int64(v)
}

func (d *decoder) string() string { return string(d.bytes()) }

// bytes is part of the input; nil if it is empty.
func (d *decoder) bytes() []byte {
	n := d.uint()
	if n > uint64(len(d.b)) {
		d.fail()
		return nil
	}
	if n == 0 {
		return nil
	}
	p := d.b[:n:n]
	d.b = d.b[n:]
	return p
}

func (d *decoder) strings() []string {
	n := d.uint()
	if n > uint64(len(d.b)) { // each takes a byte at least
		d.fail()
		return nil
	}
	if n == 0 {
		return nil
	}
	list := make([]string, 0, min(n, 64))
	for range n {
		list = append(list, d.string())
		if d.bad {
			return nil
		}
	}
	return list
}
