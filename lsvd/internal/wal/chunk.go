package wal

import (
	"miren.dev/runtime/lsvd/internal/wire"
	"miren.dev/runtime/pkg/errs"
)

// Chunk is where the log has one extent.
type Chunk struct {
	Seq    uint64
	Kind   Kind
	LBA    uint64
	Blocks uint64
	file   *File
	off    int64
	crcs   []uint32
}

// Read fills p with the chunk's data from its block first on, and checks it. If
// it is damaged, the next to open the log finds that.
func (c *Chunk) Read(p []byte, first uint64) error {
	if _, err := c.file.f.ReadAt(p, c.off+int64(first)*Block); err != nil {
		return err
	}
	if i := c.damaged(p, first); i >= 0 {
		c.file.distrust()
		return errs.New(errs.Corrupt, "the local log is damaged: block %d of the disk, sequence %d, in %s", c.LBA+first+uint64(i), c.Seq, c.file.name).
			WithHint("open the volume again: it says from where on the log cannot be used. Accept that loss, or restore the log directory")
	}
	return nil
}

// ReadCached is Read if that need not wait for the disk. Else, and if the chunk
// is damaged, it reports false, and some of p may have changed.
func (c *Chunk) ReadCached(p []byte, first uint64) bool {
	return c.file.f.ReadCached(p, c.off+int64(first)*Block) && c.damaged(p, first) < 0
}

// damaged returns the first block of p that is not that of the chunk, whose
// block first it begins with, or -1.
func (c *Chunk) damaged(p []byte, first uint64) int {
	for i := range len(p) / Block {
		if wire.CRC1(p[i*Block:(i+1)*Block]) != c.crcs[first+uint64(i)] {
			return i
		}
	}
	return -1
}
