package logstore

import (
	"encoding/binary"
	"hash/crc32"
	"maps"
	"slices"
	"time"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/logline"
)

// A frame is its length (4 bytes), its checksum (4), and a payload, which begins
// with its kind.
const (
	frameHead = 8
	maxFrame  = 4 << 20
	// frameBytes is how much text an append puts into one frame. A line has at most
	// 64 KiB.
	frameBytes = 256 << 10
)

const (
	kindLines     = 'L' // lines of one source
	kindPositions = 'P' // the positions of all sources; the first frame of a segment
	kindForget    = 'F' // a source of which no more lines come
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Flags of a line.
const (
	flagStderr = 1 << iota
	flagMissed
	levelShift = 4
)

// begin appends room for the head of a frame.
func begin(b []byte) []byte { return append(b, make([]byte, frameHead)...) }

// end fills in the head of the frame that begins at start.
func end(b []byte, start int) []byte {
	payload := b[start+frameHead:]
	binary.LittleEndian.PutUint32(b[start:], uint32(len(payload)))
	binary.LittleEndian.PutUint32(b[start+4:], crc32.Checksum(payload, castagnoli))
	return b
}

func putString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// putLines appends a frame of lines.
func putLines(b []byte, o Origin, lines []Line) []byte {
	start := len(b)
	b = append(begin(b), kindLines)
	b = putString(putString(b, o.Source), o.Service)
	b = binary.AppendVarint(b, o.Version)
	b = binary.AppendUvarint(b, uint64(len(lines)))
	var at, offset int64
	for i := range lines {
		l := &lines[i]
		flags := byte(l.Level) << levelShift
		if l.Stderr {
			flags |= flagStderr
		}
		if l.Missed > 0 {
			flags |= flagMissed
		}
		b = append(b, flags)
		b = binary.AppendVarint(b, l.At.UnixNano()-at)
		b = binary.AppendVarint(b, l.Offset-offset)
		at, offset = l.At.UnixNano(), l.Offset
		if l.Missed > 0 {
			b = binary.AppendUvarint(b, uint64(l.Missed))
		}
		b = putString(b, l.Text)
	}
	return end(b, start)
}

func putPositions(b []byte, positions map[string]position) []byte {
	start := len(b)
	b = append(begin(b), kindPositions)
	for _, source := range slices.Sorted(maps.Keys(positions)) {
		p := positions[source]
		if !p.gone.IsZero() {
			continue
		}
		b = binary.AppendVarint(putString(putString(b, source), p.Service), p.Version)
		b = binary.AppendVarint(b, p.offset)
	}
	return end(b, start)
}

func putForget(b []byte, source string) []byte {
	start := len(b)
	return end(putString(append(begin(b), kindForget), source), start)
}

// next returns the payload of the first frame of b and the rest; ok is false at the
// end, and where a frame is not whole.
func next(b []byte) (payload, rest []byte, ok bool) {
	if len(b) < frameHead {
		return nil, b, false
	}
	n := int(binary.LittleEndian.Uint32(b))
	if n == 0 || n > maxFrame || len(b)-frameHead < n {
		return nil, b, false
	}
	payload = b[frameHead : frameHead+n]
	if crc32.Checksum(payload, castagnoli) != binary.LittleEndian.Uint32(b[4:]) {
		return nil, b, false
	}
	return payload, b[frameHead+n:], true
}

// decoder reads the payload of a frame whose checksum was right.
type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.b, d.bad = nil, true
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) varint() int64 {
	v, n := binary.Varint(d.b)
	if n <= 0 {
		d.b, d.bad = nil, true
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) bytes() []byte {
	n := d.uvarint()
	if n > uint64(len(d.b)) {
		d.b, d.bad = nil, true
		return nil
	}
	s := d.b[:n]
	d.b = d.b[n:]
	return s
}

func (d *decoder) byte() byte {
	if len(d.b) == 0 {
		d.bad = true
		return 0
	}
	c := d.b[0]
	d.b = d.b[1:]
	return c
}

var errFrame = errs.New(errs.Corrupt, "a frame of a log cannot be read")

// rawLine is a line whose text is not yet copied.
type rawLine struct {
	Line
	text []byte
}

// readLines calls fn with each line of a payload of kind kindLines. fn keeps neither the
// line nor its text.
func readLines(payload []byte, fn func(*rawLine) error) error {
	d := &decoder{b: payload[1:]}
	var r rawLine
	r.Source, r.Service = string(d.bytes()), string(d.bytes())
	r.Version = d.varint()
	n := d.uvarint()
	var at int64
	for range n {
		flags := d.byte()
		at += d.varint()
		r.Offset += d.varint()
		r.Missed = 0
		if flags&flagMissed != 0 {
			r.Missed = int64(d.uvarint())
		}
		r.text = d.bytes()
		if d.bad {
			return errFrame
		}
		r.At, r.Stderr, r.Level = time.Unix(0, at), flags&flagStderr != 0, logline.Level(flags>>levelShift)
		if err := fn(&r); err != nil {
			return err
		}
	}
	return nil
}

// apply changes positions as a payload says.
func apply(payload []byte, positions map[string]position) error {
	switch payload[0] {
	case kindLines:
		return readLines(payload, func(r *rawLine) error {
			positions[r.Source] = position{Origin: Origin{r.Source, r.Service, r.Version}, offset: r.Offset}
			return nil
		})
	case kindPositions:
		d := &decoder{b: payload[1:]}
		clear(positions)
		for len(d.b) > 0 {
			p := position{Origin: Origin{Source: string(d.bytes()), Service: string(d.bytes()), Version: d.varint()}}
			p.offset = d.varint()
			positions[p.Source] = p
		}
		if d.bad {
			return errFrame
		}
	case kindForget:
		d := &decoder{b: payload[1:]}
		delete(positions, string(d.bytes()))
	}
	return nil
}
