package segment

import "miren.dev/runtime/lsvd/internal/extent"

// Define puts into m what entries of segment num define, in their order. block
// is the block of the segment that the first entry with data begins at; Define
// returns the block after the last one.
func Define(m *extent.Map, num uint64, block uint32, entries []Entry) uint32 {
	for _, e := range entries {
		if e.Zero {
			m.Set(e.LBA, e.Blocks, extent.Value{Src: num, Off: extent.Zero})
			continue
		}
		m.Set(e.LBA, e.Blocks, extent.Value{Src: num, Off: block})
		block += uint32(e.Blocks)
	}
	return block
}
