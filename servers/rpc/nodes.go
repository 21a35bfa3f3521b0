package rpcserver

import (
	"context"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/server"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
)

// nodes serves server.Nodes.
type nodes struct{ Deps }

func (s *nodes) Cordon(ctx context.Context, req *server.NodeRequest) (*server.NodeResponse, error) {
	return s.set(ctx, req.Node, true)
}

func (s *nodes) Uncordon(ctx context.Context, req *server.NodeRequest) (*server.NodeResponse, error) {
	return s.set(ctx, req.Node, false)
}

func (s *nodes) set(ctx context.Context, name string, cordoned bool) (*server.NodeResponse, error) {
	n, err := entity.ByName[core.Node](ctx, s.Store, "", name)
	if errs.Is(err, errs.NotFound) {
		n, err = entity.Get[core.Node](ctx, s.Store, id.Node(name))
	}
	if err != nil {
		return nil, err
	}
	n, err = entity.ModifySpec(ctx, s.Store, n.GetID(), func(n *core.Node) error {
		n.Spec.Cordoned = cordoned
		return nil
	})
	if err != nil {
		return nil, err
	}
	rec, err := record(n)
	return &server.NodeResponse{Node: rec}, err
}
