package logstore

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io/fs"
	"maps"
	"math"
	"os"
	"regexp"
	"slices"
	"time"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/logline"
)

// Query selects lines of a log.
type Query struct {
	Source  string    // "": all
	Since   time.Time // zero: from the beginning
	Until   time.Time // lines before it; zero: to the end
	Service string    // "": all
	Level   logline.Level
	Grep    *regexp.Regexp // nil: all
	// Last, if set, says how many lines are wanted of what lies further back, and is
	// asked for each line that matches, the latest first. It returns whether the line
	// is wanted, and whether earlier ones may be.
	Last func(*Line) (want, more bool)
}

// Match reports whether the query selects a line.
func (q *Query) Match(l *Line) bool {
	return q.matches(l, nil)
}

// matches is Match for a line whose text is in text, if that is not nil.
func (q *Query) matches(l *Line, text []byte) bool {
	switch {
	case q.Source != "" && l.Source != q.Source,
		q.Service != "" && l.Service != q.Service,
		!q.Since.IsZero() && l.At.Before(q.Since),
		!q.Until.IsZero() && !l.At.Before(q.Until),
		q.Level != logline.None && l.Level.Or(l.Stderr) < q.Level:
		return false
	case q.Grep == nil:
		return true
	case text != nil:
		return q.Grep.Match(text)
	}
	return q.Grep.MatchString(l.Text)
}

// bounds returns the times between which lines are selected.
func (q *Query) bounds() (from, to int64) {
	from, to = math.MinInt64, math.MaxInt64
	if !q.Since.IsZero() {
		from = q.Since.UnixNano()
	}
	if !q.Until.IsZero() {
		to = q.Until.UnixNano()
	}
	return from, to
}

// Snapshot is a log at one time. What is appended afterwards is not in it.
type Snapshot struct {
	l         *log
	positions map[string]position
	sealed    []sealedSegment
	f         *os.File // the open segment; nil: none
	size      int64
	span      span
}

// Snapshot returns the present state of a log; of one that does not exist, an empty
// one. The caller closes it.
func (s *Store) Snapshot(name string) (*Snapshot, error) {
	l := s.get(name)
	if l == nil {
		return &Snapshot{}, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	x := &Snapshot{l: l, positions: maps.Clone(l.positions), sealed: slices.Clone(l.sealed), size: l.size, span: l.span}
	if l.f != nil && l.size > l.head {
		f, err := os.Open(l.f.Name()) // stays when the segment is sealed
		if err != nil {
			return nil, errs.New(errs.Unavailable, "read a log: %w", err)
		}
		x.f = f
	}
	return x, nil
}

// Close ends the use of the snapshot.
func (x *Snapshot) Close() {
	if x.f != nil {
		x.f.Close()
	}
}

// Position returns the position in a source up to which the snapshot has its lines,
// except those that were deleted for their age or size. No snapshot has none.
func (x *Snapshot) Position(source string) int64 {
	if x == nil {
		return 0
	}
	return x.positions[source].offset
}

// Read calls emit with the selected lines, ordered by time. Lines of one source are
// in their order. Segments that are deleted meanwhile are left out.
func (x *Snapshot) Read(ctx context.Context, q Query, emit func(Line) error) error {
	r := &reader{q: q, last: map[string]int64{}, emit: emit}
	r.from, r.to = q.bounds()
	if q.Grep != nil {
		prefix, _ := q.Grep.LiteralPrefix()
		r.literal = []byte(prefix)
	}
	if q.Last != nil {
		return x.readLast(ctx, r)
	}
	// later is the earliest time of what comes after a segment.
	later := make([]int64, len(x.sealed)+1)
	later[len(x.sealed)] = math.MaxInt64
	if x.f != nil {
		later[len(x.sealed)] = x.span.min
	}
	for i := len(x.sealed) - 1; i >= 0; i-- {
		later[i] = min(later[i+1], x.sealed[i].span.min)
	}
	for i, s := range x.sealed {
		if err := x.readSealed(ctx, r, s); err != nil {
			return err
		}
		if err := r.release(later[i+1]); err != nil {
			return err
		}
	}
	if err := x.readOpen(ctx, r); err != nil {
		return err
	}
	return r.release(math.MaxInt64)
}

// readLast reads segments from the last one back, until enough lines are there.
func (x *Snapshot) readLast(ctx context.Context, r *reader) error {
	var wanted []keyed
	take := func() (more bool) {
		list := r.held
		r.held, r.last = nil, map[string]int64{}
		slices.SortStableFunc(list, byKey)
		more = true
		for i := len(list) - 1; i >= 0 && more; i-- {
			var want bool
			if want, more = r.q.Last(&list[i].Line); want {
				wanted = append(wanted, list[i])
			}
		}
		return more
	}
	err := x.readOpen(ctx, r)
	for i := len(x.sealed) - 1; err == nil && take() && i >= 0; i-- {
		err = x.readSealed(ctx, r, x.sealed[i])
		if i == 0 && err == nil {
			take()
		}
	}
	if err != nil {
		return err
	}
	slices.Reverse(wanted)
	slices.SortStableFunc(wanted, byKey)
	for i := range wanted {
		if err := r.emit(wanted[i].Line); err != nil {
			return err
		}
	}
	return nil
}

func (x *Snapshot) readOpen(ctx context.Context, r *reader) error {
	if x.f == nil || !r.overlaps(x.span.min, x.span.max) {
		return nil
	}
	b := make([]byte, x.size)
	if _, err := x.f.ReadAt(b, 0); err != nil {
		return errs.New(errs.Unavailable, "read a log: %w", err)
	}
	return r.frames(ctx, b)
}

func (x *Snapshot) readSealed(ctx context.Context, r *reader, s sealedSegment) error {
	if !r.overlaps(s.span.min, s.span.max) {
		return nil
	}
	f, err := os.Open(x.l.path(s.number, sealedSuffix))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return errs.New(errs.Unavailable, "read a log: %w", err)
	}
	defer f.Close()
	idx, err := indexOf(f)
	if err != nil {
		return err
	}
	dec, err := decoders()
	if err != nil {
		return errs.New(errs.Internal, "decompress: %w", err)
	}
	service := -1
	if r.q.Service != "" {
		if service = slices.Index(idx.Services, r.q.Service); service < 0 {
			return nil
		}
	}
	for _, b := range idx.Blocks {
		if !r.overlaps(b.Min, b.Max) || b.Levels>>r.q.Level == 0 || service >= 0 && !slices.Contains(b.Services, service) {
			continue
		}
		if b.Offset < 0 || b.Size < 0 || b.Offset+b.Size > idx.size {
			return errs.New(errs.Corrupt, "%s: its index is wrong", f.Name())
		}
		r.packed = slices.Grow(r.packed[:0], int(b.Size))[:b.Size]
		if _, err := f.ReadAt(r.packed, b.Offset); err != nil {
			return errs.New(errs.Unavailable, "read a log: %w", err)
		}
		if r.plain, err = dec.DecodeAll(r.packed, r.plain[:0]); err != nil {
			return errs.New(errs.Corrupt, "%s: a block: %w", f.Name(), err)
		}
		if err := r.frames(ctx, r.plain); err != nil {
			return err
		}
	}
	return nil
}

// keyed is a line with the time it is ordered by: at least that of the lines of its
// source before it, whatever the clock did.
type keyed struct {
	Line
	key int64
}

func byKey(a, b keyed) int { return cmp.Compare(a.key, b.key) }

// reader collects the selected lines of frames.
type reader struct {
	q        Query
	from, to int64
	literal  []byte // what a match begins with; empty: not known
	emit     func(Line) error
	held     []keyed
	last     map[string]int64 // greatest key, by source

	packed, plain []byte
}

func (r *reader) overlaps(first, last int64) bool { return last >= r.from && first < r.to }

// frames adds the selected lines of frames.
func (r *reader) frames(ctx context.Context, b []byte) error {
	if err := ctx.Err(); err != nil {
		return errs.Wrap(err, "read a log")
	}
	for len(b) > 0 {
		payload, rest, ok := next(b)
		if !ok {
			return errFrame
		}
		b = rest
		if payload[0] != kindLines || len(r.literal) > 0 && !bytes.Contains(payload, r.literal) {
			continue
		}
		if err := readLines(payload, r.line); err != nil {
			return err
		}
	}
	return nil
}

func (r *reader) line(l *rawLine) error {
	if len(r.literal) > 0 && !bytes.Contains(l.text, r.literal) {
		return nil
	}
	text := l.text
	if text == nil {
		text = []byte{}
	}
	if !r.q.matches(&l.Line, text) {
		return nil
	}
	k := keyed{l.Line, l.At.UnixNano()}
	if last, ok := r.last[l.Source]; ok && last > k.key {
		k.key = last
	}
	r.last[l.Source] = k.key
	k.Text = string(l.text)
	r.held = append(r.held, k)
	return nil
}

// maxHeld bounds the lines that wait for their order.
const maxHeld = 100_000

// release emits the lines up to a time, before which no more come.
func (r *reader) release(before int64) error {
	slices.SortStableFunc(r.held, byKey)
	n := len(r.held)
	if before != math.MaxInt64 {
		n, _ = slices.BinarySearchFunc(r.held, before, func(k keyed, t int64) int { return cmp.Compare(k.key, t) })
	}
	n = max(n, len(r.held)-maxHeld)
	for i := range n {
		if err := r.emit(r.held[i].Line); err != nil {
			return err
		}
	}
	r.held = slices.Delete(r.held, 0, n)
	return nil
}
