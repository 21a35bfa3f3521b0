package sandboxes

import (
	"context"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/pkg/logstore"
)

// logLine returns a line as it is sent.
func logLine(x *logstore.Line) sandbox.LogLine {
	return sandbox.LogLine{
		Sandbox: id.Sandbox(x.Source), Service: x.Service, Version: optional(x.Version), Offset: optional(x.Offset), At: x.At,
		Stderr: optional(x.Stderr), Level: x.Level.String(), Text: x.Text, Missed: optional(x.Missed),
	}
}

// keptLines takes a snapshot of the kept lines of an app: the log of each sandbox is
// read from the position on that the snapshot ends at, so no line is left out and
// none comes twice. With a tail nothing is kept as far as l knows. The caller calls
// done.
func (l *logReader) keptLines(a id.App) (done func(), err error) {
	l.kept = &logstore.Snapshot{}
	if l.Kept == nil || l.tail != nil {
		return func() {}, nil
	}
	if l.kept, err = l.Kept.Snapshot(string(a)); err != nil {
		return nil, err
	}
	return l.kept.Close, nil
}

// readKept sends the selected lines of the snapshot.
func (l *logReader) readKept(ctx context.Context, ch chan<- sandbox.LogLine) error {
	q := l.query
	if l.limit > 0 {
		left := l.limit
		q.Last = func(*logstore.Line) (want, more bool) {
			left--
			return true, left > 0
		}
	}
	return l.kept.Read(ctx, q, func(x logstore.Line) error {
		select {
		case ch <- logLine(&x):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
}

// rest calls fn with the kept lines of a sandbox of an app after src.offset, for a
// sandbox whose own log was deleted meanwhile.
func (l *logReader) rest(ctx context.Context, src *logSource, fn func(sandbox.LogLine) error) error {
	if l.Kept == nil || src.sb.Spec.App == "" {
		return nil
	}
	x, err := l.Kept.Snapshot(string(src.sb.Spec.App))
	if err != nil {
		return err
	}
	defer x.Close()
	if x.Position(string(src.sb.ID)) <= src.offset {
		return nil
	}
	q := l.query
	q.Source = string(src.sb.ID)
	return x.Read(ctx, q, func(x logstore.Line) error {
		if x.Offset <= src.offset {
			return nil
		}
		src.offset = x.Offset
		return fn(logLine(&x))
	})
}

// lastLines returns a function that keeps the last n lines of those it is called with,
// and one that emits them.
func lastLines(n int, emit func(sandbox.LogLine) error) (add func(sandbox.LogLine) error, flush func() error) {
	var ring []sandbox.LogLine
	next := 0
	add = func(x sandbox.LogLine) error {
		if len(ring) < n {
			ring = append(ring, x)
			return nil
		}
		ring[next] = x
		next = (next + 1) % n
		return nil
	}
	return add, func() error {
		for i := range ring {
			if err := emit(ring[(next+i)%len(ring)]); err != nil {
				return err
			}
		}
		return nil
	}
}
