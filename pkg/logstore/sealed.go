package logstore

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"slices"
	"sync"

	"github.com/klauspost/compress/zstd"

	"miren.dev/runtime/pkg/atomicfile"
	"miren.dev/runtime/pkg/errs"
)

// A sealed segment is its blocks, each compressed by itself, the index of them as
// JSON, the length and the checksum of the index, and the magic.
const (
	magic     = "rtlogs1\n"
	tailBytes = 8 + len(magic)
	// blockBytes is the size at which a block ends, before compression.
	blockBytes = 256 << 10
	maxBlock   = blockBytes + maxFrame + frameHead
)

// block describes a block: readers leave out those that they select nothing of.
type block struct {
	Offset int64 `json:"o"`
	Size   int64 `json:"n"`
	Min    int64 `json:"min"` // times
	Max    int64 `json:"max"`
	// Levels has a bit for each level that its lines count as.
	Levels   uint16 `json:"l"`
	Services []int  `json:"s"` // in index.Services
	// Streams has a bit for stdout (0) and stderr (1).
	Streams uint8 `json:"f"`
	Lines   int64 `json:"c,omitempty"` // absent: an earlier version sealed it
}

type index struct {
	Blocks   []block  `json:"blocks"`
	Services []string `json:"services"`

	size  int64 // of the file
	data  int64 // bytes of the blocks
	lines int64
	span  span
}

// The compressor and the decompressors are shared: each has buffers of some hundred KiB.
var (
	encoder = sync.OnceValues(func() (*zstd.Encoder, error) {
		return zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithLowerEncoderMem(true), zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithWindowSize(512<<10))
	})
	decoders = sync.OnceValues(func() (*zstd.Decoder, error) {
		return zstd.NewReader(nil, zstd.WithDecoderConcurrency(2), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxMemory(uint64(maxBlock)))
	})
)

// sealFile replaces an open segment of the log by a sealed one. On an error the open
// one is as before. mu of the log is held.
func sealFile(l *log, number int64, f *os.File, size int64) (sealedSegment, error) {
	fail := func(err error) (sealedSegment, error) {
		return sealedSegment{}, errs.New(errs.Unavailable, "seal a segment: %w", err)
	}
	enc, err := encoder()
	if err != nil {
		return fail(err)
	}
	raw := make([]byte, size)
	if _, err := f.ReadAt(raw, 0); err != nil {
		return fail(err)
	}
	out, err := atomicfile.Create(l.path(number, sealedSuffix), 0o600)
	if err != nil {
		return fail(err)
	}
	defer out.Abort()
	var x index
	var at int64
	for rest := raw; len(rest) > 0; {
		var b block
		var sp span
		n := 0
		for n < blockBytes && n < len(rest) {
			payload, more, ok := next(rest[n:])
			if !ok {
				return fail(errFrame)
			}
			n = len(rest) - len(more)
			if payload[0] != kindLines {
				continue
			}
			service := -1
			err := readLines(payload, func(r *rawLine) error {
				sp.add(r.At.UnixNano())
				b.Lines++
				b.Levels |= 1 << r.Level.Or(r.Stderr)
				b.Streams |= streamBit(r.Stderr)
				if service < 0 {
					if service = slices.Index(x.Services, r.Service); service < 0 {
						service = len(x.Services)
						x.Services = append(x.Services, r.Service)
					}
					if !slices.Contains(b.Services, service) {
						b.Services = append(b.Services, service)
					}
				}
				return nil
			})
			if err != nil {
				return fail(err)
			}
		}
		packed := enc.EncodeAll(rest[:n], nil)
		if _, err := out.Write(packed); err != nil {
			return fail(err)
		}
		rest = rest[n:]
		b.Offset, b.Size, b.Min, b.Max = at, int64(len(packed)), sp.min, sp.max
		at += b.Size
		if b.Levels != 0 { // it has lines
			x.Blocks = append(x.Blocks, b)
			x.lines += b.Lines
			x.span.add(sp.min)
			x.span.add(sp.max)
		}
	}
	tail, err := json.Marshal(x)
	if err != nil {
		return fail(err)
	}
	sum, n := crc32.Checksum(tail, castagnoli), len(tail)
	tail = binary.LittleEndian.AppendUint32(tail, uint32(n))
	tail = append(binary.LittleEndian.AppendUint32(tail, sum), magic...)
	if _, err := out.Write(tail); err != nil {
		return fail(err)
	}
	if err := out.Commit(); err != nil {
		return fail(err)
	}
	if err := os.Remove(l.path(number, openSuffix)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fail(err)
	}
	f.Close()
	return sealedSegment{number, at + int64(len(tail)), x.lines, x.span}, nil
}

func streamBit(stderr bool) uint8 {
	if stderr {
		return 2
	}
	return 1
}

// readIndex reads the index of a sealed segment.
func readIndex(path string) (*index, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return indexOf(f)
}

func indexOf(f *os.File) (*index, error) {
	corrupt := func(what string) (*index, error) {
		return nil, errs.New(errs.Corrupt, "%s: %s", f.Name(), what)
	}
	st, err := f.Stat()
	if err != nil {
		return nil, errs.New(errs.Unavailable, "read a segment: %w", err)
	}
	tail := make([]byte, tailBytes)
	if st.Size() < int64(tailBytes) {
		return corrupt("it is too short")
	}
	if _, err := f.ReadAt(tail, st.Size()-int64(tailBytes)); err != nil && !errors.Is(err, io.EOF) {
		return nil, errs.New(errs.Unavailable, "read a segment: %w", err)
	}
	n := int64(binary.LittleEndian.Uint32(tail))
	if string(tail[8:]) != magic || n > st.Size()-int64(tailBytes) {
		return corrupt("it is no sealed segment")
	}
	b := make([]byte, n)
	if _, err := f.ReadAt(b, st.Size()-int64(tailBytes)-n); err != nil {
		return nil, errs.New(errs.Unavailable, "read a segment: %w", err)
	}
	x := &index{size: st.Size(), data: st.Size() - int64(tailBytes) - n}
	if crc32.Checksum(b, castagnoli) != binary.LittleEndian.Uint32(tail[4:]) || json.Unmarshal(b, x) != nil {
		return corrupt("its index is damaged")
	}
	for _, b := range x.Blocks {
		x.span.add(b.Min)
		x.span.add(b.Max)
		x.lines += b.Lines
	}
	return x, nil
}
