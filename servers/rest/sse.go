package rest

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
)

// heartbeat is how often a stream without events sends a comment, so that
// proxies keep it open and its client sees that the server is there.
const heartbeat = 15 * time.Second

const eventStream = "text/event-stream"

// event is a server-sent event.
type event struct {
	id   string // position of the stream after it; "": unchanged
	name string
	data any
}

// Names of events.
const (
	eventOutput = "output" // OutputEvent
	eventStatus = "status" // Execution
	eventNote   = "note"   // NoteEvent
	eventEnd    = "end"    // EndEvent or Execution; the last
	eventError  = "error"  // Problem; the last
	eventEvent  = "event"  // Event
)

// OutputEvent is the next part of an output.
type OutputEvent struct {
	Stream  string `json:"stream" enum:"stdout,stderr" doc:"Which output."`
	Data    string `json:"data" doc:"Output, as text or in base64."`
	Offset  int64  `json:"offset" doc:"Position of its first byte in the output; it jumps where output was not kept."`
	Attempt int64  `json:"attempt,omitempty" doc:"Attempt of the execution."`
}

// NoteEvent is a message for people.
type NoteEvent struct {
	Message string `json:"message" doc:"Message."`
}

// EndEvent is the end of a command.
type EndEvent struct {
	ExitCode int64  `json:"exit_code" doc:"Exit code; 128+n for signal n."`
	Reason   string `json:"reason,omitempty" doc:"Why it was ended from outside: oom, ttl, idle, user; absent: it was not, as far as that is known."`
}

// eventSource produces the events of a stream by calling emit, until its end or that
// of ctx.
type eventSource func(ctx context.Context, emit func(event)) error

// streamed answers with the events of a source. An error is the last event.
func streamed(src eventSource) func(huma.Context) {
	return func(c huma.Context) {
		_, w := humago.Unwrap(c)
		c.SetHeader("Content-Type", eventStream)
		c.SetHeader("Cache-Control", "no-store")
		c.SetHeader("X-Accel-Buffering", "no") // nginx passes events on at once
		c.SetStatus(http.StatusOK)
		stream(c.Context(), w, http.NewResponseController(w).Flush, heartbeat, src)
	}
}

// stream writes events until the source ends or the client goes, and waits for
// the source.
func stream(ctx context.Context, w io.Writer, flush func() error, beat time.Duration, src eventSource) {
	ctx, cancel := context.WithCancel(ctx)
	events := make(chan event)
	go func() {
		defer close(events)
		emit := func(e event) {
			select {
			case events <- e:
			case <-ctx.Done():
			}
		}
		if err := src(ctx, emit); err != nil {
			emit(event{name: eventError, data: problemOf(err)})
		}
	}()
	defer func() {
		cancel()
		for range events {
		}
	}()
	if flush() != nil {
		return
	}
	tick := time.NewTicker(beat)
	defer tick.Stop()
	for {
		text := ": heartbeat\n\n"
		select {
		case e, ok := <-events:
			if !ok {
				return
			}
			text = e.text()
			tick.Reset(beat)
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if _, err := io.WriteString(w, text); err != nil || flush() != nil {
			return
		}
	}
}

// text returns the event as it is sent.
func (e event) text() string {
	b, err := json.Marshal(e.data)
	if err != nil {
		panic(err) // the data are types of this package
	}
	id := ""
	if e.id != "" {
		id = "id: " + e.id + "\n"
	}
	return fmt.Sprintf("%sevent: %s\ndata: %s\n\n", id, e.name, b)
}

// ResumeInput says where a stream goes on.
type ResumeInput struct {
	LastEventID string `header:"Last-Event-ID" maxLength:"100" pattern:"^([0-9]{1,18}-){1,2}[0-9]{1,18}$" doc:"id of the last event of an earlier stream: this one goes on after it."`
	ResultQuery
}

// position is how far a client has the outputs of an attempt. A command has one
// attempt, 0, which its ids leave out.
type position struct {
	attempt        int64
	stdout, stderr int64 // bytes
}

func (p position) id() string {
	if p.attempt == 0 {
		return fmt.Sprintf("%d-%d", p.stdout, p.stderr)
	}
	return fmt.Sprintf("%d-%d-%d", p.attempt, p.stdout, p.stderr)
}

// position returns where the stream begins.
func (in *ResumeInput) position() position {
	var p position
	if strings.Count(in.LastEventID, "-") == 2 {
		_, _ = fmt.Sscanf(in.LastEventID, "%d-%d-%d", &p.attempt, &p.stdout, &p.stderr) // the pattern is checked
	} else {
		_, _ = fmt.Sscanf(in.LastEventID, "%d-%d", &p.stdout, &p.stderr)
	}
	return p
}

// outputs makes events of two outputs. In text a character that arrives in parts
// is sent in one event.
type outputs struct {
	emit   func(event)
	base64 bool
	at     position // of what was emitted
	parts  [2][]byte
}

const (
	stdoutStream = iota
	stderrStream
)

// add emits b, which begins at an offset of a stream.
func (o *outputs) add(which int, offset int64, b []byte) {
	at, name := &o.at.stdout, "stdout"
	if which == stderrStream {
		at, name = &o.at.stderr, "stderr"
	}
	if skip := *at + int64(len(o.parts[which])) - offset; skip > 0 {
		b, offset = b[min(skip, int64(len(b))):], offset+skip
	}
	if len(b) == 0 {
		return
	}
	if part := o.parts[which]; len(part) > 0 && offset == *at+int64(len(part)) {
		b, offset = append(part, b...), *at
	}
	o.parts[which] = nil
	if n := len(b) - unfinished(b); !o.base64 && n < len(b) {
		o.parts[which] = append([]byte(nil), b[n:]...)
		b = b[:n]
	}
	*at = offset + int64(len(b))
	if len(b) > 0 {
		o.send(name, offset, b)
	}
}

func (o *outputs) send(name string, offset int64, b []byte) {
	data := ""
	if o.base64 {
		data = base64.StdEncoding.EncodeToString(b)
	} else {
		data = strings.ToValidUTF8(string(b), "\uFFFD")
	}
	o.emit(event{o.at.id(), eventOutput, OutputEvent{Stream: name, Data: data, Offset: offset, Attempt: o.at.attempt}})
}

// flush emits what is left of characters that did not arrive in full.
func (o *outputs) flush() {
	for which, name := range []string{"stdout", "stderr"} {
		b := o.parts[which]
		if o.parts[which] = nil; len(b) == 0 {
			continue
		}
		at := &o.at.stdout
		if which == stderrStream {
			at = &o.at.stderr
		}
		offset := *at
		*at += int64(len(b))
		o.send(name, offset, b)
	}
}

// unfinished returns how many bytes at the end of b begin a character.
func unfinished(b []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(b); n++ {
		if c := b[len(b)-n]; utf8.RuneStart(c) {
			if !utf8.FullRune(b[len(b)-n:]) {
				return n
			}
			return 0
		}
	}
	return 0
}

// events describes the stream of an operation in the OpenAPI document.
func events(a huma.API, types map[string]any) *huma.MediaType {
	var all []*huma.Schema
	for _, name := range []string{eventOutput, eventStatus, eventNote, eventEvent, eventEnd, eventError} {
		v, ok := types[name]
		if !ok {
			continue
		}
		all = append(all, &huma.Schema{Type: huma.TypeObject, Title: "Event " + name, Required: []string{"event", "data"}, Properties: map[string]*huma.Schema{
			"id":    {Type: huma.TypeString, Description: "For Last-Event-ID."},
			"event": {Type: huma.TypeString, Enum: []any{name}},
			"data":  a.OpenAPI().Components.Schemas.Schema(reflect.TypeOf(v), true, name),
		}})
	}
	return &huma.MediaType{Schema: &huma.Schema{
		Type: huma.TypeString, Description: "Server-sent events; x-events has the types of their data.", Extensions: map[string]any{"x-events": all},
	}}
}

var (
	commandEvents   = map[string]any{eventOutput: OutputEvent{}, eventNote: NoteEvent{}, eventEnd: EndEvent{}, eventError: Problem{}}
	executionEvents = map[string]any{
		eventOutput: OutputEvent{}, eventStatus: Execution{}, eventNote: NoteEvent{}, eventEnd: Execution{}, eventError: Problem{},
	}
)

// answers states the successful answers of an operation by their media types.
func answers(types map[string]*huma.MediaType) func(*huma.Operation) {
	return func(o *huma.Operation) {
		o.Responses = map[string]*huma.Response{"200": {Description: "OK", Content: types}}
	}
}

// wantsEvents reports whether a client asks for server-sent events.
func wantsEvents(accept string) bool {
	for part := range strings.SplitSeq(accept, ",") {
		media, _, _ := strings.Cut(part, ";")
		if strings.EqualFold(strings.TrimSpace(media), eventStream) {
			return true
		}
	}
	return false
}
