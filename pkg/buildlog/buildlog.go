// Package buildlog keeps the logs of builds: one file of JSON lines per build,
// written while it runs and readable at the same time.
//
//	<dir>/<build id>.jsonl
//
// A line is one Event as JSON. A log that ends without Finish (the server was
// killed) is complete up to its last whole line: a build that is done again
// starts its log anew.
package buildlog

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"sync"

	"miren.dev/runtime/pkg/errs"
)

// DefaultMaxBytes bounds one log, in bytes. Later events are dropped, and the
// last line says so.
const DefaultMaxBytes = 16 << 20

// maxLine bounds one event, in bytes.
const maxLine = 256 << 10

var validID = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,63}$`)

// Logs is the logs of one installation. It is safe for concurrent use.
type Logs struct {
	dir string
	max int64

	mu   sync.Mutex
	open map[string]*Writer
}

// New returns the logs under dir.
func New(dir string, maxBytes int64) *Logs {
	if maxBytes <= 0 {
		maxBytes = DefaultMaxBytes
	}
	return &Logs{dir: dir, max: maxBytes, open: map[string]*Writer{}}
}

func (l *Logs) path(id string) (string, error) {
	if !validID.MatchString(id) {
		return "", errs.New(errs.InvalidArgument, "%q is not a build id", id)
	}
	return filepath.Join(l.dir, id+".jsonl"), nil
}

// Writer writes the log of one build. It is safe for concurrent use.
type Writer struct {
	logs *Logs
	id   string

	mu      sync.Mutex
	f       *os.File
	size    int64
	full    bool
	closed  bool
	changed chan struct{} // closed and replaced at every change
}

// Start begins the log of a build anew.
func (l *Logs) Start(id string) (*Writer, error) {
	path, err := l.path(id)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(l.dir, 0o700); err != nil {
		return nil, errs.New(errs.Unavailable, "build log: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open[id] != nil {
		return nil, errs.New(errs.Conflict, "the log of build %s is being written", id)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, errs.New(errs.Unavailable, "build log: %w", err)
	}
	w := &Writer{logs: l, id: id, f: f, changed: make(chan struct{})}
	l.open[id] = w
	return w, nil
}

// Add appends one event. It returns no error, since a failing log must not stop
// a build: a full disk or a full log loses events.
func (w *Writer) Add(e Event) {
	b, err := json.Marshal(e)
	if err != nil || len(b) > maxLine {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.closed || w.full:
		return
	case w.size+int64(len(b)) > w.logs.max:
		w.full = true
		b = []byte(`{"kind":"warning","text":"the log is full; the rest is not kept"}`)
	}
	n, _ := w.f.Write(append(b, '\n')) // see above
	w.size += int64(n)
	w.notify()
}

func (w *Writer) notify() {
	close(w.changed)
	w.changed = make(chan struct{})
}

// Finish ends the log; Read with follow returns then.
func (w *Writer) Finish() {
	w.logs.mu.Lock()
	delete(w.logs.open, w.id)
	w.logs.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closed {
		w.closed = true
		w.f.Close()
		w.notify()
	}
}

// state returns whether more events may come, and a channel that is closed at the
// next change.
func (w *Writer) state() (open bool, changed <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.closed, w.changed
}

// Read calls fn with each event from the byte offset on, and with the offset
// after it. With follow it continues until the log is finished. A line that a
// crash cut short is left out. Errors: NotFound if the build has no log.
func (l *Logs) Read(ctx context.Context, id string, offset int64, follow bool, fn func(e Event, next int64) error) error {
	path, err := l.path(id)
	if err != nil {
		return err
	}
	l.mu.Lock()
	w := l.open[id]
	l.mu.Unlock()
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return errs.New(errs.NotFound, "build %s has no log", id)
	}
	if err != nil {
		return errs.New(errs.Unavailable, "build log: %w", err)
	}
	defer f.Close()
	if _, err := f.Seek(offset, io.SeekStart); err != nil {
		return errs.New(errs.InvalidArgument, "build log: %w", err)
	}
	r := bufio.NewReaderSize(f, 64<<10)
	var partial []byte
	for {
		// Read the state first, so that no event after the read is missed.
		var open bool
		var changed <-chan struct{}
		if w != nil && follow {
			open, changed = w.state()
		}
		for {
			b, err := r.ReadBytes('\n')
			partial = append(partial, b...)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return errs.New(errs.Unavailable, "build log: %w", err)
			}
			offset += int64(len(partial))
			var e Event
			if json.Unmarshal(partial, &e) == nil {
				if err := fn(e, offset); err != nil {
					return err
				}
			}
			partial = nil
		}
		if !open {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Delete removes the log of a build. It returns nil when there is none.
func (l *Logs) Delete(id string) error {
	path, err := l.path(id)
	if err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return errs.New(errs.Unavailable, "build log: %w", err)
	}
	return nil
}

// List returns the ids of the builds that have a log.
func (l *Logs) List() ([]string, error) {
	entries, err := os.ReadDir(l.dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, errs.New(errs.Unavailable, "build logs: %w", err)
	}
	var ids []string
	for _, e := range entries {
		if id, ok := trimExt(e.Name()); ok {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

func trimExt(name string) (string, bool) {
	const ext = ".jsonl"
	if filepath.Ext(name) != ext {
		return "", false
	}
	return name[:len(name)-len(ext)], true
}
