package lsvd

import (
	"cmp"
	"context"
	"slices"

	"miren.dev/runtime/lsvd/internal/segment"
)

// GC relocates blocks in the order of addresses, but they lie scattered over the
// segments that it empties. In a local store, each block would be a read of its
// own. So the frames that have any of the blocks are read whole, many in a row at
// once, in the order in which they lie.

// relocationRead is how much is read at once.
const relocationRead = 1 << 20

// relocationBuffer is the data of the blocks that GC relocates.
type relocationBuffer struct {
	data []byte
	at   []int  // where that of each move begins
	has  []bool // whether it could be read
}

// readRelocations reads the data of moves into a buffer, if the store is local.
// It leaves out what it cannot read: copyOut then reads it block by block.
func (d *Device) readRelocations(ctx context.Context, moves []move) *relocationBuffer {
	if !d.cache.Local() {
		return nil
	}
	g := &relocationBuffer{at: make([]int, len(moves)), has: make([]bool, len(moves))}
	order, size := make([]int, len(moves)), 0
	for i, m := range moves {
		order[i], g.at[i] = i, size
		size += int(m.n) * BlockSize
	}
	g.data = make([]byte, size)
	slices.SortFunc(order, func(a, b int) int {
		x, y := &moves[a], &moves[b]
		return cmp.Or(cmp.Compare(x.seg.Num, y.seg.Num), cmp.Compare(x.from.Off, y.from.Off))
	})
	buf := make([]byte, relocationRead)
	for len(order) > 0 && ctx.Err() == nil {
		first := &moves[order[0]]
		start := uint64(first.from.Off) / segment.FrameBlocks * segment.FrameBlocks
		end, n := start, 0
		for ; n < len(order); n++ {
			m := &moves[order[n]]
			last := min((uint64(m.from.Off)+m.n+segment.FrameBlocks-1)/segment.FrameBlocks*segment.FrameBlocks, m.seg.Blocks)
			if m.seg != first.seg || uint64(m.from.Off) >= end+segment.FrameBlocks || (last-start)*BlockSize > relocationRead {
				break
			}
			end = max(end, last)
		}
		if n == 0 { // too large, and in one piece: it is read as well without
			order = order[1:]
			continue
		}
		p := buf[:(end-start)*BlockSize]
		if d.cache.Read(ctx, &first.seg.Segment, start, p) == nil {
			for _, i := range order[:n] {
				m := &moves[i]
				copy(g.data[g.at[i]:][:m.n*BlockSize], p[(uint64(m.from.Off)-start)*BlockSize:])
				g.has[i] = true
			}
		}
		order = order[n:]
	}
	return g
}

// read fills p with the data of a move from its block first on, if it is there.
func (g *relocationBuffer) read(i int, first uint64, p []byte) bool {
	if g == nil || !g.has[i] {
		return false
	}
	copy(p, g.data[g.at[i]+int(first)*BlockSize:])
	return true
}
