package rpcserver

import (
	"context"

	"miren.dev/runtime/api/event"
	"miren.dev/runtime/domain/events"
	"miren.dev/runtime/pkg/opt"
	"miren.dev/runtime/pkg/rpc"
)

// eventHandler serves event.Events.
type eventHandler struct{ events *events.Service }

// Events serves s to its callers.
func Events(s *events.Service) event.Events { return &eventHandler{s} }

func (h *eventHandler) List(ctx context.Context, req *event.ListRequest) (*event.ListResponse, error) {
	q := events.Query{Project: req.Project, Type: req.Type, Subject: req.Subject, Since: opt.Value(req.Since)}
	list, cursor, err := h.events.List(ctx, q, int(req.Limit), req.Cursor)
	if err != nil {
		return nil, err
	}
	records, err := recordsOf(list)
	return &event.ListResponse{Events: records, Cursor: cursor}, err
}

// Follow sends events until the caller goes.
func (h *eventHandler) Follow(ctx context.Context, req *event.FollowRequest, st rpc.ServerStream[rpc.None, event.Batch]) error {
	q := events.Query{Project: req.Project, Type: req.Type, Subject: req.Subject, Since: opt.Value(req.Since)}
	return h.events.Follow(ctx, q, req.After, func(list []*event.Event) error {
		records, err := recordsOf(list)
		if err != nil {
			return err
		}
		return st.Send(&event.Batch{Events: records})
	})
}
