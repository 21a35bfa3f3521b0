package wal

// The log is written in whole pages, from the beginning of the one it ends in:
// what that has is written once more, and the rest of the last one is zeros,
// which the next record overwrites. A page that is written in part must be
// read first if it is not in the page cache, as those of recycled files are
// not once memory is short; and past the page cache only whole sectors at
// aligned addresses can be written.

const page = 4096

// directFrom is the size from which a record passes the page cache by: then
// copying it costs more time than waiting for the disk.
const directFrom = 256 << 10

// pages makes buffers, aligned to pages as large ones are, for the longest
// head with what comes before it in its page, and for what follows the data.
func pages() (head, pad []byte) {
	n := page + roundUp(recordHead+extentSize*MaxExtents+MaxData/Block*4)
	n = (n + page - 1) &^ (page - 1)
	b := make([]byte, n+page)
	return b[:0:n], b[n:]
}

// write writes the parts, n bytes and the padding, to cur from the offset
// start. The caller holds mu.
func (l *Log) write(start, n int64) error {
	begin := l.asked.record()
	if n >= directFrom {
		return l.cur.f.WriteDirect(l.parts, start)
	}
	err := l.cur.f.WriteVec(l.parts, start)
	switch {
	case l.asked.due:
		l.cur.f.Writeback(start, n) // a caller that waits for the sync waits for this
	case begin:
		l.early, l.earlyAt = n, start
	}
	return err
}

// Begin begins the writeback of appended data if a sync may follow: the sync then finds
// it under way. The caller of Append calls Begin after it has told the waiting writers.
func (l *Log) Begin() {
	if l.early > 0 {
		l.cur.f.Writeback(l.earlyAt, l.early)
		l.early = 0
	}
}

// lead makes head begin with the last n bytes of the record that was written,
// and of what was before it. The caller holds mu.
func (l *Log) lead(extents []Extent, n int) {
	from := l.head
	for i := len(extents) - 1; i >= 0; i-- {
		if d := extents[i].Data; len(d) > 0 {
			from = d
			break
		}
	}
	copy(l.head[:n], from[len(from)-n:])
	l.head = l.head[:n]
}
