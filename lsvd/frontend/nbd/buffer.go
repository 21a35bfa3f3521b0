package nbd

import (
	"math/bits"
	"sync"
)

// buffer is memory for the data of a request, of a pool by size. The sizes are
// powers of two from a page up, so that it begins at a page.
type buffer struct {
	b     []byte // as long as was asked for
	class int
}

const (
	pageBits = 12
	classes  = 25 - pageBits + 1 // up to maxPayload, 32 MiB
)

var pools [classes]sync.Pool

func newBuffer(n int) *buffer {
	class := max(bits.Len(uint(max(n, 1)-1))-pageBits, 0)
	x, _ := pools[class].Get().(*buffer)
	if x == nil {
		x = &buffer{b: make([]byte, 1<<(pageBits+class)), class: class}
	}
	x.b = x.b[:n]
	return x
}

// free gives the memory back; it must not be used any more. b may be nil.
func (b *buffer) free() {
	if b != nil {
		pools[b.class].Put(b)
	}
}
