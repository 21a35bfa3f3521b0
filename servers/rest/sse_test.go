package rest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/testsupport/wait"
)

// client is the reader of a stream.
type client struct {
	mu   sync.Mutex
	b    bytes.Buffer
	gone bool
}

func (c *client) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone {
		return 0, errors.New("broken pipe")
	}
	return c.b.Write(p)
}

func (c *client) text() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.b.String()
}

func (c *client) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gone = true
}

func noFlush() error { return nil }

// TestStreamOfEvents: events as they come, and an error as the last one.
func TestStreamOfEvents(t *testing.T) {
	c := new(client)
	stream(t.Context(), c, noFlush, time.Hour, func(_ context.Context, emit func(event)) error {
		emit(event{"3-0", eventOutput, OutputEvent{Stream: "stdout", Data: "a\nb"}})
		return errs.New(errs.Unavailable, "the node is gone")
	})
	want := "id: 3-0\nevent: output\ndata: {\"stream\":\"stdout\",\"data\":\"a\\nb\",\"offset\":0}\n\nevent: error\ndata: {"
	if got := c.text(); !strings.HasPrefix(got, want) || !strings.HasSuffix(got, "\n\n") || !strings.Contains(got, `"class":"unavailable"`) {
		t.Errorf("%s", got)
	}
}

// TestStreamWithoutEvents sends comments, which find out that the client has
// gone; the source ends with the stream.
func TestStreamWithoutEvents(t *testing.T) {
	c, ended := new(client), make(chan struct{})
	go func() {
		defer close(ended)
		stream(t.Context(), c, noFlush, time.Millisecond, func(ctx context.Context, emit func(event)) error {
			<-ctx.Done()
			emit(event{name: eventNote, data: NoteEvent{"nobody reads this"}}) // does not wait
			return ctx.Err()
		})
	}()
	wait.For(t, "comments", func() bool { return strings.Contains(c.text(), ": heartbeat\n\n: heartbeat\n\n") })
	c.leave()
	<-ended
	if strings.Contains(c.text(), "event:") {
		t.Error(c.text())
	}
}

// TestOutputsOfAStream: each byte once, from where the client is, and no broken
// characters.
func TestOutputsOfAStream(t *testing.T) {
	var got []string
	emit := func(e event) {
		d := e.data.(OutputEvent)
		got = append(got, fmt.Sprintf("%s %s@%d %q", e.id, d.Stream, d.Offset, d.Data))
	}
	check := func(what string, want ...string) {
		t.Helper()
		if strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("%s: %q", what, got)
		}
		got = nil
	}
	o := &outputs{emit: emit}
	o.add(stdoutStream, 0, []byte("caf\xc3"))
	o.add(stderrStream, 0, []byte("oops"))
	o.add(stdoutStream, 4, []byte("\xa9!"))
	check("a character in two parts", `3-0 stdout@0 "caf"`, `3-4 stderr@0 "oops"`, `6-4 stdout@3 "é!"`)
	o.add(stdoutStream, 6, []byte("\xe2\x82"))
	o.flush()
	check("a character that is not complete", `8-4 stdout@6 "�"`)

	o = &outputs{emit: emit, at: (&ResumeInput{LastEventID: "4-2"}).position()}
	o.add(stdoutStream, 0, []byte("abc"))
	o.add(stdoutStream, 3, []byte("def"))
	o.add(stdoutStream, 100, []byte("x"))
	o.add(stderrStream, 2, []byte("y"))
	check("a resumed stream that lost output", `6-2 stdout@4 "ef"`, `101-2 stdout@100 "x"`, `101-3 stderr@2 "y"`)

	o = &outputs{emit: emit, base64: true, at: (&ResumeInput{LastEventID: "2-1-0"}).position()}
	o.add(stdoutStream, 0, []byte("\xff\xc3"))
	check("base64 of attempt 2", `2-2-0 stdout@1 "ww=="`)
}
