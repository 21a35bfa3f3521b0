package rest

import (
	"context"
	"io"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	eventapi "miren.dev/runtime/api/event"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/opt"
	"miren.dev/runtime/pkg/schema"
)

// Event is something that happened in the project.
type Event struct {
	ID        string         `json:"id" doc:"Id, which receivers of webhooks get as webhook-id."`
	Type      string         `json:"type" doc:"Type." example:"sandbox.ended"`
	Timestamp time.Time      `json:"timestamp" doc:"Time at which it happened."`
	Data      map[string]any `json:"data" doc:"What it happened to: kind, id, phase and more."`
}

// EventPage is a page of events.
type EventPage struct {
	Events     []Event `json:"events" doc:"Events, newest first."`
	NextCursor string  `json:"next_cursor,omitempty" doc:"For the next page; absent on the last."`
}

var projectEvents = map[string]any{eventEvent: Event{}, eventError: Problem{}}

func registerEvents(a huma.API) {
	const tag = "events"
	register(a, op(http.MethodGet, "/events", "list-events", tag, "List what happened in the project"), listEvents)
	register(a, op(http.MethodGet, "/events/stream", "stream-events", tag, "Follow what happens in the project, as server-sent events",
		answers(map[string]*huma.MediaType{eventStream: events(a, projectEvents)})), streamEvents)
}

// EventFilter selects events.
type EventFilter struct {
	Type    string    `query:"type" maxLength:"63" doc:"Only events of this type, or of a noun: sandbox.*" example:"sandbox.ended"`
	Subject string    `query:"subject" maxLength:"63" doc:"Only events of this sandbox, execution, snapshot, template or deployment; its id."`
	Since   time.Time `query:"since" doc:"Only events that were recorded at this time or later."`
}

type listEventsInput struct {
	EventFilter
	Limit  int64  `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"Most events of a page."`
	Cursor string `query:"cursor" maxLength:"63" doc:"next_cursor of the page before."`
}

type streamEventsInput struct {
	EventFilter
	LastEventID string `header:"Last-Event-ID" maxLength:"63" doc:"id of the last event of an earlier stream: those after it follow. Absent: those since, or from now on. 410 if some of them are not kept any more."`
}

// eventsOf returns events for an answer.
func eventsOf(records []schema.Record) ([]Event, error) {
	out := make([]Event, len(records))
	for i := range records {
		e, err := entity.Decode[eventapi.Event](&records[i])
		if err != nil {
			return nil, err
		}
		c, err := e.Content()
		if err != nil {
			return nil, err
		}
		out[i] = Event{ID: string(e.ID), Type: c.Type, Timestamp: c.Timestamp, Data: c.Data}
	}
	return out, nil
}

func listEvents(ctx context.Context, in *listEventsInput) (*body[EventPage], error) {
	c := callerFrom(ctx)
	resp, err := eventapi.NewEventsClient(c.Client).List(ctx, &eventapi.ListRequest{
		Project: c.Project(), Type: in.Type, Subject: in.Subject, Since: opt.Of(in.Since), Limit: in.Limit, Cursor: in.Cursor,
	})
	if err != nil {
		return nil, err
	}
	list, err := eventsOf(resp.Events)
	return &body[EventPage]{EventPage{Events: list, NextCursor: resp.Cursor}}, err
}

func streamEvents(ctx context.Context, in *streamEventsInput) (*huma.StreamResponse, error) {
	c := callerFrom(ctx)
	cctx, cancel := context.WithCancel(ctx)
	st, err := eventapi.NewEventsClient(c.Client).Follow(cctx, &eventapi.FollowRequest{
		Project: c.Project(), Type: in.Type, Subject: in.Subject, After: in.LastEventID, Since: opt.Of(in.Since),
	})
	if err == nil {
		if _, err = st.Recv(); err != nil { // the first has no events
			st.Close()
		}
	}
	if err != nil {
		cancel()
		return nil, err
	}
	return &huma.StreamResponse{Body: streamed(func(sctx context.Context, emit func(event)) error {
		defer st.Close()
		defer cancel()
		defer context.AfterFunc(sctx, cancel)()
		for {
			m, err := st.Recv()
			if err == io.EOF {
				return nil
			}
			if err != nil {
				return err
			}
			list, err := eventsOf(m.Events)
			if err != nil {
				return err
			}
			for _, e := range list {
				emit(event{e.ID, eventEvent, e})
			}
		}
	})}, nil
}
