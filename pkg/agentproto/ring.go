package agentproto

// Ring holds a part of a stream of bytes that are numbered from the stream's
// beginning: at most max bytes, in an array that grows up to max and is then
// reused. The zero value is not usable: see NewRing.
type Ring struct {
	buf  []byte // its length is a power of two; the byte at offset n is buf[n%len(buf)]
	base int64  // offset of the first byte
	end  int64  // offset after the last one
	max  int
}

// NewRing returns an empty ring at offset; max is a power of two.
func NewRing(offset int64, max int) Ring { return Ring{base: offset, end: offset, max: max} }

// Base returns the offset of the first byte.
func (r *Ring) Base() int64 { return r.base }

// End returns the offset after the last byte.
func (r *Ring) End() int64 { return r.end }

// Len returns how many bytes there are.
func (r *Ring) Len() int { return int(r.end - r.base) }

// Room returns how many bytes can be added.
func (r *Ring) Room() int { return r.max - r.Len() }

// Add appends as much of b as there is room for and returns how much that was.
func (r *Ring) Add(b []byte) int {
	n := min(len(b), r.Room())
	r.grow(r.Len() + n)
	for b = b[:n]; len(b) > 0; {
		m := copy(r.buf[int(r.end)&(len(r.buf)-1):], b)
		r.end += int64(m)
		b = b[m:]
	}
	return n
}

func (r *Ring) grow(n int) {
	if n <= len(r.buf) {
		return
	}
	size := max(len(r.buf), 1<<10)
	for size < n {
		size *= 2
	}
	grown := make([]byte, size)
	for at := r.base; at < r.end; {
		p := r.At(at, r.Len())
		at += int64(copy(grown[int(at)&(size-1):], p))
	}
	r.buf = grown
}

// At returns bytes from offset on, at most n and maybe fewer. They are valid
// until Drop passes them. Offset must be within the ring.
func (r *Ring) At(offset int64, n int) []byte {
	if offset >= r.end {
		return nil
	}
	i := int(offset) & (len(r.buf) - 1)
	return r.buf[i:min(len(r.buf), i+min(n, int(r.end-offset)))]
}

// Drop forgets the bytes before offset and reports whether there were any.
func (r *Ring) Drop(offset int64) bool {
	offset = min(offset, r.end)
	if offset <= r.base {
		return false
	}
	r.base = offset
	return true
}

// Skip moves an empty ring on to offset.
func (r *Ring) Skip(offset int64) {
	if r.Len() == 0 && offset > r.base {
		r.base, r.end = offset, offset
	}
}

// Free forgets all bytes and gives the memory back.
func (r *Ring) Free() { r.buf, r.base = nil, r.end }
