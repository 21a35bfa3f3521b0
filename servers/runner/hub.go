package runner

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"sync"
	"time"

	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/runner"
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
	// hostTime bounds the reading of the machines of all runners.
	hostTime = 5 * time.Second
)

// Hub has the connections of runners. It is safe for concurrent use.
type Hub struct {
	Logger *slog.Logger

	mu      sync.Mutex
	own     id.Node // of this server; empty: not known yet
	clients map[id.Node]*rpc.Client
	noted   map[id.Node]*rpc.Client // connections that the store has, or had
	told    func(id.Node)           // is called when a runner connects or is not connected any more; nil: nothing is
	began   time.Time               // runners have not connected before
	left    map[id.Node]time.Time   // when runners that are not connected were, if since began
	changed chan struct{}           // closed when a runner connects
}

// NewHub returns a Hub without runners.
func NewHub(log *slog.Logger) *Hub {
	return &Hub{Logger: log, clients: map[id.Node]*rpc.Client{}, noted: map[id.Node]*rpc.Client{}, began: time.Now(), left: map[id.Node]time.Time{}, changed: make(chan struct{})}
}

// SetNode says which node this server is.
func (h *Hub) SetNode(node id.Node) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.own = node
}

// Own returns the node that this server is, "" if it is not known yet.
func (h *Hub) Own() id.Node {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.own
}

// ofAnother reports whether a node, which is no runner, is that of another server.
func (h *Hub) ofAnother(node id.Node) bool {
	own := h.Own()
	return own != "" && node != own
}

// serve makes cl the connection of a runner until ended is closed or ctx ends. An
// earlier one is closed: it is that of a connection which has not timed out yet.
// It does not wait until they are closed: that takes until the calls of the runner
// that carry them have ended, with this function.
func (h *Hub) serve(ctx context.Context, node id.Node, cl *rpc.Client, ended <-chan struct{}) {
	h.mu.Lock()
	old := h.clients[node]
	h.clients[node] = cl
	delete(h.left, node)
	close(h.changed)
	h.changed = make(chan struct{})
	told := h.told
	h.mu.Unlock()
	if told != nil {
		told(node)
	}
	gone := errs.New(errs.Unavailable, "the connection of runner %s has ended", node)
	if old != nil {
		go old.CloseWith(gone)
	}
	h.Logger.Info("runner is connected", "node", string(node))
	select {
	case <-ended:
	case <-ctx.Done():
	}
	h.mu.Lock()
	if h.clients[node] == cl {
		delete(h.clients, node)
		delete(h.noted, node)
		h.left[node] = time.Now()
	}
	told = h.told
	h.mu.Unlock()
	if told != nil {
		told(node)
	}
	go cl.CloseWith(gone)
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
			return nil, notConnected(node)
		}
	}
}

func notConnected(node id.Node) error {
	return errs.New(errs.Unavailable, "runner %s is not connected to this server", node).
		WithHint("`r node list` shows since when; it connects again by itself once it reaches the server")
}

// Node returns the sandboxes of a runner, also those that were deleted.
func (h *Hub) Node(node id.Node) sandboxes.Node { return newRemoteNode(link{h, node}) }

// Connected reports whether a runner is connected.
func (h *Hub) Connected(node id.Node) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.clients[node] != nil
}

// Hosts returns what the machines of the connected runners use. One that does not answer
// in time, or is of an earlier version, is left out.
func (h *Hub) Hosts(ctx context.Context) map[id.Node]*runner.Host {
	h.mu.Lock()
	clients := maps.Clone(h.clients)
	h.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, hostTime)
	defer cancel()
	out := map[id.Node]*runner.Host{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for node, cl := range clients {
		wg.Go(func() {
			host, err := runner.NewNodeClient(cl).Host(ctx)
			if err != nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			out[node] = host
		})
	}
	wg.Wait()
	return out
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

// otherServer is a node of another server of the store, to which this one has no connection.
type otherServer struct {
	server *core.Node // of the other server
	runner *core.Node // the node, if it is a runner that is connected to that server; nil: it is that of the server
}

func (o otherServer) refuse() error {
	server := cmp.Or(o.server.Spec.Hostname, o.server.Name, string(o.server.ID))
	err := errs.New(errs.Unavailable, "the sandbox is on node %s of another server", server)
	if o.runner != nil {
		err = errs.New(errs.Unavailable, "the sandbox is on runner %s, which is connected to the server on %s", cmp.Or(o.runner.Name, string(o.runner.ID)), server)
	}
	return err.With(sandboxes.OnOtherServer, string(o.server.ID)).WithHint("ask the server on that machine: servers of one store do not call each other")
}

// Call implements rpc.Conn.
func (o otherServer) Call(context.Context, *rpc.MethodInfo, any, any) error { return o.refuse() }

// Open implements rpc.Conn.
func (o otherServer) Open(context.Context, *rpc.MethodInfo, any) (rpc.Stream, error) {
	return nil, o.refuse()
}

// Nodes is the sandboxes of this machine and of the runners. Calls for those of other servers fail
// with Unavailable: that a sandbox is not here does not say that there is none.
type Nodes struct {
	local     sandboxes.Node
	hub       *Hub
	set       *informer.Set
	sandboxes informer.Informer[sandbox.Sandbox, *sandbox.Sandbox]
	nodes     informer.Informer[core.Node, *core.Node]
}

var _ sandboxes.Node = (*Nodes)(nil)

// NewNodes returns the sandboxes of local and of the runners of hub. It must be
// called before set runs.
func NewNodes(local sandboxes.Node, hub *Hub, set *informer.Set) *Nodes {
	return &Nodes{local: local, hub: hub, set: set, sandboxes: informer.Of[sandbox.Sandbox](set), nodes: informer.Of[core.Node](set)}
}

// known returns the machine of a sandbox as far as the informers know it, this
// one for a sandbox that they do not know.
func (n *Nodes) known(sid id.Sandbox) (m sandboxes.Node, ok bool) {
	sb := n.sandboxes.Get(schema.ID(sid))
	if sb == nil {
		return n.local, false
	}
	if sb.Spec.Node == "" {
		return n.local, true
	}
	node := n.nodes.Get(schema.ID(sb.Spec.Node))
	if node == nil {
		return n.local, false
	}
	if other := n.other(node); other != nil {
		return newRemoteNode(*other), true
	}
	if node.Spec.Runner {
		return n.hub.Node(sb.Spec.Node), true
	}
	return n.local, true
}

// other returns the server that reaches a node in place of this one; nil: this one does, or none that is known.
func (n *Nodes) other(node *core.Node) *otherServer {
	if !node.Spec.Runner {
		if n.hub.ofAnother(node.GetID()) {
			return &otherServer{server: node}
		}
		return nil
	}
	if node.Spec.Server == "" || !n.hub.ofAnother(node.Spec.Server) || n.hub.Connected(node.GetID()) || node.Status.Phase != core.NodePhaseReady {
		return nil
	}
	server := n.nodes.Get(schema.ID(node.Spec.Server))
	if server == nil || server.Status.Phase != core.NodePhaseReady { // it was killed, and the runner is connected nowhere
		return nil
	}
	return &otherServer{server, node}
}

// Reach fails if calls for the sandboxes of a node do not arrive there. It waits for no runner.
func (n *Nodes) Reach(nid id.Node) error {
	node := n.nodes.Get(schema.ID(nid))
	if node == nil {
		return errs.New(errs.Unavailable, "this server does not know node %s yet", nid).WithHint("try again")
	}
	if other := n.other(node); other != nil {
		return other.refuse()
	}
	if node.Spec.Runner && !n.hub.Connected(nid) {
		return notConnected(nid)
	}
	return nil
}

// syncTime bounds how long a call waits for a server that has just begun.
const syncTime = 5 * time.Second

// do calls f with the machine of a sandbox. A server that has just begun learns
// first which sandboxes there are. Unavailable if it cannot.
func (n *Nodes) do(ctx context.Context, sid id.Sandbox, f func(sandboxes.Node) error) error {
	m, ok := n.known(sid)
	if !ok {
		bound, cancel := context.WithTimeout(ctx, syncTime)
		err := n.set.WaitSynced(bound)
		cancel()
		if err != nil && ctx.Err() == nil {
			return errs.New(errs.Unavailable, "the server has just begun, and has not read which sandboxes there are").WithHint("try again")
		}
		if err != nil {
			return err
		}
		m, _ = n.known(sid)
	}
	return f(m)
}

// Exec implements sandboxes.Node.
func (n *Nodes) Exec(ctx context.Context, sid id.Sandbox, s sandboxes.ExecSpec) (p sandboxes.Process, err error) {
	err = n.do(ctx, sid, func(m sandboxes.Node) error { p, err = m.Exec(ctx, sid, s); return err })
	return p, err
}

// Attach implements sandboxes.Node.
func (n *Nodes) Attach(ctx context.Context, sid id.Sandbox, process string, stdout, stderr int64) (p sandboxes.Process, err error) {
	err = n.do(ctx, sid, func(m sandboxes.Node) error { p, err = m.Attach(ctx, sid, process, stdout, stderr); return err })
	return p, err
}

// Configure implements sandboxes.Node.
func (n *Nodes) Configure(ctx context.Context, sid id.Sandbox, c sandboxes.Identity) error {
	return n.do(ctx, sid, func(m sandboxes.Node) error { return m.Configure(ctx, sid, c) })
}

// SetEgress implements sandboxes.Node.
func (n *Nodes) SetEgress(ctx context.Context, sid id.Sandbox, p egress.Policy) error {
	return n.do(ctx, sid, func(m sandboxes.Node) error { return m.SetEgress(ctx, sid, p) })
}

// EgressLog implements sandboxes.Node.
func (n *Nodes) EgressLog(ctx context.Context, sid id.Sandbox) (list []sandboxes.EgressRecord, err error) {
	err = n.do(ctx, sid, func(m sandboxes.Node) error { list, err = m.EgressLog(ctx, sid); return err })
	return list, err
}

// Logs implements sandboxes.Node.
func (n *Nodes) Logs(ctx context.Context, sid id.Sandbox, q sandboxes.LogQuery, emit func(sandboxes.LogLine) error) error {
	return n.do(ctx, sid, func(m sandboxes.Node) error { return m.Logs(ctx, sid, q, emit) })
}

// Stats implements sandboxes.Node.
func (n *Nodes) Stats(ctx context.Context, sid id.Sandbox) (st sandbox.Stats, err error) {
	err = n.do(ctx, sid, func(m sandboxes.Node) error { st, err = m.Stats(ctx, sid); return err })
	return st, err
}

// Processes implements sandboxes.Node.
func (n *Nodes) Processes(ctx context.Context, sid id.Sandbox) (list []sandbox.Process, err error) {
	err = n.do(ctx, sid, func(m sandboxes.Node) error { list, err = m.Processes(ctx, sid); return err })
	return list, err
}

// Ports implements sandboxes.Node.
func (n *Nodes) Ports(ctx context.Context, sid id.Sandbox) (ports []int64, err error) {
	err = n.do(ctx, sid, func(m sandboxes.Node) error { ports, err = m.Ports(ctx, sid); return err })
	return ports, err
}

// Files implements sandboxes.Node. Its caller has found the sandbox running.
func (n *Nodes) Files(sid id.Sandbox, v sandboxfs.View) sandboxfs.FS {
	m, _ := n.known(sid)
	return m.Files(sid, v)
}

// Dial implements sandboxes.Node.
func (n *Nodes) Dial(ctx context.Context, sid id.Sandbox, port int) (c sandboxes.Conn, err error) {
	err = n.do(ctx, sid, func(m sandboxes.Node) error { c, err = m.Dial(ctx, sid, port); return err })
	return c, err
}
