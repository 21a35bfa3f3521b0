package agent

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/agentproto"
	"miren.dev/runtime/pkg/errs"
)

// followEvery is the time between two reads of a log that is followed.
const followEvery = 100 * time.Millisecond

// segment is a file of the spool.
type segment struct {
	name  string
	start int64
}

// segments returns the segments of the spool, oldest first.
func segments(dir *os.File) ([]segment, error) {
	names, err := spoolNames(dir)
	if err != nil {
		return nil, errs.Wrap(err, "list logs")
	}
	var list []segment
	for _, n := range names {
		if at, ok := agentproto.ParseSegmentName(n); ok {
			list = append(list, segment{n, at})
		}
	}
	slices.SortFunc(list, func(a, b segment) int { return cmp.Compare(a.start, b.start) })
	return list, nil
}

// Logs calls line for each selected line of the main process. It works without
// the agent, and after the end of the sandbox until RemoveLogs.
func (h *Hub) Logs(ctx context.Context, id string, q execution.LogQuery, line func(execution.LogLine) error) error {
	if err := checkID(id); err != nil {
		return err
	}
	if q.Offset < 0 || q.Tail < 0 {
		return errs.New(errs.InvalidArgument, "negative offset or tail")
	}
	dir, err := h.openSpool(id)
	if err != nil {
		return err
	}
	defer dir.Close()
	r := &logReader{dir: dir, pos: q.Offset, line: line}
	defer r.close()
	if q.Tail > 0 {
		if r.pos, err = tailOf(ctx, dir, q.Offset, q.Tail); err != nil {
			return err
		}
	}
	t := time.NewTicker(followEvery)
	defer t.Stop()
	for {
		ended := !q.Follow || h.hasEnded(id, dir) // check before reading, so that no line is missed
		if err := r.readAll(ctx); err != nil {
			return err
		}
		if ended {
			return nil
		}
		select {
		case <-ctx.Done():
			return errs.Wrap(ctx.Err(), "follow log of %s", id)
		case <-t.C:
		}
	}
}

// checkSegment fails for a size that no agent's segment has. One that the guest has made of a hole costs it nothing,
// and takes for ever to read.
func checkSegment(name string, size int64) error {
	if size > agentproto.MaxSegment {
		return errs.New(errs.Corrupt, "%s in the log directory has %d bytes, which is more than %d", name, size, agentproto.MaxSegment)
	}
	return nil
}

// logReader reads a spool forward.
type logReader struct {
	dir  *os.File
	pos  int64 // offset in the whole log, after the last record
	line func(execution.LogLine) error

	f    *os.File // the segment that pos is in
	seg  segment
	size int64 // offset in f up to which it was read
	hold *execution.LogLine

	missed int64 // bytes lost before the next line
}

func (r *logReader) close() {
	if r.f != nil {
		r.f.Close()
		r.f = nil
	}
}

// readAll reads to the log's present end.
func (r *logReader) readAll(ctx context.Context) error {
	for {
		if r.f != nil {
			var st unix.Stat_t
			if err := unix.Fstat(int(r.f.Fd()), &st); err != nil {
				return errs.Wrap(err, "stat log")
			}
			if st.Size > r.size {
				if err := checkSegment(r.seg.name, st.Size); err != nil {
					return err
				}
				r.size = st.Size
				if err := r.readSegment(ctx); err != nil {
					return err
				}
			}
		}
		more, err := r.next()
		if err != nil {
			return err
		}
		if !more {
			return r.release()
		}
	}
}

// next opens the segment that pos is in, or the first one after it, and reports
// whether that is another segment than before.
func (r *logReader) next() (bool, error) {
	for range 3 { // the agent may delete the oldest meanwhile
		list, err := segments(r.dir)
		if err != nil {
			return false, err
		}
		i, exact := slices.BinarySearchFunc(list, r.pos, func(s segment, pos int64) int { return cmp.Compare(s.start, pos) })
		if !exact && i > 0 && (r.f == nil || list[i-1] != r.seg) {
			i-- // pos is within this segment
		}
		if i == len(list) || r.f != nil && list[i] == r.seg {
			// The open segment may contain incomplete records.
			return false, nil
		}
		f, _, err := openGuestFile(r.dir, list[i].name)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return false, err
		}
		r.close()
		r.f, r.seg, r.size = f, list[i], 0
		if gone := r.seg.start - r.pos; gone > 0 {
			r.missed += gone
			r.pos = r.seg.start
		}
		return true, nil
	}
	return false, nil
}

// readSegment reads whole records of the open segment from pos on.
func (r *logReader) readSegment(ctx context.Context) error {
	buf := make([]byte, 0, 2*agentproto.MaxRecord)
	at := r.pos - r.seg.start // offset of buf in the file
	skipping := false         // the line is too long
	for {
		if err := ctx.Err(); err != nil {
			return errs.Wrap(err, "read log")
		}
		n, err := r.f.ReadAt(buf[len(buf):cap(buf)], at+int64(len(buf)))
		buf = buf[:len(buf)+n]
		if err != nil && !errors.Is(err, io.EOF) {
			return errs.Wrap(err, "read log")
		}
		rest := buf
		for {
			i := bytes.IndexByte(rest, '\n')
			if i < 0 {
				break
			}
			at += int64(i) + 1
			r.pos = r.seg.start + at
			if rec, err := agentproto.ParseRecord(rest[:i]); err == nil && !skipping {
				if err := r.record(rec); err != nil {
					return err
				}
			}
			skipping = false
			rest = rest[i+1:]
		}
		if len(rest) > agentproto.MaxRecord {
			at += int64(len(rest))
			r.pos = r.seg.start + at
			rest, skipping = nil, true
		}
		buf = append(buf[:0], rest...)
		if n == 0 {
			return nil
		}
	}
}

// record joins the parts of a line, up to its bound.
func (r *logReader) record(rec agentproto.Record) error {
	stream := "stdout"
	if rec.Stream == agentproto.Stderr {
		stream = "stderr"
	}
	if h := r.hold; h != nil {
		if h.Stream == stream && len(h.Text)+len(rec.Text) <= agentproto.MaxLine {
			h.Text += string(rec.Text)
			h.Offset = r.pos
			if rec.Partial {
				return nil
			}
			return r.release()
		}
		if err := r.release(); err != nil {
			return err
		}
	}
	l := execution.LogLine{Offset: r.pos, At: time.Unix(0, rec.At), Stream: stream, Text: string(rec.Text), Missed: r.missed}
	r.missed = 0
	if rec.Partial {
		r.hold = &l
		return nil
	}
	return r.line(l)
}

// release emits a line whose end has not come.
func (r *logReader) release() error {
	if r.hold == nil {
		return nil
	}
	l := *r.hold
	r.hold = nil
	return r.line(l)
}

// tailOf returns the offset before the last n records that begin at from or
// later.
func tailOf(ctx context.Context, dir *os.File, from int64, n int) (int64, error) {
	list, err := segments(dir)
	if err != nil {
		return 0, err
	}
	buf := make([]byte, 64<<10)
	for i := len(list) - 1; i >= 0; i-- {
		if err := ctx.Err(); err != nil {
			return 0, errs.Wrap(err, "read log")
		}
		s := list[i]
		f, size, err := openGuestFile(dir, s.name)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return 0, err
		}
		pos, left := int64(0), 0
		if err = checkSegment(s.name, size); err == nil {
			pos, left, err = tailSegment(f, size, n, buf)
		}
		f.Close()
		if err != nil {
			return 0, err
		}
		if left == 0 || s.start <= from {
			return max(from, s.start+pos), nil
		}
		n = left
	}
	return from, nil
}

// tailSegment returns where the last n lines of the segment begin, and how many
// of n are not in it.
func tailSegment(f *os.File, size int64, n int, buf []byte) (pos int64, left int, err error) {
	for end := size; end > 0; {
		begin := max(0, end-int64(len(buf)))
		m, err := f.ReadAt(buf[:end-begin], begin)
		if err != nil && !errors.Is(err, io.EOF) {
			return 0, 0, errs.Wrap(err, "read log")
		}
		b := buf[:m]
		for i := bytes.LastIndexByte(b, '\n'); i >= 0; i = bytes.LastIndexByte(b[:i], '\n') {
			if begin+int64(i)+1 == size {
				continue // the end of the last line, not the one before it
			}
			if n--; n == 0 {
				return begin + int64(i) + 1, 0, nil
			}
		}
		end = begin
	}
	if size > 0 {
		n-- // the first line
	}
	return 0, n, nil
}
