package buildkit

import (
	"bytes"
	"strings"
	"time"

	"github.com/moby/buildkit/client"

	"miren.dev/runtime/pkg/buildlog"
)

// Bounds of what is kept for the explanation of a failure, and of one line.
const (
	tailLines = 200
	maxLine   = 16 << 10
)

// step is what is known of one vertex.
type step struct {
	number   int
	name     string
	internal bool
	started  time.Time
	ended    bool
	failed   bool
	tail     []string
	limit    Limit     // that ended it; empty: none
	partial  [3][]byte // unfinished line per stream
	statuses map[string]bool
}

// tracker turns BuildKit's status updates, which repeat themselves, into events.
type tracker struct {
	emit    func(buildlog.Event)
	mask    mask // for what steps write
	steps   map[string]*step
	counter int
}

func newTracker(progress func(buildlog.Event), m mask) *tracker {
	return &tracker{emit: func(e buildlog.Event) { progress(m.event(e)) }, mask: m, steps: map[string]*step{}}
}

func (t *tracker) event(s *step, kind buildlog.EventKind, at time.Time) buildlog.Event {
	return buildlog.Event{Kind: kind, Step: s.number, Name: s.name, Internal: s.internal, At: at}
}

func (t *tracker) update(u *client.SolveStatus) {
	for _, v := range u.Vertexes {
		t.vertex(v)
	}
	for _, v := range u.Statuses {
		t.status(v)
	}
	for _, l := range u.Logs {
		t.log(l)
	}
	for _, w := range u.Warnings {
		e := buildlog.Event{Kind: buildlog.Warning, At: time.Now(), Text: string(w.Short)}
		if s := t.steps[w.Vertex.String()]; s != nil {
			e.Step, e.Name = s.number, s.name
		}
		t.emit(e)
	}
}

func (t *tracker) vertex(v *client.Vertex) {
	id := v.Digest.String()
	s := t.steps[id]
	if s == nil {
		s = &step{statuses: map[string]bool{}}
		t.steps[id] = s
	}
	s.name = v.Name
	s.internal = strings.HasPrefix(v.Name, "[internal]")
	if v.Started != nil && s.started.IsZero() {
		t.counter++
		s.number, s.started = t.counter, *v.Started
		t.emit(t.event(s, buildlog.StepStarted, *v.Started))
	}
	if v.Completed == nil || s.ended || s.started.IsZero() {
		return
	}
	s.ended = true
	t.flush(s, *v.Completed)
	kind := buildlog.StepDone
	switch {
	case v.Cached:
		kind = buildlog.StepCached
	case strings.Contains(v.Error, "context canceled"):
		kind = buildlog.StepCanceled
	case v.Error != "":
		kind, s.failed = buildlog.StepFailed, true
	}
	e := t.event(s, kind, *v.Completed)
	e.Took, e.Text = v.Completed.Sub(s.started), v.Error
	t.emit(e)
}

// status tells about transfers and the parts of an export: the first and the last update of each, and those with a size.
func (t *tracker) status(v *client.VertexStatus) {
	s := t.steps[v.Vertex.String()]
	if s == nil || s.ended {
		return
	}
	done := v.Completed != nil
	if was, known := s.statuses[v.ID]; known && (was || !done && v.Total == 0) {
		return
	}
	s.statuses[v.ID] = done
	e := t.event(s, buildlog.StepProgress, v.Timestamp)
	e.Text, e.Current, e.Total = v.ID, v.Current, v.Total
	if v.Name != "" {
		e.Text = v.Name
	}
	t.emit(e)
}

func (t *tracker) log(l *client.VertexLog) {
	s := t.steps[l.Vertex.String()]
	if s == nil {
		return
	}
	stream := min(max(l.Stream, 0), 2)
	b := append(s.partial[stream], l.Data...)
	for {
		i := bytes.IndexByte(b, '\n')
		if i < 0 && len(b) < maxLine {
			break
		}
		if i < 0 || i > maxLine {
			t.line(s, stream, b[:maxLine], l.Timestamp)
			b = b[maxLine:]
			continue
		}
		t.line(s, stream, b[:i], l.Timestamp)
		b = b[i+1:]
	}
	s.partial[stream] = bytes.Clone(b)
}

// flush tells the last lines that had no end.
func (t *tracker) flush(s *step, at time.Time) {
	for stream, b := range s.partial {
		if len(b) > 0 {
			t.line(s, stream, b, at)
			s.partial[stream] = nil
		}
	}
}

func (t *tracker) line(s *step, stream int, b []byte, at time.Time) {
	b = bytes.TrimSuffix(b, []byte("\r"))
	// Of a line that was written over itself (progress bars) the last state counts.
	if i := bytes.LastIndexByte(b, '\r'); i >= 0 {
		b = b[i+1:]
	}
	e := t.event(s, buildlog.StepLog, at)
	e.Text, e.Stderr = strings.ToValidUTF8(string(b), "�"), stream == 2
	if l := limitIn(e.Text); l != "" && e.Stderr {
		s.limit = l
	}
	if len(s.tail) == tailLines {
		s.tail = append(s.tail[:0], s.tail[1:]...)
	}
	s.tail = append(s.tail, t.mask.text(e.Text))
	t.emit(e)
}
