package runner

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/netip"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/runner"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/sandboxes"
	"miren.dev/runtime/pkg/egress"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/opt"
	"miren.dev/runtime/pkg/rpc"
	"miren.dev/runtime/pkg/sandboxfs"
)

// remoteNode is the sandboxes of a runner, called through its connection.
type remoteNode struct {
	node  runner.NodeClient
	files sandbox.FilesClient
}

var _ sandboxes.Node = (*remoteNode)(nil)

// NewNode returns the sandboxes of a machine that serves them at the other end of c.
func NewNode(c rpc.Conn) sandboxes.Node { return newRemoteNode(c) }

func newRemoteNode(c rpc.Conn) *remoteNode {
	return &remoteNode{runner.NewNodeClient(c), sandbox.NewFilesClient(c)}
}

// open makes a call with streams that continues when ctx ends, once begin has
// returned.
func open[In, Out any](ctx context.Context, call func(context.Context) (rpc.ClientStream[In, Out], error), begin func(rpc.ClientStream[In, Out]) error) (rpc.ClientStream[In, Out], context.CancelFunc, error) {
	cctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	st, err := call(cctx)
	if err == nil {
		err = begin(st)
	}
	if !stop() && err == nil {
		err = errs.New(errs.ClassOf(ctx.Err()), "call the runner: %w", ctx.Err())
	}
	if err != nil {
		cancel()
		return nil, nil, err
	}
	return st, cancel, nil
}

// Exec implements sandboxes.Node.
func (n *remoteNode) Exec(ctx context.Context, sid id.Sandbox, s sandboxes.ExecSpec) (sandboxes.Process, error) {
	req := &runner.ExecRequest{
		Sandbox: sid, Command: s.Command, Env: s.Env, Workdir: s.WorkDir, User: s.User, TTY: opt.Of(s.TTY), Rows: opt.Of(int64(s.Rows)),
		Cols: opt.Of(int64(s.Cols)), NoInput: opt.Of(s.NoInput), Detached: opt.Of(s.Detached), Tag: s.Tag,
	}
	return n.process(ctx, sid, s.Detached, func(ctx context.Context) (rpc.ClientStream[sandbox.ExecInput, sandbox.ExecOutput], error) {
		return n.node.Exec(ctx, req)
	})
}

// Attach implements sandboxes.Node.
func (n *remoteNode) Attach(ctx context.Context, sid id.Sandbox, process string, stdout, stderr int64) (sandboxes.Process, error) {
	req := &runner.ProcessRequest{Sandbox: sid, Process: process, StdoutOffset: opt.Of(stdout), StderrOffset: opt.Of(stderr)}
	return n.process(ctx, sid, true, func(ctx context.Context) (rpc.ClientStream[sandbox.ExecInput, sandbox.ExecOutput], error) {
		return n.node.Attach(ctx, req)
	})
}

func (n *remoteNode) process(ctx context.Context, sid id.Sandbox, detached bool, call func(context.Context) (rpc.ClientStream[sandbox.ExecInput, sandbox.ExecOutput], error)) (sandboxes.Process, error) {
	var started *sandbox.ExecOutput
	st, cancel, err := open(ctx, call, func(st rpc.ClientStream[sandbox.ExecInput, sandbox.ExecOutput]) (err error) {
		started, err = st.Recv()
		return cut(err)
	})
	if err != nil {
		return nil, err
	}
	return newProcess(n, sid, st, cancel, started, detached), nil
}

// cut returns the error of a stream that ended too early.
func cut(err error) error {
	if errors.Is(err, io.EOF) {
		return errs.New(errs.Unavailable, "the runner ended the call early")
	}
	return err
}

// Configure implements sandboxes.Node.
func (n *remoteNode) Configure(ctx context.Context, sid id.Sandbox, c sandboxes.Identity) error {
	p, err := json.Marshal(c.Egress)
	if err != nil {
		return errs.New(errs.Internal, "network policy: %w", err)
	}
	return n.node.Configure(ctx, &runner.ConfigureRequest{
		Sandbox: sid, Claim: c.Claim, Hostname: c.Hostname, Env: c.Env, Workdir: c.WorkDir, User: c.User,
		CPUMillis: opt.Of(c.CPUMillis), MemoryBytes: opt.Of(c.MemoryBytes), PIDs: opt.Of(c.PIDs), Policy: p,
	})
}

// SetEgress implements sandboxes.Node.
func (n *remoteNode) SetEgress(ctx context.Context, sid id.Sandbox, p egress.Policy) error {
	b, err := json.Marshal(p)
	if err != nil {
		return errs.New(errs.Internal, "network policy: %w", err)
	}
	return n.node.SetEgress(ctx, &runner.PolicyRequest{Sandbox: sid, Policy: b})
}

// EgressLog implements sandboxes.Node.
func (n *remoteNode) EgressLog(ctx context.Context, sid id.Sandbox) ([]sandboxes.EgressRecord, error) {
	resp, err := n.node.EgressLog(ctx, &runner.SandboxRequest{Sandbox: sid})
	if err != nil {
		return nil, err
	}
	var out []sandboxes.EgressRecord
	for _, r := range resp.Records {
		x := sandboxes.EgressRecord{
			Time: r.At, Sandbox: string(sid), Protocol: r.Protocol, Name: r.Name, Port: uint16(opt.Value(r.Port)), Allowed: r.Permitted, Reason: r.Why, Secret: r.Secret,
		}
		if r.Address != "" {
			if x.Address, err = netip.ParseAddr(r.Address); err != nil {
				return nil, errs.New(errs.Unavailable, "the runner's network log: %w", err)
			}
		}
		out = append(out, x)
	}
	return out, nil
}

// Logs implements sandboxes.Node.
func (n *remoteNode) Logs(ctx context.Context, sid id.Sandbox, q sandboxes.LogQuery, emit func(sandboxes.LogLine) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	st, err := n.node.Logs(ctx, &runner.LogsRequest{Sandbox: sid, Offset: opt.Of(q.Offset), Tail: opt.Of(int64(q.Tail)), Follow: opt.Of(q.Follow)})
	if err != nil {
		return err
	}
	for {
		b, err := st.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, l := range b.Lines {
			if err := emit(sandboxes.LogLine{Offset: opt.Value(l.Offset), At: l.At, Stderr: opt.Value(l.Stderr), Text: l.Text, Missed: opt.Value(l.Missed)}); err != nil {
				return err
			}
		}
	}
}

// Stats implements sandboxes.Node.
func (n *remoteNode) Stats(ctx context.Context, sid id.Sandbox) (sandbox.Stats, error) {
	st, err := n.node.Stats(ctx, &runner.SandboxRequest{Sandbox: sid})
	if err != nil {
		return sandbox.Stats{}, err
	}
	return *st, nil
}

// Processes implements sandboxes.Node.
func (n *remoteNode) Processes(ctx context.Context, sid id.Sandbox) ([]sandbox.Process, error) {
	resp, err := n.node.Processes(ctx, &runner.SandboxRequest{Sandbox: sid})
	if err != nil {
		return nil, err
	}
	return resp.Processes, nil
}

// Ports implements sandboxes.Node.
func (n *remoteNode) Ports(ctx context.Context, sid id.Sandbox) ([]int64, error) {
	resp, err := n.node.Ports(ctx, &runner.SandboxRequest{Sandbox: sid})
	if err != nil {
		return nil, err
	}
	return resp.Ports, nil
}

// Files implements sandboxes.Node. No caller limits a view to roots.
func (n *remoteNode) Files(sid id.Sandbox, v sandboxfs.View) sandboxfs.FS {
	return &files{c: n.files, sid: sid, user: v.User}
}

// Dial implements sandboxes.Node.
func (n *remoteNode) Dial(ctx context.Context, sid id.Sandbox, port int) (sandboxes.Conn, error) {
	return openConn(ctx, func(ctx context.Context) (rpc.ClientStream[rpc.Bytes, rpc.Bytes], error) {
		return n.node.Dial(ctx, &runner.DialRequest{Sandbox: sid, Port: int64(port)})
	})
}

// connect connects to a port at the address of a sandbox of an app.
func (n *remoteNode) connect(ctx context.Context, sid id.Sandbox, port uint16) (sandboxes.Conn, error) {
	return openConn(ctx, func(ctx context.Context) (rpc.ClientStream[rpc.Bytes, rpc.Bytes], error) {
		return n.node.Connect(ctx, &runner.DialRequest{Sandbox: sid, Port: int64(port)})
	})
}

// openConn makes a call that is a connection from its first byte on.
func openConn(ctx context.Context, call func(context.Context) (rpc.ClientStream[rpc.Bytes, rpc.Bytes], error)) (sandboxes.Conn, error) {
	st, cancel, err := open(ctx, call, func(st rpc.ClientStream[rpc.Bytes, rpc.Bytes]) error {
		_, err := io.ReadFull(st.Reader(), make([]byte, 1))
		return cut(err)
	})
	if err != nil {
		return nil, err
	}
	return &conn{st, cancel}, nil
}

// conn is a connection to a port of a sandbox.
type conn struct {
	st     rpc.ClientStream[rpc.Bytes, rpc.Bytes]
	cancel context.CancelFunc
}

func (c *conn) Read(p []byte) (int, error)  { return c.st.Reader().Read(p) }
func (c *conn) Write(p []byte) (int, error) { return c.st.Writer().Write(p) }
func (c *conn) CloseWrite() error           { return c.st.CloseSend() }

func (c *conn) Close() error {
	c.cancel()
	return c.st.Close()
}
