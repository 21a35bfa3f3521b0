package mcpserver

import (
	"fmt"
	"strings"
)

// bounded keeps the beginning and the end of a stream.
type bounded struct {
	max        int // bytes that are kept
	head, tail []byte
	total      int64
}

// Write implements io.Writer. It never fails.
func (b *bounded) Write(p []byte) (int, error) {
	n := len(p)
	b.total += int64(n)
	if free := b.max/2 - len(b.head); free > 0 {
		k := min(free, len(p))
		b.head, p = append(b.head, p[:k]...), p[k:]
	}
	b.tail = append(b.tail, p...)
	// The tail is cut seldom, so that a byte is copied twice at most.
	if most := b.max - b.max/2; len(b.tail) > 2*most {
		b.tail = append(b.tail[:0], b.tail[len(b.tail)-most:]...)
	}
	return n, nil
}

// cut returns the number of bytes that the text does not have.
func (b *bounded) cut() int64 { return max(0, b.total-int64(b.max)) }

// String returns the stream as text, with a mark where it was cut. Bytes that
// are no text are replaced.
func (b *bounded) String() string {
	if b.cut() == 0 {
		return strings.ToValidUTF8(string(b.head)+string(b.tail), "\uFFFD")
	}
	tail := b.tail[len(b.tail)-(b.max-b.max/2):]
	return strings.ToValidUTF8(string(b.head), "\uFFFD") +
		fmt.Sprintf("\n[... %d bytes were cut here: write the output to a file and read parts of it with read_file ...]\n", b.cut()) +
		strings.ToValidUTF8(string(tail), "\uFFFD")
}
