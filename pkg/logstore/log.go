package logstore

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"miren.dev/runtime/pkg/atomicfile"
	"miren.dev/runtime/pkg/errs"
)

// log is one log.
type log struct {
	c   *Config
	dir string

	mu        sync.Mutex
	positions map[string]position // by source
	sealed    []sealedSegment     // oldest first
	number    int64               // of the open segment
	f         *os.File            // the open segment; nil: it does not exist
	size      int64               // of the open segment
	head      int64               // size of its positions: it has no lines while size is this
	span      span                // of the lines of the open segment
	lines     int64               // of the open segment
	gone      bool                // the log was deleted
	buf       []byte
}

// position is how much of a source the log has.
type position struct {
	Origin
	offset int64
	gone   time.Time // when it was forgotten; zero: it was not
}

// goneFor is how long a forgotten position is known.
const goneFor = 10 * time.Minute

// sealedSegment is a segment that does not change any more.
type sealedSegment struct {
	number int64
	size   int64
	lines  int64 // 0: not known
	span   span
}

// span is the time from the earliest line to the latest one.
type span struct{ min, max int64 }

func (s *span) add(at int64) {
	if s.max == 0 && s.min == 0 {
		s.min, s.max = at, at
		return
	}
	s.min, s.max = min(s.min, at), max(s.max, at)
}

const (
	openSuffix   = ".log"
	sealedSuffix = ".zst"
)

func newLog(c *Config, dir string) *log {
	return &log{c: c, dir: dir, positions: map[string]position{}}
}

func (l *log) path(number int64, suffix string) string {
	name := strconv.FormatInt(number, 10)
	return filepath.Join(l.dir, strings.Repeat("0", max(0, 10-len(name)))+name+suffix)
}

// openLog opens a log as a process left it, which may have been killed anywhere.
func openLog(c *Config, dir string) (*log, error) {
	l := newLog(c, dir)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, errs.New(errs.Unavailable, "list segments: %w", err)
	}
	var open []int64
	for _, e := range entries {
		base, suffix := strings.TrimSuffix(e.Name(), filepath.Ext(e.Name())), filepath.Ext(e.Name())
		n, err := strconv.ParseInt(base, 10, 64)
		if err != nil || atomicfile.IsTemp(e.Name()) {
			continue
		}
		switch suffix {
		case openSuffix:
			open = append(open, n)
		case sealedSuffix:
			x, err := readIndex(l.path(n, sealedSuffix))
			if err != nil {
				c.Logger.Warn("a segment of a log cannot be read and is left out", "path", l.path(n, sealedSuffix), "error", err)
				continue
			}
			l.sealed = append(l.sealed, sealedSegment{n, x.size, x.lines, x.span})
		}
	}
	slices.SortFunc(l.sealed, func(a, b sealedSegment) int { return int(a.number - b.number) })
	slices.Sort(open)
	if n := len(l.sealed); n > 0 {
		l.number = l.sealed[n-1].number + 1
	}
	return l, l.recover(open)
}

// recover reads the segments that are not sealed. There are several if a process
// ended while it sealed one, whose successor was durable before.
func (l *log) recover(open []int64) error {
	var older []*log // each with an open segment that is to be sealed
	for i, n := range open {
		if i > 0 {
			older = append(older, &log{c: l.c, dir: l.dir, number: l.number, f: l.f, size: l.size})
			l.f = nil
		}
		whole, err := l.load(n)
		if err != nil {
			return err
		}
		if whole {
			continue
		}
		// The process ended while it began this one. The one before has the positions, and is the last.
		if err := os.Remove(l.path(n, openSuffix)); err != nil {
			return errs.New(errs.Unavailable, "delete a segment: %w", err)
		}
		if i > 0 {
			older = older[:len(older)-1]
			if _, err := l.load(open[i-1]); err != nil {
				return err
			}
		}
		break
	}
	if i := slices.IndexFunc(l.sealed, func(s sealedSegment) bool { return s.number == l.number }); i >= 0 && l.f != nil {
		// It was sealed, but its successor is not there: it goes on.
		l.sealed = slices.Delete(l.sealed, i, i+1)
	}
	for _, o := range older {
		if slices.ContainsFunc(l.sealed, func(s sealedSegment) bool { return s.number == o.number }) {
			o.close()
			if err := os.Remove(l.path(o.number, openSuffix)); err != nil {
				return errs.New(errs.Unavailable, "delete a segment: %w", err)
			}
			continue
		}
		s, err := sealFile(l, o.number, o.f, o.size)
		if err != nil {
			return err
		}
		l.sealed = append(l.sealed, s)
	}
	slices.SortFunc(l.sealed, func(a, b sealedSegment) int { return int(a.number - b.number) })
	return nil
}

// load reads an open segment, and cuts what is not whole off its end. It reports
// whether the segment has a whole frame, its positions.
func (l *log) load(number int64) (whole bool, err error) {
	path := l.path(number, openSuffix)
	b, err := os.ReadFile(path)
	if err != nil {
		return false, errs.New(errs.Unavailable, "read a segment: %w", err)
	}
	l.number, l.span, l.head, l.lines = number, span{}, 0, 0
	rest, first := b, true
	for {
		payload, more, ok := next(rest)
		if !ok {
			break
		}
		if err := apply(payload, l.positions); err != nil {
			return false, errs.Wrap(err, "%s", path)
		}
		if payload[0] == kindLines {
			err := readLines(payload, func(r *rawLine) error {
				l.span.add(r.At.UnixNano())
				l.lines++
				return nil
			})
			if err != nil {
				return false, errs.Wrap(err, "%s", path)
			}
		}
		if first {
			l.head = int64(len(rest) - len(more))
		}
		rest, first = more, false
	}
	l.size = int64(len(b) - len(rest))
	if first {
		return false, nil
	}
	if l.f, err = os.OpenFile(path, os.O_RDWR, 0); err != nil {
		return false, errs.New(errs.Unavailable, "open a segment: %w", err)
	}
	if len(rest) > 0 {
		l.c.Logger.Info("cut the end of a log that was not written whole", "path", path, "bytes", len(rest))
		if err := l.f.Truncate(l.size); err != nil {
			return false, errs.New(errs.Unavailable, "cut a segment: %w", err)
		}
	}
	return true, nil
}

// begin makes the open segment. It is durable afterwards. mu is held.
func (l *log) begin() error {
	b := putPositions(nil, l.positions)
	f, err := os.OpenFile(l.path(l.number, openSuffix), os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return errs.New(errs.Unavailable, "begin a segment: %w", err)
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = atomicfile.SyncDir(l.dir)
	}
	if err != nil {
		f.Close()
		_ = os.Remove(f.Name()) // otherwise it is found not to be whole
		return errs.New(errs.Unavailable, "begin a segment: %w", err)
	}
	l.f, l.size, l.head, l.span, l.lines = f, int64(len(b)), int64(len(b)), span{}, 0
	return nil
}

// write appends frames. mu is held.
func (l *log) write(b []byte) error {
	if _, err := l.f.WriteAt(b, l.size); err != nil {
		_ = l.f.Truncate(l.size) // otherwise the next write replaces it, or the next process cuts it
		return errs.New(errs.Unavailable, "write a log: %w", err)
	}
	l.size += int64(len(b))
	return nil
}

func (l *log) append(o Origin, lines []Line) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gone {
		return errs.New(errs.NotFound, "the log was deleted")
	}
	lines = lines[byOffset(lines, l.positions[o.Source].offset):]
	for len(lines) > 0 {
		n, bytes := 0, 0
		for n < len(lines) && (n == 0 || bytes+len(lines[n].Text) <= frameBytes) {
			bytes += len(lines[n].Text)
			n++
		}
		if l.f == nil {
			if err := l.begin(); err != nil {
				return err
			}
		}
		l.buf = putLines(l.buf[:0], o, lines[:n])
		if len(l.buf) > maxFrame+frameHead {
			return errs.New(errs.InvalidArgument, "a line of a log has %d bytes", len(l.buf))
		}
		if err := l.write(l.buf); err != nil {
			return err
		}
		l.lines += int64(n)
		for i := range lines[:n] {
			l.span.add(lines[i].At.UnixNano())
		}
		l.positions[o.Source] = position{Origin: o, offset: lines[n-1].Offset}
		lines = lines[n:]
		if l.size >= l.c.SegmentBytes {
			if err := l.roll(); err != nil {
				return err
			}
			if err := l.expire(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (l *log) forget(source string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	p, ok := l.positions[source]
	if !ok || l.gone || !p.gone.IsZero() {
		return nil
	}
	if l.f == nil {
		if err := l.begin(); err != nil {
			return err
		}
	}
	if err := l.write(putForget(nil, source)); err != nil {
		return err
	}
	if err := l.f.Sync(); err != nil {
		return errs.New(errs.Unavailable, "write a log: %w", err)
	}
	p.gone = l.c.Now()
	l.positions[source] = p
	return nil
}

// roll seals the open segment and begins the next. mu is held.
func (l *log) roll() error {
	old, number, size, head, sp, lines := l.f, l.number, l.size, l.head, l.span, l.lines
	l.number++
	if err := l.begin(); err != nil {
		l.f, l.number, l.size, l.head, l.span, l.lines = old, number, size, head, sp, lines
		return err
	}
	// The next segment is durable, with the positions.
	s, err := sealFile(l, number, old, size)
	if err != nil {
		// The next process seals it. Until then it is not read, so go on with it.
		_ = l.f.Close()
		_ = os.Remove(l.path(l.number, openSuffix))
		l.f, l.number, l.size, l.head, l.span, l.lines = old, number, size, head, sp, lines
		return err
	}
	s.span = sp
	l.sealed = append(l.sealed, s)
	return nil
}

func (l *log) bytes() int64 {
	sum := l.size
	for _, s := range l.sealed {
		sum += s.size
	}
	return sum
}

// expire deletes what exceeds the bounds. mu is held.
func (l *log) expire() error {
	now := l.c.Now()
	for source, p := range l.positions {
		if !p.gone.IsZero() && now.Sub(p.gone) > goneFor {
			delete(l.positions, source)
		}
	}
	if l.c.MaxAge > 0 && l.f != nil && l.size > l.head && l.span.min != 0 && time.Unix(0, l.span.min).Before(now.Add(-l.c.MaxAge/16)) {
		// Lines are deleted by segment: a slow log's are made small enough.
		if err := l.roll(); err != nil {
			return err
		}
	}
	room := l.c.SegmentBytes + min(frameBytes, l.c.SegmentBytes) // what the open segment may come to use
	for len(l.sealed) > 0 {
		s := l.sealed[0]
		old := l.c.MaxAge > 0 && time.Unix(0, s.span.max).Before(now.Add(-l.c.MaxAge))
		if !old && (l.c.MaxBytes <= 0 || l.bytes()-l.size+room <= l.c.MaxBytes) {
			return nil
		}
		if err := os.Remove(l.path(s.number, sealedSuffix)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return errs.New(errs.Unavailable, "delete old lines: %w", err)
		}
		l.sealed = l.sealed[1:]
		if l.c.Expired != nil {
			l.c.Expired(filepath.Base(l.dir), s.number, s.lines)
		}
	}
	return nil
}

func (l *log) closeFile() {
	if l.f != nil {
		l.f.Close()
		l.f = nil
	}
}

func (l *log) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closeFile()
	l.gone = true
}
