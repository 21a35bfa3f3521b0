package runner

import (
	"context"
	"time"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/controllers/kit"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/pkg/schema"
)

// Connections records which runners are connected to this server, for the other servers of the store. A server that is
// killed leaves its records; it corrects them when it is back, and until then its own node is down.
type Connections struct {
	Store entity.Store
	Hub   *Hub
	Node  id.Node // of this server
}

// Controller describes it to the controller runtime.
func (c *Connections) Controller() kit.Controller {
	return kit.Controller{
		Name: "runner-connection", Kind: core.NodeKind, Reconcile: c.Reconcile,
		Filter: func(o schema.Object) bool {
			n, ok := o.(*core.Node)
			return ok && n.Spec.Runner
		},
		Watches: []kit.Source{kit.Func(c.Hub.follow)},
		Access:  kit.Access{Owns: kit.Fields(core.NodeKind, "spec.server")},
	}
}

// Reconcile records whether one runner is connected.
func (c *Connections) Reconcile(ctx context.Context, nid schema.ID) (time.Duration, error) {
	n, err := entity.Get[core.Node](ctx, c.Store, id.Node(nid))
	if errs.Is(err, errs.NotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	cl, noted := c.Hub.connection(n.GetID())
	server := n.Spec.Server
	switch {
	case cl == nil && server == c.Node:
		server = ""
	// This server may not know yet that the connection has ended, and the runner may have another one elsewhere: a
	// connection replaces the record once.
	case cl != nil && (!noted || server == ""):
		server = c.Node
	}
	if server != n.Spec.Server {
		n.Spec.Server = server
		if err := entity.UpdateSpec(ctx, c.Store, n); err != nil {
			return 0, err
		}
	}
	c.Hub.note(n.GetID(), cl)
	return 0, nil
}

// follow calls add for each runner that connects, or is not connected any more, until ctx ends.
func (h *Hub) follow(ctx context.Context, add func(schema.ID)) {
	set := func(told func(id.Node)) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.told = told
	}
	set(func(node id.Node) { add(schema.ID(node)) })
	<-ctx.Done()
	set(nil)
}

// connection returns the connection of a runner, nil for none, and whether the store had it.
func (h *Hub) connection(node id.Node) (cl *rpc.Client, noted bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	cl = h.clients[node]
	return cl, cl != nil && h.noted[node] == cl
}

// note remembers that the store has a connection of a runner.
func (h *Hub) note(node id.Node, cl *rpc.Client) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if cl != nil && h.clients[node] == cl {
		h.noted[node] = cl
	}
}
