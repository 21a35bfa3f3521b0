package miren

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"net/http"
	"time"

	"github.com/tmaxmax/go-sse"

	"miren.dev/runtime/sdk/go/rest"
)

// maxEvent bounds the bytes of an event.
const maxEvent = 16 << 20

// Event is an event of a stream. One of its fields is set.
type Event struct {
	Output    *rest.OutputEvent
	Note      *rest.NoteEvent
	Execution *rest.Execution // its state; the last event of an execution
	End       *rest.EndEvent  // the last event of a command
}

// Follow yields the events of an execution, from its begin until its end or an error.
func (c *Client) Follow(ctx context.Context, id string) iter.Seq2[Event, error] {
	return c.events(ctx, func(ctx context.Context, last *string) (*http.Response, error) {
		return c.REST.ClientInterface.StreamExecution(ctx, id, &rest.StreamExecutionParams{LastEventID: last})
	})
}

// Stream executes code or a command and yields its output as it comes.
func (s *Sandbox) Stream(ctx context.Context, body rest.Execute, opts ...Option) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		o := optionsOf(opts)
		resp, err := s.client.REST.ExecuteInSessionWithResponse(ctx, s.ID(), &rest.ExecuteInSessionParams{IdempotencyKey: &o.key}, body)
		if err != nil {
			yield(Event{}, err)
			return
		}
		s.client.Follow(ctx, resp.JSON200.ID)(yield)
	}
}

// StreamCommand runs a command in the background and yields its output as it comes.
func (s *Sandbox) StreamCommand(ctx context.Context, body rest.Command) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		body.Background = Ptr(true)
		started, err := s.RunCommand(ctx, body)
		if err == nil && started.ID == nil {
			err = errors.New("miren: the answer has no command")
		}
		if err != nil {
			yield(Event{}, err)
			return
		}
		s.client.events(ctx, func(ctx context.Context, last *string) (*http.Response, error) {
			return s.client.REST.ClientInterface.StreamCommand(ctx, s.ID(), *started.ID, &rest.StreamCommandParams{LastEventID: last})
		})(yield)
	}
}

// events yields the events of a stream. One that breaks is continued after its last event.
func (c *Client) events(ctx context.Context, open func(context.Context, *string) (*http.Response, error)) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		var last *string
		for failures := 0; ; failures++ {
			resp, err := open(ctx, last)
			if err != nil {
				yield(Event{}, err)
				return
			}
			err = io.ErrUnexpectedEOF // unless the last event comes
			body := newStallReader(resp.Body, c.timeout)
			for m, serr := range sse.Read(body, &sse.ReadConfig{MaxEventSize: maxEvent}) {
				if serr != nil {
					err = serr
					break
				}
				if m.LastEventID != "" && (last == nil || *last != m.LastEventID) {
					last, failures = Ptr(m.LastEventID), 0
				}
				e, eerr := eventOf(m)
				if eerr != nil {
					body.Close()
					yield(Event{}, eerr)
					return
				}
				if (e != Event{} && !yield(e, nil)) || m.Type == "end" {
					body.Close()
					return
				}
			}
			body.Close()
			if failures >= c.retries || ctx.Err() != nil {
				if ctx.Err() != nil {
					err = context.Cause(ctx)
				}
				yield(Event{}, err)
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(delay(failures, nil)):
			}
		}
	}
}

// eventOf returns an event; none for one of a newer server.
func eventOf(m sse.Event) (e Event, err error) {
	data := []byte(m.Data)
	switch m.Type {
	case "output":
		err = json.Unmarshal(data, &e.Output)
	case "note":
		err = json.Unmarshal(data, &e.Note)
	case "status":
		err = json.Unmarshal(data, &e.Execution)
	case "end":
		// The end of a command has no state.
		if err = json.Unmarshal(data, &e.Execution); err == nil && e.Execution.State == "" {
			e = Event{}
			err = json.Unmarshal(data, &e.End)
		}
	case "error":
		var p rest.Problem
		if err = json.Unmarshal(data, &p); err == nil {
			err = errorOf(&p)
		}
	}
	return e, err
}

// stallReader ends a body that has no data for some time: the server sends some every 15 s.
type stallReader struct {
	io.ReadCloser
	timer *time.Timer
	limit time.Duration
}

func newStallReader(body io.ReadCloser, limit time.Duration) *stallReader {
	return &stallReader{body, time.AfterFunc(limit, func() { body.Close() }), limit}
}

func (r *stallReader) Read(b []byte) (int, error) {
	n, err := r.ReadCloser.Read(b)
	r.timer.Reset(r.limit)
	return n, err
}

func (r *stallReader) Close() error {
	r.timer.Stop()
	return r.ReadCloser.Close()
}
