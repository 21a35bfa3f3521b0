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
		lines, size := 0, 0
		q.Last = func(x *logstore.Line) (want, more bool) {
			lines, size = lines+1, size+len(x.Text)
			return true, lines < l.limit && size < sandbox.MaxLogSelection
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
// as far as sandbox.MaxLogSelection permits, and one that emits them.
func lastLines(n int, emit func(sandbox.LogLine) error) (add func(sandbox.LogLine) error, flush func() error) {
	var kept []sandbox.LogLine
	size := 0
	add = func(x sandbox.LogLine) error {
		kept, size = append(kept, x), size+len(x.Text)
		for len(kept) > n || size-len(kept[0].Text) >= sandbox.MaxLogSelection {
			size -= len(kept[0].Text)
			kept[0] = sandbox.LogLine{}
			kept = kept[1:]
		}
		return nil
	}
	return add, func() error {
		for _, x := range kept {
			if err := emit(x); err != nil {
				return err
			}
		}
		return nil
	}
}
