package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/agentproto"
)

const (
	minLogBytes = 8 * agentproto.MaxRecord
	segments    = 8 // of a full spool
	// partialAfter is how long an unfinished line may wait before its part is
	// written.
	partialAfter = time.Second
	// outputGrace is how long the agent waits for output of processes that an ended process left behind.
	outputGrace = 100 * time.Millisecond
)

// spool is the main process's output in files: see agentproto/logrecord.go.
type spool struct {
	dir   string
	limit int64

	mu     sync.Mutex
	f      *os.File
	size   int64   // size of f
	start  int64   // offset of f in the whole log
	older  []int64 // starts of the segments before f
	buf    []byte
	failed error // error of the last write, none of which is in the file

	held     bool      // closed for a snapshot; see suspend.go
	released sync.Cond // held is false again
}

// openSpool opens the spool in dir and continues an existing one.
func openSpool(dir string, limit int64) (*spool, error) {
	if limit <= 0 {
		limit = agentproto.DefaultLogBytes
	}
	s := &spool{dir: dir, limit: max(limit, minLogBytes)}
	s.released.L = &s.mu
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if at, ok := agentproto.ParseSegmentName(e.Name()); ok {
			s.older = append(s.older, at)
		}
	}
	slices.Sort(s.older)
	next := int64(0)
	if n := len(s.older); n > 0 {
		last := s.older[n-1]
		st, err := os.Stat(s.path(last))
		if err != nil {
			return nil, err
		}
		if next = last + st.Size(); next == last { // the segment is empty: continue it
			s.older = s.older[:n-1]
		}
	}
	return s, s.open(next)
}

func (s *spool) path(start int64) string {
	return filepath.Join(s.dir, agentproto.SegmentName(start))
}

func (s *spool) open(start int64) error {
	path := s.path(start)
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_APPEND|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path) // without the poller, as in readFile
	if s.f != nil {
		s.older = append(s.older, s.start)
		s.f.Close()
	}
	s.f, s.start, s.size = f, start, 0
	return nil
}

// write appends whole records. A full disk drops them: output must not stop the
// process that makes it.
func (s *spool) write(add func(b []byte) []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.held {
		s.released.Wait()
	}
	s.buf = add(s.buf[:0])
	if s.size > 0 && s.size+int64(len(s.buf)) > s.limit/segments {
		if err := s.open(s.start + s.size); err != nil {
			s.failed = err
			return
		}
		for len(s.older) > 0 && s.start-s.older[0] > s.limit-s.limit/segments {
			if err := os.Remove(s.path(s.older[0])); err != nil && !errors.Is(err, os.ErrNotExist) {
				s.failed = err
				break
			}
			s.older = s.older[1:]
		}
	}
	n, err := s.f.Write(s.buf)
	if err != nil {
		s.failed = err
		if n > 0 && s.f.Truncate(s.size) != nil {
			s.size += int64(n) // part of a line was written; the reader skips it
		}
		return
	}
	s.failed = nil
	s.size += int64(n)
}

var chunks = sync.Pool{New: func() any { return new([agentproto.Chunk]byte) }}

// pump spools the output of f until it ends. Once gone is closed, a passed
// deadline counts as the end too.
func (s *spool) pump(f *os.File, stream uint8, gone <-chan struct{}) {
	var rest []byte // the unfinished line
	for {
		if len(rest) > 0 {
			wait(f, partialAfter, gone)
		}
		now := int64(0)
		err := readSome(f, func(b []byte) {
			now = time.Now().UnixNano()
			rest = s.lines(rest, b, stream, now)
		})
		if err == nil {
			continue
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			select {
			case <-gone:
				_ = f.SetReadDeadline(time.Time{})
				drain(f, func(b []byte) { rest = s.lines(rest, b, stream, time.Now().UnixNano()) })
				s.flush(rest, stream, false)
				go discard(f)
				return
			default:
			}
			wait(f, 0, gone)
			s.flush(rest, stream, true)
			rest = rest[:0]
			continue
		}
		s.flush(rest, stream, false)
		f.Close()
		return
	}
}

// wait sets the read deadline to d from now, or to none for 0; after the end of
// the process d is outputGrace.
func wait(f *os.File, d time.Duration, gone <-chan struct{}) {
	var t time.Time
	if d > 0 {
		t = time.Now().Add(d)
	}
	_ = f.SetReadDeadline(t) // pipes have deadlines
	select {
	case <-gone: // perhaps after its deadline was set, which this call overwrote
		_ = f.SetReadDeadline(time.Now().Add(outputGrace))
	default:
	}
}

func (s *spool) flush(rest []byte, stream uint8, partial bool) {
	if len(rest) > 0 {
		s.write(func(out []byte) []byte {
			return agentproto.Record{At: time.Now().UnixNano(), Stream: stream, Partial: partial, Text: rest}.Append(out)
		})
	}
}

// lines writes the lines that b completes and returns what remains.
func (s *spool) lines(rest, b []byte, stream uint8, now int64) []byte {
	if i := bytes.IndexByte(b, '\n'); i < 0 && len(rest)+len(b) < agentproto.MaxLine {
		return append(rest, b...)
	}
	s.write(func(out []byte) []byte {
		for len(b) > 0 {
			i := bytes.IndexByte(b, '\n')
			if i < 0 && len(rest)+len(b) < agentproto.MaxLine {
				break
			}
			end := i
			if i < 0 {
				end = len(b)
			}
			partial := false
			if room := agentproto.MaxLine - len(rest); end > room || i < 0 {
				end, partial = min(end, room), true
			}
			r := agentproto.Record{At: now, Stream: stream, Partial: partial}
			if r.Text = b[:end]; len(rest) > 0 {
				rest = append(rest, b[:end]...)
				r.Text = rest
			}
			out = r.Append(out)
			rest = rest[:0]
			b = b[end:]
			if !partial {
				b = b[1:]
			}
		}
		return out
	})
	return append(rest[:0], b...)
}

// readSome waits for output and calls use with it. The buffer is held only
// while there is some.
func readSome(f *os.File, use func([]byte)) error {
	rc, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var rerr error
	err = rc.Read(func(fd uintptr) bool {
		buf := chunks.Get().(*[agentproto.Chunk]byte)
		defer chunks.Put(buf)
		n, err := readFD(int(fd), buf[:])
		switch {
		case err == syscall.EAGAIN:
			return false
		case err != nil:
			rerr = err
		case n == 0:
			rerr = errEnd
		default:
			use(buf[:n])
		}
		return true
	})
	if err != nil {
		return err
	}
	return rerr
}

var errEnd = errors.New("end of output")

func readFD(fd int, b []byte) (int, error) {
	for {
		n, err := syscall.Read(fd, b)
		if err != syscall.EINTR {
			return n, err
		}
	}
}

// drain reads the available output, at most as much as a pipe holds.
func drain(f *os.File, use func([]byte)) {
	rc, err := f.SyscallConn()
	if err != nil {
		return
	}
	for left := 128 << 10; left > 0; {
		n := 0
		buf := chunks.Get().(*[agentproto.Chunk]byte)
		if rc.Read(func(fd uintptr) bool { n, _ = readFD(int(fd), buf[:]); return true }) != nil {
			n = 0
		}
		if n > 0 {
			use(buf[:n])
		}
		chunks.Put(buf)
		if n <= 0 {
			return
		}
		left -= n
	}
}

// discard reads to the end, so that processes that still write are not blocked.
func discard(f *os.File) {
	for readSome(f, func([]byte) {}) == nil {
	}
	f.Close()
}
