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
		if wire.CRC1(p[i*Block:(i+1)*Block]) != c.crcs[first+uint64(i)] {
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
	// What to read: each file up to the limit of its epoch, but not the files
	// that end before what is asked for.
	type part struct {
		file  *File
		limit uint64
	}
	var parts []part
	for _, s := range spans {
		if s.limit != ^uint64(0) {
			promised = max(promised, s.limit) // the next epoch synced it first
		}
		for i, file := range f.files {
			if file.header.Epoch != s.epoch || after >= s.limit {
				continue
			}
			next := slices.IndexFunc(f.files[i+1:], func(x *File) bool { return x.header.Epoch == s.epoch })
			if next >= 0 && f.files[i+1+next].header.First <= after+1 {
				file.last = f.files[i+1+next].header.First - 1
				continue
			}
			parts = append(parts, part{file, s.limit})
		}
	}
	// Files are read several at a time, and applied in order.
	type result struct {
		parsed
		err error
	}
	results := make([]chan result, len(parts))
	room := make(chan struct{}, scanAhead)
	quit := make(chan struct{})
	for i := range results {
		results[i] = make(chan result, 1)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for i, p := range parts {
			select {
			case room <- struct{}{}:
			case <-quit:
				return
			}
			wg.Go(func() {
				parsed, err := p.file.parse()
				results[i] <- result{parsed, err}
			})
		}
	})
	defer wg.Wait()
	defer close(quit)
	seq := after
	ended := len(parts) // the part in which replay ended
	var end int64       // and where
	for i, p := range parts {
		r := <-results[i]
		<-room
		if r.err != nil {
			return seq, 0, r.err
		}
		if r.chunks == nil {
			r.chunks = []Chunk{}
		}
		gap := false
		for k := range r.chunks {
			c := &r.chunks[k]
			if c.Seq > p.limit {
				break
			}
			if c.Seq <= seq {
				continue
			}
			if gap = c.Seq != seq+1; gap { // only damage makes one
				break
			}
			if err := apply(c); err != nil {
				return seq, 0, err
			}
			seq = c.Seq
			p.file.last = seq
		}
		// The rest of a file matters if the log does not continue behind it.
		stop := gap || i == len(parts)-1
		if !stop {
			n := parts[i+1]
			same := n.file.header.Epoch == p.file.header.Epoch
			stop = seq < p.limit && (!same || n.file.header.First > seq+1)
		}
		if stop {
			ended, end = i, r.end
			if gap {
				end = headerSize
			}
			break
		}
	}
	for i := ended; i < len(parts); i++ {
		p, err := parts[i].file.promise(end)
		if err != nil {
			return seq, 0, err
		}
		promised, end = max(promised, min(p, parts[i].limit)), headerSize
	}
	return seq, promised, nil
}

// scanAhead is how many files are read at once.
const scanAhead = 3

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
	chunks []Chunk
	end    int64
}

var scanBuffers = sync.Pool{New: func() any { b := make([]byte, 2*MaxData); return &b }}

// parse reads the records of a file.
func (f *File) parse() (p parsed, err error) {
	size, err := f.f.Size()
	if err != nil {
		return p, err
	}
	b := *scanBuffers.Get().(*[]byte)
	defer scanBuffers.Put(&b)
	p.end = headerSize
	seq := f.header.First
	lo, hi := int64(0), int64(0) // what of the file is in b
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
			hi = min(lo+int64(len(b)), size)
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
		at := p.end + int64(head)
		for _, e := range extents {
			c := Chunk{Seq: seq, Kind: e.Kind, LBA: e.LBA, Blocks: e.Blocks, file: f, off: at}
			if e.Kind == Data {
				c.crcs, crcs = crcs[:e.Blocks:e.Blocks], crcs[e.Blocks:]
				at += int64(e.Blocks) * Block
			}
			p.chunks = append(p.chunks, c)
			seq++
		}
		p.end = at
	}
}
