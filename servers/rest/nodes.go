package rest

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"miren.dev/runtime/api/server"
)

// NodeSummary is how many nodes the installation has. It does not say which: they
// belong to no project.
type NodeSummary struct {
	Nodes    int64 `json:"nodes" doc:"Number of nodes."`
	Ready    int64 `json:"ready" doc:"Those that are alive."`
	Cordoned int64 `json:"cordoned" doc:"Those on which an administrator lets no new sandboxes be placed."`
	Full     int64 `json:"full" doc:"Those on which none are placed because their disk is nearly full."`
}

func registerNodes(a huma.API) {
	register(a, op(http.MethodGet, "/nodes/summary", "summarize-nodes", "nodes", "Get how many nodes there are and how many are ready"), summarizeNodes)
}

func summarizeNodes(ctx context.Context, _ *struct{}) (*body[NodeSummary], error) {
	s, err := server.NewNodesClient(callerFrom(ctx).Client).Summary(ctx)
	if err != nil {
		return nil, err
	}
	return &body[NodeSummary]{NodeSummary{s.Nodes, s.Ready, s.Cordoned, s.Full}}, nil
}
