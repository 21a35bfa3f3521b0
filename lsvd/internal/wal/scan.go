package wal

import (
	"errors"
	"io"
	"slices"
	"strings"

	"miren.dev/runtime/lsvd/internal/name"
	"miren.dev/runtime/lsvd/internal/wire"
	"miren.dev/runtime/lsvd/vfs"
)

// filePrefix begins the names of log files.
const filePrefix = "log-"

// Found is the local log of a volume as it was found.
type Found struct {
	files []*File // with valid headers of this volume, by generation
	other []*File // to be recycled: damaged, new, or of another volume
	used  map[string]bool
}

// Find opens the log files in fs.
func Find(fs vfs.FS, volume name.Volume) (*Found, error) {
	names, err := fs.List()
	if err != nil {
		return nil, err
	}
	found := &Found{used: map[string]bool{}}
	for _, n := range names {
		if !strings.HasPrefix(n, filePrefix) {
			continue
		}
		found.used[n] = true
		f, err := fs.Open(n, false)
		if err != nil {
			found.Close()
			return nil, err
		}
		file := &File{f: f, name: n}
		b := make([]byte, headerSize)
		if _, err := f.ReadAt(b, 0); err != nil && !errors.Is(err, io.EOF) {
			f.Close()
			found.Close()
			return nil, err
		}
		if h, err := DecodeHeader(b); err == nil && h.Volume == volume {
			file.header = h
			found.files = append(found.files, file)
		} else {
			found.other = append(found.other, file)
		}
	}
	slices.SortFunc(found.files, func(a, b *File) int {
		return int(int64(a.header.Generation - b.header.Generation))
	})
	return found, nil
}

// Close closes all files.
func (f *Found) Close() {
	for _, file := range slices.Concat(f.files, f.other) {
		file.f.Close()
	}
}

// Has reports whether there are files of the epoch.
func (f *Found) Has(epoch uint64) bool {
	return slices.ContainsFunc(f.files, func(x *File) bool { return x.header.Epoch == epoch })
}

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

// Read fills p with the chunk's data from its block first on, and checks it.
func (c *Chunk) Read(p []byte, first uint64) error {
	if _, err := c.file.f.ReadAt(p, c.off+int64(first)*Block); err != nil {
		return err
	}
	for i := 0; i < len(p)/Block; i++ {
		if wire.CRC(p[i*Block:(i+1)*Block]) != c.crcs[first+uint64(i)] {
			return wire.Corrupt("log block of sequence %d is damaged", c.Seq)
		}
	}
	return nil
}

// Replay calls apply for every extent after the sequence number after, in
// order, that belongs to the history that ends with epoch. It returns the last
// sequence number, which is after if there is none, and up to where the log
// promises that it was durable: if that is more, the log is damaged. It stops
// for good at the first gap.
func (f *Found) Replay(epoch, after uint64, apply func(*Chunk) error) (last, promised uint64, err error) {
	// Follow the links from the last epoch back to the first.
	type span struct{ epoch, limit uint64 }
	spans := []span{{epoch, ^uint64(0)}}
	for {
		last := spans[len(spans)-1]
		i := slices.IndexFunc(f.files, func(x *File) bool { return x.header.Epoch == last.epoch })
		if i < 0 {
			break
		}
		h := f.files[i].header
		if h.PrevEpoch >= last.epoch || h.PrevSeq > last.limit {
			break
		}
		spans = append(spans, span{h.PrevEpoch, h.PrevSeq})
	}
	slices.Reverse(spans)
	seq := after
spans:
	for _, s := range spans {
		for _, file := range f.files {
			if file.header.Epoch != s.epoch || seq >= s.limit {
				continue
			}
			next, err := file.replay(seq, s.limit, apply)
			if err != nil {
				return seq, 0, err
			}
			seq = next
		}
		if s.limit != ^uint64(0) && seq < s.limit {
			break spans
		}
	}
	for _, s := range spans {
		if s.limit != ^uint64(0) {
			promised = max(promised, s.limit) // the next epoch synced it first
		}
		for _, file := range f.files {
			if file.header.Epoch == s.epoch {
				p, err := file.promise()
				if err != nil {
					return seq, 0, err
				}
				promised = max(promised, min(p, s.limit))
			}
		}
	}
	return seq, promised, nil
}

// promise is the most that any intact record head in the file promises,
// wherever it is: the ones before it may be damaged.
func (f *File) promise() (uint64, error) {
	size, err := f.f.Size()
	if err != nil {
		return 0, err
	}
	most := uint64(0)
	const step = 1 << 20
	b := make([]byte, step+MaxExtents*extentSize+MaxData/Block*4+recordHead) // a head may reach into the next step
	for off := int64(headerSize); off < size; off += step {
		n, err := f.f.ReadAt(b[:min(int64(len(b)), size-off)], off)
		if err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		for at := 0; at < min(step, n); at += align {
			info, err := decodeFixed(b[at:n], f.header)
			if err != nil || info.synced <= most {
				continue
			}
			if _, _, err := decodeHead(b[at:n], info); err == nil {
				most = info.synced
			}
		}
	}
	return most, nil
}

// replay applies the extents of one file with after < seq <= limit.
func (f *File) replay(after, limit uint64, apply func(*Chunk) error) (uint64, error) {
	size, err := f.f.Size()
	if err != nil {
		return after, err
	}
	next := f.header.First
	for off := int64(headerSize); off+recordHead <= size; {
		chunks, length, err := f.record(off, size, next)
		if err != nil || chunks == nil {
			return after, err
		}
		for _, c := range chunks {
			if c.Seq > limit {
				return after, nil
			}
			if c.Seq <= after {
				continue
			}
			if c.Seq != after+1 {
				return after, nil // a gap between files
			}
			if err := apply(c); err != nil {
				return after, err
			}
			after = c.Seq
			f.last = c.Seq
		}
		next += uint64(len(chunks))
		off += length
	}
	return after, nil
}

// record reads the record at off, which must begin with the sequence number
// seq. It returns nil without an error where there is no valid one.
func (f *File) record(off, size int64, seq uint64) ([]*Chunk, int64, error) {
	fixed := make([]byte, recordHead)
	if _, err := f.f.ReadAt(fixed, off); err != nil {
		return nil, 0, err
	}
	info, err := decodeFixed(fixed, f.header)
	length := int64(roundUp(info.head)) + int64(info.data)
	if err != nil || info.seq != seq || off+length > size {
		return nil, 0, nil
	}
	b := make([]byte, length)
	if _, err := f.f.ReadAt(b, off); err != nil {
		return nil, 0, err
	}
	extents, crcs, err := decodeHead(b, info)
	if err != nil {
		return nil, 0, nil
	}
	at := roundUp(info.head)
	for k, crc := range crcs {
		if wire.CRC(b[at+k*Block:at+(k+1)*Block]) != crc {
			return nil, 0, nil
		}
	}
	chunks := make([]*Chunk, len(extents))
	for k, e := range extents {
		c := &Chunk{Seq: seq + uint64(k), Kind: e.Kind, LBA: e.LBA, Blocks: e.Blocks, file: f, off: off + int64(at)}
		if e.Kind == Data {
			c.crcs, crcs = crcs[:e.Blocks], crcs[e.Blocks:]
			at += int(e.Blocks) * Block
		}
		chunks[k] = c
	}
	return chunks, length, nil
}
