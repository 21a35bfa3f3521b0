package runner

import (
	"bytes"
	"context"
	"encoding/json"
	"sync"
	"time"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/runner"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/domain/sandboxes"
	"miren.dev/runtime/pkg/appnet"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/rpc"
	rpcserver "miren.dev/runtime/servers/rpc"
)

const (
	// maxPeers bounds the connections from the sandboxes of a runner, and to them, so that they leave
	// room for other calls.
	maxPeers = 512
	// peerTime bounds the time until a connection is made.
	peerTime = 10 * time.Second
)

// Network is the private networks of apps on a machine.
type Network interface {
	SetApps(ctx context.Context, apps []appnet.App) error
	// Connect connects to a port at the address of a sandbox of an app on the machine.
	Connect(ctx context.Context, sandbox string, port uint16) (execution.Conn, error)
}

// Peers connects the sandboxes of apps on a server's machine and on its runners with each other. It
// decides by the server's table of the private networks, whatever a runner says. It is safe for
// concurrent use.
type Peers struct {
	hub     *Hub
	network Network // of the server's machine; nil: it has none

	mu      sync.Mutex
	table   *appnet.Table // nil: it is not known yet
	changed chan struct{} // closed when the table changes
	open    map[id.Node]int
}

// NewPeers returns Peers without a table. network is that of the server's machine; nil: it has none.
func NewPeers(hub *Hub, network Network) *Peers {
	return &Peers{hub: hub, network: network, changed: make(chan struct{}), open: map[id.Node]int{}}
}

// SetApps sets the table, for the server's machine, too. It holds for open connections.
func (p *Peers) SetApps(ctx context.Context, apps []appnet.App) error {
	p.mu.Lock()
	p.table = appnet.New(apps)
	close(p.changed)
	p.changed = make(chan struct{})
	p.mu.Unlock()
	if p.network == nil {
		return nil
	}
	return p.network.SetApps(ctx, apps)
}

// now returns the table, and a channel that SetApps closes with the next one.
func (p *Peers) now() (*appnet.Table, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.table, p.changed
}

// check fails unless a sandbox of a runner may connect to another one.
func check(t *appnet.Table, node id.Node, from, to string) error {
	if on, ok := t.Node(from); !ok || on != string(node) || !t.Permits(from, to) {
		return errs.New(errs.PermissionDenied, "sandbox %s of this runner may not connect to sandbox %s", from, to)
	}
	return nil
}

// permit returns a context that ends when a sandbox of a runner may not connect to another one any
// more. A server that has just begun reads the table first.
func (p *Peers) permit(ctx context.Context, node id.Node, from, to string) (context.Context, error) {
	late := time.NewTimer(syncTime)
	defer late.Stop()
	t, changed := p.now()
	for t == nil {
		select {
		case <-changed:
			t, changed = p.now()
		case <-late.C:
			return nil, errs.New(errs.Unavailable, "the server has just begun, and has not read the private networks of apps").WithHint("try again")
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if err := check(t, node, from, to); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		for {
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
			t, changed = p.now()
			if err := check(t, node, from, to); err != nil {
				cancel(err)
				return
			}
		}
	}()
	return ctx, nil
}

// take counts a connection of a runner until the returned function is called.
func (p *Peers) take(node id.Node) (end func(), _ error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open[node] >= maxPeers {
		return nil, errs.New(errs.ResourceExhausted, "%d connections of private networks lead from and to runner %s, which is the most", maxPeers, node)
	}
	p.open[node]++
	return sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.open[node]--; p.open[node] == 0 {
			delete(p.open, node)
		}
	}), nil
}

// Connect connects to a sandbox of the server's machine or of a runner. The caller has checked the
// permission.
func (p *Peers) Connect(ctx context.Context, sandbox string, port uint16) (sandboxes.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, peerTime)
	defer cancel()
	t, _ := p.now()
	node, ok := "", false
	if t != nil {
		node, ok = t.Node(sandbox)
	}
	switch {
	case !ok:
		return nil, errs.New(errs.NotFound, "no app has a sandbox %s", sandbox)
	case node == "" && p.network == nil:
		return nil, errs.New(errs.Unavailable, "this server has no private networks")
	case node == "":
		return p.network.Connect(ctx, sandbox, port)
	}
	end, err := p.take(id.Node(node))
	if err != nil {
		return nil, err
	}
	c, err := newRemoteNode(link{p.hub, id.Node(node)}).connect(ctx, id.Sandbox(sandbox), port)
	if err != nil {
		end()
		return nil, err
	}
	return &counted{c, end}, nil
}

// counted is a connection that counts until it is closed.
type counted struct {
	sandboxes.Conn
	end func()
}

// Close ends the connection.
func (c *counted) Close() error {
	defer c.end()
	return c.Conn.Close()
}

// Apps implements runner.Gateway.
func (g *Gateway) Apps(ctx context.Context, st rpc.ServerStream[rpc.None, runner.AppTable]) error {
	node := caller(ctx)
	var sent []byte
	for {
		t, changed := g.cfg.Peers.now()
		if t != nil {
			b, err := json.Marshal(t.For(string(node), string(g.cfg.Hub.Own())))
			if err != nil {
				return errs.New(errs.Internal, "private networks: %w", err)
			}
			if !bytes.Equal(b, sent) {
				if err := st.Send(&runner.AppTable{Apps: b}); err != nil {
					return err
				}
				sent = b
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Peer implements runner.Gateway.
func (g *Gateway) Peer(ctx context.Context, req *runner.PeerRequest, st rpc.ServerStream[rpc.Bytes, rpc.Bytes]) error {
	p, node := g.cfg.Peers, caller(ctx)
	end, err := p.take(node)
	if err != nil {
		return err
	}
	defer end()
	ctx, err = p.permit(ctx, node, string(req.From), string(req.To))
	if err != nil {
		return err
	}
	c, err := p.Connect(ctx, string(req.To), uint16(req.Port))
	if err != nil {
		return err
	}
	err = rpcserver.Connected(ctx, c, st)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// followApps gives each table that the server sends to the machine's network, until ctx ends. While
// the machine does not reach the server, the network keeps the last table.
func (c *Client) followApps(ctx context.Context, n Network) error {
	for logged := ""; ; {
		err := c.receiveApps(ctx, n)
		if ctx.Err() != nil {
			return nil
		}
		if why := err.Error(); !errs.Is(err, errs.Unavailable) && why != logged { // Run logs that the server is away
			c.logger.Warn("the private networks of apps stay as they were", "error", err)
			logged = why
		}
		if !pause(ctx, keyWait) {
			return nil
		}
	}
}

func (c *Client) receiveApps(ctx context.Context, n Network) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	st, err := c.gateway.Apps(ctx)
	if err != nil {
		return err
	}
	for {
		table, err := st.Recv()
		if err != nil {
			return cut(err)
		}
		var apps []appnet.App
		if err := json.Unmarshal(table.Apps, &apps); err != nil {
			return errs.New(errs.Unavailable, "the server's table of private networks: %w", err)
		}
		if err := n.SetApps(ctx, apps); err != nil {
			return err
		}
	}
}

// Peer connects a sandbox of this machine to one elsewhere, through the server.
func (c *Client) Peer(ctx context.Context, from, to string, port uint16) (sandboxes.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, peerTime)
	defer cancel()
	select {
	case c.peers <- struct{}{}:
	default:
		return nil, errs.New(errs.ResourceExhausted, "%d connections lead to sandboxes elsewhere, which is the most", maxPeers)
	}
	end := sync.OnceFunc(func() { <-c.peers })
	conn, err := openConn(ctx, func(ctx context.Context) (rpc.ClientStream[rpc.Bytes, rpc.Bytes], error) {
		return c.gateway.Peer(ctx, &runner.PeerRequest{From: id.Sandbox(from), To: id.Sandbox(to), Port: int64(port)})
	})
	if err != nil {
		end()
		return nil, err
	}
	return &counted{conn, end}, nil
}
