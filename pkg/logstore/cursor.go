package logstore

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"slices"

	"miren.dev/runtime/pkg/errs"
)

// Cursor is a position between the lines of a log, in the order in which they were
// appended. The zero value is the beginning. It is valid for later processes, and also
// when the segment that it is in was sealed.
type Cursor struct {
	Segment int64 `json:"segment"`
	Offset  int64 `json:"offset"` // of a frame in the segment, before compression
	Skip    int   `json:"skip"`   // lines of that frame that are before the position
	Lines   int64 `json:"lines"`  // lines of the segment that are before the position
}

// before reports whether c is before another position.
func (c Cursor) before(o Cursor) bool {
	return cmp.Or(cmp.Compare(c.Segment, o.Segment), cmp.Compare(c.Offset, o.Offset), cmp.Compare(c.Skip, o.Skip)) < 0
}

// End returns the position after the last line of a log. The zero value if there is no
// such log.
func (s *Store) End(name string) Cursor {
	l := s.get(name)
	if l == nil {
		return Cursor{}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.end()
}

// end is End. mu is held.
func (l *log) end() Cursor {
	return Cursor{Segment: l.number, Offset: l.size, Lines: l.lines}
}

// Tail reads a log from a position on, in the order in which lines were appended. One
// goroutine at a time may use it.
type Tail struct {
	s    *Store
	name string
	at   Cursor
	raw  []byte // a sealed segment, at.Segment; nil: none was read
}

// Tail returns a reader of a log from a position on.
func (s *Store) Tail(name string, from Cursor) *Tail { return &Tail{s: s, name: name, at: from} }

// Next returns the next lines, at most so many and about so many bytes of text, and the
// position after them; none if the reader is at the end. The next call returns the same
// lines, until Advance. Segments that were deleted are left out; Config.Expired counts
// their lines.
func (t *Tail) Next(lines, bytes int) ([]Line, Cursor, error) {
	for {
		raw, at, last, err := t.segment()
		if err != nil || raw == nil {
			return nil, at, err
		}
		list, end, err := linesFrom(raw, at, lines, bytes)
		if err != nil {
			return nil, at, errs.Wrap(err, "log %s, segment %d", t.name, at.Segment)
		}
		if len(list) > 0 || last {
			if len(list) == 0 {
				t.at = end
			}
			return list, end, nil
		}
		t.Advance(Cursor{Segment: at.Segment + 1})
	}
}

// Advance goes on at a position that Next returned.
func (t *Tail) Advance(to Cursor) {
	if to.Segment != t.at.Segment {
		t.raw = nil
	}
	t.at = to
}

// segment returns the content of the segment in which the next lines are, from at on,
// and whether it is the last one; nil: there is none.
func (t *Tail) segment() (raw []byte, at Cursor, last bool, err error) {
	l := t.s.get(t.name)
	if l == nil {
		return nil, t.at, true, nil
	}
	for {
		l.mu.Lock()
		at = t.at
		i := slices.IndexFunc(l.sealed, func(s sealedSegment) bool { return s.number >= at.Segment })
		number := l.number
		if i >= 0 {
			number = l.sealed[i].number
		}
		if number != at.Segment {
			at = Cursor{Segment: number}
		}
		if i < 0 {
			defer l.mu.Unlock()
			// What a crash of the machine took from the end comes again.
			if end := l.end(); end.before(at) {
				at = end
			}
			if l.f == nil || l.size <= at.Offset {
				return nil, at, true, nil
			}
			raw = make([]byte, l.size-at.Offset)
			if _, err := l.f.ReadAt(raw, at.Offset); err != nil {
				return nil, at, true, errs.New(errs.Unavailable, "read a log: %w", err)
			}
			return raw, at, true, nil
		}
		l.mu.Unlock()
		if t.raw == nil || number != t.at.Segment {
			whole, err := readWhole(l.path(number, sealedSuffix))
			if errors.Is(err, fs.ErrNotExist) {
				t.Advance(Cursor{Segment: number + 1}) // it was deleted meanwhile
				continue
			}
			if err != nil {
				return nil, at, false, err
			}
			t.raw = whole
		}
		t.at = at
		return t.raw[min(at.Offset, int64(len(t.raw))):], at, false, nil
	}
}

// linesFrom decodes lines of frames that begin at a position.
func linesFrom(raw []byte, at Cursor, most, bytes int) ([]Line, Cursor, error) {
	var out []Line
	n := 0
	for len(raw) > 0 && len(out) < most && n < bytes {
		payload, rest, ok := next(raw)
		if !ok {
			return nil, at, errFrame
		}
		size := int64(len(raw) - len(rest))
		whole := true
		if payload[0] == kindLines {
			i := 0
			err := readLines(payload, func(r *rawLine) error {
				if i++; i <= at.Skip {
					return nil
				}
				if len(out) >= most || n >= bytes {
					whole = false
					return nil
				}
				x := r.Line
				x.Text = string(r.text)
				out = append(out, x)
				n += len(x.Text)
				at.Skip++
				at.Lines++
				return nil
			})
			if err != nil {
				return nil, at, err
			}
		}
		if !whole {
			break
		}
		at.Offset, at.Skip = at.Offset+size, 0
		raw = rest
	}
	return out, at, nil
}

// readWhole returns the frames of a sealed segment, as they were before it was sealed.
func readWhole(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	idx, err := indexOf(f)
	if err != nil {
		return nil, err
	}
	dec, err := decoders()
	if err != nil {
		return nil, errs.New(errs.Internal, "decompress: %w", err)
	}
	packed := make([]byte, idx.data)
	if _, err := f.ReadAt(packed, 0); err != nil {
		return nil, errs.New(errs.Unavailable, "read a log: %w", err)
	}
	// Blocks without lines are between those of the index.
	var out []byte
	at := int64(0)
	for _, b := range append(slices.Clone(idx.Blocks), block{Offset: idx.data}) {
		for _, part := range [][2]int64{{at, b.Offset}, {b.Offset, b.Offset + b.Size}} {
			if part[0] < 0 || part[1] > idx.data || part[0] > part[1] {
				return nil, errs.New(errs.Corrupt, "%s: its index is wrong", path)
			}
			if part[0] == part[1] {
				continue
			}
			if out, err = dec.DecodeAll(packed[part[0]:part[1]], out); err != nil {
				return nil, errs.New(errs.Corrupt, "%s: a block: %w", path, err)
			}
		}
		at = b.Offset + b.Size
	}
	return out, nil
}
