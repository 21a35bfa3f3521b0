package mock

import (
	"bytes"
	"context"
	"sync"
	"time"

	"miren.dev/runtime/components/execution"
)

// log is the output of a main process.
type log struct {
	mu      sync.Mutex
	lines   []execution.LogLine
	ended   bool
	changed chan struct{} // closed and replaced at every change
}

func (l *log) update(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *log) add(stream, text string) {
	l.update(func() {
		at := int64(len(text)) + 1
		if n := len(l.lines); n > 0 {
			at += l.lines[n-1].Offset
		}
		l.lines = append(l.lines, execution.LogLine{Offset: at, At: time.Now(), Stream: stream, Text: text})
	})
}

func (l *log) end() { l.update(func() { l.ended = true }) }

func (l *log) read(ctx context.Context, q execution.LogQuery, line func(execution.LogLine) error) error {
	for {
		l.mu.Lock()
		lines, ended, changed := l.lines, l.ended || !q.Follow, l.changed
		l.mu.Unlock()
		for len(lines) > 0 && lines[0].Offset <= q.Offset {
			lines = lines[1:]
		}
		if q.Tail > 0 {
			lines = lines[max(0, len(lines)-q.Tail):]
			q.Tail = 0
		}
		for _, x := range lines {
			if err := line(x); err != nil {
				return err
			}
			q.Offset = x.Offset
		}
		if ended {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

// lineWriter splits a stream into lines.
type lineWriter struct {
	log    *log
	stream string
	rest   []byte
}

func (w *lineWriter) Write(p []byte) (int, error) {
	w.rest = append(w.rest, p...)
	for {
		i := bytes.IndexByte(w.rest, '\n')
		if i < 0 {
			return len(p), nil
		}
		w.log.add(w.stream, string(w.rest[:i]))
		w.rest = w.rest[i+1:]
	}
}
