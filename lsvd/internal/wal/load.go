package wal

import (
	"sync"
	"unsafe"
)

// Loaded is the data of chunks that follow each other in the log, in memory:
// a caller that wants most of it, in another order, reads it with a few large
// reads instead of many small ones.
type Loaded struct {
	first uint64   // sequence number
	data  [][]byte // by sequence number; nil: not loaded
	bufs  []*[]byte
}

// loadPiece is the size of one read, in bytes. A buffer also has room for the rest of
// the pages at both ends.
const loadPiece = 1 << 20

var loadBufs = sync.Pool{New: func() any {
	b := make([]byte, loadPiece+3*page)
	b = b[-uintptr(unsafe.Pointer(&b[0]))&(page-1):][:loadPiece+2*page]
	return &b
}}

// Load reads the data of chunks with consecutive sequence numbers. It leaves out
// chunks that it cannot read.
func Load(chunks []Chunk) *Loaded {
	l := &Loaded{data: make([][]byte, len(chunks))}
	if len(chunks) > 0 {
		l.first = chunks[0].Seq
	}
	for i := 0; i < len(chunks); {
		c := &chunks[i]
		if c.Kind != Data {
			i++
			continue
		}
		start, n := c.off&^(page-1), i
		for ; i < len(chunks); i++ {
			d := &chunks[i]
			if d.Kind == Data && (d.file != c.file || d.off < start || d.end()-start > loadPiece+page) {
				break
			}
		}
		if i == n { // too large
			i++
			continue
		}
		l.load(chunks[n:i], start)
	}
	return l
}

func (c *Chunk) end() int64 { return c.off + int64(c.Blocks)*Block }

// load reads chunks of one file, all of whose data lies from start on.
func (l *Loaded) load(chunks []Chunk, start int64) {
	buf := loadBufs.Get().(*[]byte)
	l.bufs = append(l.bufs, buf)
	end := start
	for i := range chunks {
		if chunks[i].Kind == Data {
			end = chunks[i].end()
		}
	}
	b := (*buf)[:(end-start+page-1)&^(page-1)]
	n, _ := chunks[0].file.f.ReadDirect(b, start) // what is missing is left out
	for i := range chunks {
		if c := &chunks[i]; c.Kind == Data && c.end()-start <= int64(n) {
			l.data[c.Seq-l.first] = b[c.off-start : c.end()-start]
		}
	}
}

// Read is that of c, which is one of the chunks.
func (l *Loaded) Read(c *Chunk, p []byte, first uint64) error {
	if d := l.data[c.Seq-l.first]; d != nil {
		copy(p, d[first*Block:])
		if c.damaged(p, first) < 0 {
			return nil
		}
	}
	return c.Read(p, first)
}

// Free returns the memory to its pool.
func (l *Loaded) Free() {
	for _, b := range l.bufs {
		loadBufs.Put(b)
	}
	l.bufs, l.data = nil, nil
}
