package rest

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/metric"
	"miren.dev/runtime/api/server"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
)

// NodeSummary is how many nodes the installation has. It does not say which: they
// belong to no project.
type NodeSummary struct {
	Nodes    int64 `json:"nodes" doc:"Number of nodes."`
	Ready    int64 `json:"ready" doc:"Those that are alive."`
	Cordoned int64 `json:"cordoned" doc:"Those on which an administrator lets no new sandboxes be placed."`
	Full     int64 `json:"full" doc:"Those on which none are placed because their disk is nearly full."`
}

// Node is a machine that runs sandboxes.
type Node struct {
	ID            string     `json:"id" doc:"Id of the node." example:"node-4k2j7q"`
	Name          string     `json:"name" doc:"Name of the node."`
	State         string     `json:"state" enum:"ready,down,unknown" doc:"Whether it is alive."`
	Cordoned      bool       `json:"cordoned" doc:"An administrator lets no new sandboxes be placed on it."`
	DiskFull      bool       `json:"disk_full" doc:"None are placed on it because its disk is nearly full."`
	Runner        bool       `json:"runner" doc:"It dials out to the server (r runner)."`
	Arch          string     `json:"arch" doc:"Architecture of its CPU." example:"amd64"`
	Hostname      string     `json:"hostname,omitempty" doc:"Name of the machine."`
	Version       string     `json:"version,omitempty" doc:"Version of runtime on it."`
	Message       string     `json:"message,omitempty" doc:"Reason why it is not ready."`
	CPUMillis     int64      `json:"cpu_millis" doc:"CPU that sandboxes may reserve, in thousandths."`
	MemoryBytes   int64      `json:"memory_bytes" doc:"Memory that sandboxes may reserve."`
	Sandboxes     int64      `json:"sandboxes" doc:"Sandboxes on it that have not ended."`
	CPUReserved   int64      `json:"reserved_cpu_millis" doc:"CPU that they reserve, in thousandths."`
	MemReserved   int64      `json:"reserved_memory_bytes" doc:"Memory that they reserve."`
	DiskFreeBytes *int64     `json:"disk_free_bytes,omitempty" doc:"Free space of its state directory when that was last reported."`
	LastSeen      *time.Time `json:"last_seen,omitempty" doc:"Time of its last report."`
	CreatedAt     time.Time  `json:"created_at" doc:"Time of its creation."`
}

// NodeList is the nodes of the installation.
type NodeList struct {
	Nodes []Node `json:"nodes" doc:"Nodes by name."`
}

// NodeInput names a node.
type NodeInput struct {
	Node string `path:"node" maxLength:"63" pattern:"^[A-Za-z0-9][A-Za-z0-9._-]*$" doc:"Name or id of the node."`
}

type nodeMetricsInput struct {
	NodeInput
	MetricRange
}

func registerNodes(a huma.API) {
	const only = ", which only keys with roles in all projects may"
	register(a, op(http.MethodGet, "/nodes", "list-nodes", "nodes", "List the nodes"+only), listNodes)
	register(a, op(http.MethodGet, "/nodes/{node}", "get-node", "nodes", "Get a node"+only), getNode)
	register(a, op(http.MethodGet, "/nodes/{node}/metrics", "get-node-metrics", "nodes", "Read the history of what the machine of a node used"+only), nodeMetrics)
	register(a, op(http.MethodGet, "/nodes/summary", "summarize-nodes", "nodes", "Get how many nodes there are and how many are ready"), summarizeNodes)
}

func nodesOf(ctx context.Context) ([]Node, error) {
	resp, err := server.NewNodesClient(callerFrom(ctx).Client).List(ctx)
	if err != nil {
		return nil, err
	}
	list := make([]Node, 0, len(resp.Nodes))
	for i := range resp.Nodes {
		x := &resp.Nodes[i]
		n, err := entity.Decode[core.Node](&x.Node)
		if err != nil {
			return nil, err
		}
		sp, st := &n.Spec, &n.Status
		list = append(list, Node{
			ID: string(n.ID), Name: n.Name, State: string(st.Phase), Cordoned: sp.Cordoned, DiskFull: st.DiskFull, Runner: sp.Runner, Arch: sp.Arch,
			Hostname: sp.Hostname, Version: st.Version, Message: st.Message, CPUMillis: sp.CPUMillis, MemoryBytes: sp.MemoryBytes, Sandboxes: x.Sandboxes,
			CPUReserved: x.CPUMillis, MemReserved: x.MemoryBytes, DiskFreeBytes: st.DiskFreeBytes, LastSeen: st.LastSeen, CreatedAt: n.CreatedAt,
		})
	}
	return list, nil
}

func listNodes(ctx context.Context, _ *struct{}) (*body[NodeList], error) {
	list, err := nodesOf(ctx)
	if err != nil {
		return nil, err
	}
	return &body[NodeList]{NodeList{list}}, nil
}

func getNode(ctx context.Context, in *NodeInput) (*body[Node], error) {
	list, err := nodesOf(ctx)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(list, func(n Node) bool { return n.Name == in.Node || n.ID == in.Node })
	if i < 0 {
		return nil, errs.New(errs.NotFound, "there is no node %q", in.Node).WithHint("GET /nodes lists them")
	}
	return &body[Node]{list[i]}, nil
}

func nodeMetrics(ctx context.Context, in *nodeMetricsInput) (*body[MetricHistory], error) {
	return metricHistory(metric.NewMetricsClient(callerFrom(ctx).Client).Node(ctx, &metric.NodeRequest{Node: in.Node, Range: in.rpc()}))
}

func summarizeNodes(ctx context.Context, _ *struct{}) (*body[NodeSummary], error) {
	s, err := server.NewNodesClient(callerFrom(ctx).Client).Summary(ctx)
	if err != nil {
		return nil, err
	}
	return &body[NodeSummary]{NodeSummary{s.Nodes, s.Ready, s.Cordoned, s.Full}}, nil
}
