package rpcserver

import (
	"context"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/server"
	"miren.dev/runtime/domain/nodes"
)

type nodeHandler struct{ nodes *nodes.Service }

// Nodes serves server.Nodes.
func Nodes(s *nodes.Service) server.Nodes { return &nodeHandler{s} }

func (h *nodeHandler) Summary(ctx context.Context) (*server.NodesSummary, error) {
	s, err := h.nodes.Summary(ctx)
	if err != nil {
		return nil, err
	}
	return &server.NodesSummary{Nodes: s.Nodes, Ready: s.Ready, Cordoned: s.Cordoned, Full: s.Full}, nil
}

func (h *nodeHandler) List(ctx context.Context) (*server.NodesResponse, error) {
	list, err := h.nodes.List(ctx)
	if err != nil {
		return nil, err
	}
	resp := new(server.NodesResponse)
	for _, n := range list {
		rec, err := record(n.Node)
		if err != nil {
			return nil, err
		}
		resp.Nodes = append(resp.Nodes, server.NodeState{Node: rec, Sandboxes: n.Sandboxes, CPUMillis: n.CPUMillis, MemoryBytes: n.MemoryBytes})
	}
	return resp, nil
}

func (h *nodeHandler) Cordon(ctx context.Context, req *server.NodeRequest) (*server.NodeResponse, error) {
	return nodeResponse(h.nodes.Cordon(ctx, req.Node))
}

func (h *nodeHandler) Uncordon(ctx context.Context, req *server.NodeRequest) (*server.NodeResponse, error) {
	return nodeResponse(h.nodes.Uncordon(ctx, req.Node))
}

func (h *nodeHandler) Drain(ctx context.Context, req *server.NodeRequest) (*server.DrainResponse, error) {
	n, left, err := h.nodes.Drain(ctx, req.Node)
	if err != nil {
		return nil, err
	}
	rec, err := record(n)
	return &server.DrainResponse{Node: rec, Sandboxes: int64(left)}, err
}

func nodeResponse(n *core.Node, err error) (*server.NodeResponse, error) {
	if err != nil {
		return nil, err
	}
	rec, err := record(n)
	return &server.NodeResponse{Node: rec}, err
}
