package nbd

import (
	"math/bits"
	"sync"
)

// buffer holds the data of one request. It comes from a pool of its size class.
// Size classes are powers of two from one page up, so every buffer begins at a page.
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

// free returns the memory to its pool; the caller does not use it afterwards. b may be nil.
func (b *buffer) free() {
	if b != nil {
		pools[b.class].Put(b)
	}
}
