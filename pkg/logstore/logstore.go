// Package logstore keeps lines of logs, each log bounded by bytes and age.
//
// A log is a directory of segments. The newest, <number>.log, is appended to. Full
// ones are sealed: compressed, with an index of their blocks, and replaced by
// <number>.zst. The oldest are deleted when the log exceeds its bounds.
//
// A line comes from a source, such as the spool of a sandbox, and has a position
// there. A segment begins with the positions of all sources, and each append has
// positions and lines in one checksummed frame. So whatever a killed process or
// machine leaves, the log says exactly which lines it has: whoever appends goes on
// behind them, and no line is lost or comes twice.
package logstore

import (
	"cmp"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/logline"
)

// Line is a line of a log.
type Line struct {
	Source  string // where it comes from
	Service string
	Version int64
	Offset  int64 // position after the line in its source
	At      time.Time
	Stderr  bool
	Level   logline.Level // that the line says
	Text    string
	Missed  int64 // bytes of the source right before the line that are lost
}

// Origin is what the lines of one append have in common.
type Origin struct {
	Source  string
	Service string
	Version int64
}

// Config describes a store.
type Config struct {
	Dir          string        // of the logs; created if missing
	MaxBytes     int64         // disk that each log may use; 0: no bound
	MaxAge       time.Duration // how long lines are kept; 0: no bound
	SegmentBytes int64         // size at which a segment is sealed; 0: an eighth of MaxBytes, at most 8 MiB
	// Expired is told of each segment that is deleted for its size or age, with the
	// number of its lines, 0 if it is not known. It must not call the store. nil: none.
	Expired func(log string, segment, lines int64)
	Now     func() time.Time
	Logger  *slog.Logger
}

const (
	maxSegment = 8 << 20
	minSegment = 64 << 10
)

// Store is the logs of a directory. It is safe for concurrent use; one process at a
// time may have it.
type Store struct {
	c    Config
	mu   sync.Mutex
	logs map[string]*log
}

// Open opens the store of a directory.
func Open(c Config) (*Store, error) {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.SegmentBytes <= 0 {
		c.SegmentBytes = maxSegment
		if c.MaxBytes > 0 {
			c.SegmentBytes = min(maxSegment, max(minSegment, c.MaxBytes/8))
		}
	}
	s := &Store{c: c, logs: map[string]*log{}}
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return nil, errs.New(errs.Unavailable, "directory of logs: %w", err)
	}
	entries, err := os.ReadDir(c.Dir)
	if err != nil {
		return nil, errs.New(errs.Unavailable, "list logs: %w", err)
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		l, err := openLog(&s.c, filepath.Join(c.Dir, e.Name()))
		if err != nil {
			s.Close()
			return nil, errs.Wrap(err, "open log %s", e.Name())
		}
		s.logs[e.Name()] = l
	}
	return s, nil
}

// Close closes the files. Nothing may be appended any more.
func (s *Store) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.logs {
		l.close()
	}
}

// Names returns the logs, in order.
func (s *Store) Names() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := make([]string, 0, len(s.logs))
	for n := range s.logs {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

func (s *Store) get(name string) *log {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.logs[name]
}

// Append appends lines of one source, in order, and returns when another process
// would find them. Lines that the log has already are left out. After an error the
// log has none of them, or whole ones from the first on: its Position says which.
func (s *Store) Append(name string, o Origin, lines []Line) error {
	if len(lines) == 0 {
		return nil
	}
	s.mu.Lock()
	l := s.logs[name]
	if l == nil {
		if name == "" || strings.ContainsAny(name, "/\x00") || name[0] == '.' {
			s.mu.Unlock()
			return errs.New(errs.InvalidArgument, "%q is no name of a log", name)
		}
		dir := filepath.Join(s.c.Dir, name)
		if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			s.mu.Unlock()
			return errs.New(errs.Unavailable, "make a log: %w", err)
		}
		l = newLog(&s.c, dir)
		s.logs[name] = l
	}
	s.mu.Unlock()
	return l.append(o, lines)
}

// Position returns the position in a source up to which a log has its lines; 0: from
// the beginning on there are none.
func (s *Store) Position(name, source string) int64 {
	if l := s.get(name); l != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.positions[source].offset
	}
	return 0
}

// Find returns the log that has lines of a source which was not forgotten.
func (s *Store) Find(source string) (name string, o Origin, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, l := range s.logs {
		l.mu.Lock()
		p, ok := l.positions[source]
		l.mu.Unlock()
		if ok && p.gone.IsZero() {
			return name, p.Origin, true
		}
	}
	return "", Origin{}, false
}

// Forget makes the lines of a source durable and forgets its position: no more will
// come. The caller deletes the source afterwards. This store knows the position for
// some minutes more, for those who read the source.
func (s *Store) Forget(name, source string) error {
	if l := s.get(name); l != nil {
		return l.forget(source)
	}
	return nil
}

// Remove deletes a log.
func (s *Store) Remove(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.logs[name]
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closeFile()
	l.gone = true
	delete(s.logs, name)
	if err := os.RemoveAll(l.dir); err != nil {
		return errs.New(errs.Unavailable, "delete a log: %w", err)
	}
	return nil
}

// Expire deletes what is older than permitted.
func (s *Store) Expire() error {
	s.mu.Lock()
	logs := make([]*log, 0, len(s.logs))
	for _, l := range s.logs {
		logs = append(logs, l)
	}
	s.mu.Unlock()
	var all []error
	for _, l := range logs {
		l.mu.Lock()
		all = append(all, l.expire())
		l.mu.Unlock()
	}
	return errors.Join(all...)
}

// Bytes returns the disk that a log uses.
func (s *Store) Bytes(name string) int64 {
	l := s.get(name)
	if l == nil {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.bytes()
}

// byOffset finds the first line behind a position.
func byOffset(lines []Line, pos int64) int {
	i, _ := slices.BinarySearchFunc(lines, pos+1, func(l Line, p int64) int { return cmp.Compare(l.Offset, p) })
	return i
}
