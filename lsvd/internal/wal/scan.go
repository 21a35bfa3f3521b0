package wal

import (
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"

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

	promised uint64 // up to here Replay has found it to be durable
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

// Size is the size of all files of the volume.
func (f *Found) Size() (n int64, err error) {
	for _, x := range f.files {
		size, err := x.f.Size()
		if err != nil {
			return 0, err
		}
		n += size
	}
	return n, nil
}

// Empty reports whether there are no files of the volume.
func (f *Found) Empty() bool { return len(f.files) == 0 }

// Has reports whether there are files of the epoch.
func (f *Found) Has(epoch uint64) bool {
	return slices.ContainsFunc(f.files, func(x *File) bool { return x.header.Epoch == epoch })
}

// promise is the most that any intact record head in the file from off on
// promises, wherever it is: the ones before it may be damaged.
func (f *File) promise(off int64) (uint64, error) {
	size, err := f.f.Size()
	if err != nil {
		return 0, err
	}
	most := uint64(0)
	const step = 1 << 20
	b := make([]byte, step+MaxExtents*extentSize+MaxData/Block*4+recordHead) // a head may reach into the next step
	for ; off < size; off += step {
		n, err := f.f.ReadAt(b[:min(int64(len(b)), size-off)], off)
		if err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		for at := 0; at+recordHead <= min(step, n); at += align {
			if binary.LittleEndian.Uint32(b[at:]) != recordMagic {
				continue
			}
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

// parsed is the content of a file: chunks with consecutive numbers, and where
// the first thing that is not a valid record begins.
type parsed struct {
	chunks  []Chunk
	end     int64
	synced  uint64 // the most that a record promises
	indexed bool   // blocks were not looked at
}

// add takes in the extents of a record whose data begin at end, and returns the
// sequence number that comes next.
func (p *parsed) add(f *File, seq uint64, extents []Extent, crcs []uint32) uint64 {
	for _, e := range extents {
		c := Chunk{Seq: seq, Kind: e.Kind, LBA: e.LBA, Blocks: e.Blocks, file: f, off: p.end}
		if e.Kind == Data {
			c.crcs, crcs = crcs[:e.Blocks:e.Blocks], crcs[e.Blocks:]
			p.end += int64(e.Blocks) * Block
		}
		p.chunks = append(p.chunks, c)
		seq++
	}
	return seq
}

// last is the last sequence number, or 0.
func (p *parsed) last() uint64 {
	if len(p.chunks) == 0 {
		return 0
	}
	return p.chunks[len(p.chunks)-1].Seq
}

var scanBuffers = sync.Pool{New: func() any { b := make([]byte, 2*MaxData); return &b }}

// scanStep is what is read of a file at first: it may have little. Each step is
// twice as long as the one before.
const scanStep = 256 << 10

// parse reads the records of a file and checks every block.
func (f *File) parse() (*parsed, error) {
	size, err := f.f.Size()
	if err != nil {
		return nil, err
	}
	b := *scanBuffers.Get().(*[]byte)
	defer scanBuffers.Put(&b)
	p := &parsed{end: headerSize}
	seq := f.header.First
	lo, hi, step := int64(0), int64(0), int64(scanStep) // what of the file is in b
	// have makes n bytes from p.end available.
	have := func(n int) ([]byte, error) {
		if p.end+int64(n) > size {
			return nil, nil
		}
		if n > len(b) {
			return nil, nil // no record is that long
		}
		if p.end < lo || p.end+int64(n) > hi {
			lo = p.end
			hi = min(lo+max(step, int64(n)), lo+int64(len(b)), size)
			step *= 2
			if _, err := f.f.ReadAt(b[:hi-lo], lo); err != nil {
				return nil, err
			}
		}
		return b[p.end-lo:][:n], nil
	}
	for {
		fixed, err := have(recordHead)
		if err != nil || fixed == nil {
			return p, err
		}
		info, err := decodeFixed(fixed, f.header)
		if err != nil || info.seq != seq {
			return p, nil
		}
		head := roundUp(info.head)
		rec, err := have(head + info.data)
		if err != nil || rec == nil {
			return p, err
		}
		extents, crcs, err := decodeHead(rec, info)
		if err != nil {
			return p, nil
		}
		for k, crc := range crcs {
			if wire.CRC1(rec[head+k*Block:][:Block]) != crc {
				return p, nil
			}
		}
		p.synced = max(p.synced, info.synced)
		p.end += int64(head)
		seq = p.add(f, seq, extents, crcs)
	}
}
