package server

import (
	"context"

	"miren.dev/runtime/api/server"
	"miren.dev/runtime/controllers/kit"
	"miren.dev/runtime/pkg/schema"
)

// debug implements server.Debug.
type debug struct{ c *control }

// Controllers returns the controllers with their declarations, queues and last
// errors.
func (d *debug) Controllers(context.Context) (*server.ControllersResponse, error) {
	st := d.c.informers.Status()
	resp := &server.ControllersResponse{Revision: int64(st.Position.Revision), Synced: st.Synced, Interruptions: st.Interruptions}
	if !st.LastSeen.IsZero() {
		resp.LastSeen = &st.LastSeen
	}
	if st.Err != nil {
		resp.Error = st.Err.Error()
	}
	for _, k := range st.Kinds {
		resp.Informers = append(resp.Informers, server.InformerStatus{Kind: k.Kind, Entities: int64(k.Entities), Handlers: int64(k.Handlers)})
	}
	for _, i := range d.c.rt.Graph() {
		resp.Controllers = append(resp.Controllers, controllerStatus(&i))
	}
	return resp, nil
}

func controllerStatus(i *kit.Info) server.ControllerStatus {
	s := server.ControllerStatus{
		Name: i.Name, Controller: i.Controller, Watches: names(i.Watches), Reads: names(i.Reads), Creates: names(i.Creates), Deletes: names(i.Deletes),
		Workers: int64(i.Workers), Ready: int64(i.Queue.Ready), Delayed: int64(i.Queue.Delayed), Running: int64(i.Queue.Running),
		Retrying: int64(i.Queue.Retrying), Runs: i.Runs,
	}
	if i.Kind != nil {
		s.Kind = i.Kind.Name
	}
	for _, f := range i.Owns {
		s.Owns = append(s.Owns, f.String())
	}
	for _, sh := range i.Shares {
		s.Shares = append(s.Shares, server.SharedField{Field: sh.Field.String(), Owner: sh.Owner, Condition: sh.Why})
	}
	if i.Failure != nil {
		s.Failure = &server.RunFailure{Key: string(i.Failure.Key), Message: i.Failure.Err.Error(), At: i.Failure.At}
	}
	return s
}

func names(kinds []*schema.Kind) []string {
	var out []string
	for _, k := range kinds {
		out = append(out, k.Name)
	}
	return out
}
