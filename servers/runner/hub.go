package runner

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/sandboxes"
	"miren.dev/runtime/entity/informer"
	"miren.dev/runtime/pkg/egress"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/pkg/sandboxfs"
	"miren.dev/runtime/pkg/schema"
)

const (
	// reconnectWait is how long calls wait for a runner from the moment on in which
	// it is not connected any more: one whose connection was cut is back within
	// that. Later ones fail at once.
	reconnectWait = 5 * time.Second
	// runnerAlive is Limits.KeepAlive of the connections of runners: a runner that
	// hangs fails its calls after three of it.
	runnerAlive = 5 * time.Second
)

// Hub has the connections of runners. It is safe for concurrent use.
type Hub struct {
	Logger *slog.Logger

	mu      sync.Mutex
	clients map[id.Node]*rpc.Client
	began   time.Time             // runners have not connected before
	left    map[id.Node]time.Time // when runners that are not connected were, if since began
	changed chan struct{}         // closed when a runner connects
}

// NewHub returns a Hub without runners.
func NewHub(log *slog.Logger) *Hub {
	return &Hub{Logger: log, clients: map[id.Node]*rpc.Client{}, began: time.Now(), left: map[id.Node]time.Time{}, changed: make(chan struct{})}
}

// serve makes cl the connection of a runner until ended is closed or ctx ends. An
// earlier one is closed: it is that of a connection which has not timed out yet.
func (h *Hub) serve(ctx context.Context, node id.Node, cl *rpc.Client, ended <-chan struct{}) {
	h.mu.Lock()
	old := h.clients[node]
	h.clients[node] = cl
	delete(h.left, node)
	close(h.changed)
	h.changed = make(chan struct{})
	h.mu.Unlock()
	gone := errs.New(errs.Unavailable, "the connection of runner %s has ended", node)
	if old != nil {
		old.CloseWith(gone)
	}
	h.Logger.Info("runner is connected", "node", string(node))
	select {
	case <-ended:
	case <-ctx.Done():
	}
	h.mu.Lock()
	if h.clients[node] == cl {
		delete(h.clients, node)
		h.left[node] = time.Now()
	}
	h.mu.Unlock()
	cl.CloseWith(gone)
	h.Logger.Info("runner is not connected any more", "node", string(node))
}

// client returns the connection of a runner, or waits a moment for one that was
// connected a moment ago.
func (h *Hub) client(ctx context.Context, node id.Node) (*rpc.Client, error) {
	h.mu.Lock()
	cl, since := h.clients[node], h.began
	if left, ok := h.left[node]; ok {
		since = left
	}
	h.mu.Unlock()
	if cl != nil {
		return cl, nil
	}
	wait := time.NewTimer(time.Until(since.Add(reconnectWait)))
	defer wait.Stop()
	for {
		h.mu.Lock()
		cl, changed := h.clients[node], h.changed
		h.mu.Unlock()
		if cl != nil {
			return cl, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, errs.New(errs.ClassOf(ctx.Err()), "wait for runner %s: %w", node, ctx.Err())
		case <-wait.C:
			return nil, errs.New(errs.Unavailable, "runner %s is not connected to this server", node).
				WithHint("`r node list` shows since when; it connects again by itself once it reaches the server")
		}
	}
}

// Connected reports whether a runner is connected.
func (h *Hub) Connected(node id.Node) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.clients[node] != nil
}

// link is the connection of a runner, whichever it is when a call is made.
type link struct {
	hub  *Hub
	node id.Node
}

// Call implements rpc.Conn.
func (l link) Call(ctx context.Context, m *rpc.MethodInfo, req, resp any) error {
	cl, err := l.hub.client(ctx, l.node)
	if err != nil {
		return err
	}
	return cl.Call(ctx, m, req, resp)
}

// Open implements rpc.Conn.
func (l link) Open(ctx context.Context, m *rpc.MethodInfo, req any) (rpc.Stream, error) {
	cl, err := l.hub.client(ctx, l.node)
	if err != nil {
		return nil, err
	}
	return cl.Open(ctx, m, req)
}

// Nodes is the sandboxes of this machine and of the runners.
type Nodes struct {
	local     sandboxes.Node
	hub       *Hub
	sandboxes informer.Informer[sandbox.Sandbox, *sandbox.Sandbox]
	nodes     informer.Informer[core.Node, *core.Node]
}

var _ sandboxes.Node = (*Nodes)(nil)

// NewNodes returns the sandboxes of local and of the runners of hub. It must be
// called before set runs.
func NewNodes(local sandboxes.Node, hub *Hub, set *informer.Set) *Nodes {
	return &Nodes{local: local, hub: hub, sandboxes: informer.Of[sandbox.Sandbox](set), nodes: informer.Of[core.Node](set)}
}

// of returns the machine of a sandbox.
func (n *Nodes) of(sid id.Sandbox) sandboxes.Node {
	sb := n.sandboxes.Get(schema.ID(sid))
	if sb == nil || sb.Spec.Node == "" {
		return n.local
	}
	node := n.nodes.Get(schema.ID(sb.Spec.Node))
	if node == nil || !node.Spec.Runner {
		return n.local
	}
	return newRemoteNode(link{n.hub, sb.Spec.Node})
}

// Exec implements sandboxes.Node.
func (n *Nodes) Exec(ctx context.Context, sid id.Sandbox, s sandboxes.ExecSpec) (sandboxes.Process, error) {
	return n.of(sid).Exec(ctx, sid, s)
}

// Attach implements sandboxes.Node.
func (n *Nodes) Attach(ctx context.Context, sid id.Sandbox, process string, stdout, stderr int64) (sandboxes.Process, error) {
	return n.of(sid).Attach(ctx, sid, process, stdout, stderr)
}

// Configure implements sandboxes.Node.
func (n *Nodes) Configure(ctx context.Context, sid id.Sandbox, c sandboxes.Identity) error {
	return n.of(sid).Configure(ctx, sid, c)
}

// SetEgress implements sandboxes.Node.
func (n *Nodes) SetEgress(ctx context.Context, sid id.Sandbox, p egress.Policy) error {
	return n.of(sid).SetEgress(ctx, sid, p)
}

// EgressLog implements sandboxes.Node.
func (n *Nodes) EgressLog(ctx context.Context, sid id.Sandbox) ([]sandboxes.EgressRecord, error) {
	return n.of(sid).EgressLog(ctx, sid)
}

// Logs implements sandboxes.Node.
func (n *Nodes) Logs(ctx context.Context, sid id.Sandbox, q sandboxes.LogQuery, emit func(sandboxes.LogLine) error) error {
	return n.of(sid).Logs(ctx, sid, q, emit)
}

// Stats implements sandboxes.Node.
func (n *Nodes) Stats(ctx context.Context, sid id.Sandbox) (sandbox.Stats, error) {
	return n.of(sid).Stats(ctx, sid)
}

// Processes implements sandboxes.Node.
func (n *Nodes) Processes(ctx context.Context, sid id.Sandbox) ([]sandbox.Process, error) {
	return n.of(sid).Processes(ctx, sid)
}

// Ports implements sandboxes.Node.
func (n *Nodes) Ports(ctx context.Context, sid id.Sandbox) ([]int64, error) {
	return n.of(sid).Ports(ctx, sid)
}

// Files implements sandboxes.Node.
func (n *Nodes) Files(sid id.Sandbox, v sandboxfs.View) sandboxfs.FS { return n.of(sid).Files(sid, v) }

// Dial implements sandboxes.Node.
func (n *Nodes) Dial(ctx context.Context, sid id.Sandbox, port int) (sandboxes.Conn, error) {
	return n.of(sid).Dial(ctx, sid, port)
}
