package rpcserver

import (
	"context"
	"encoding/json"
	"sync"

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

// RegisterNode makes s serve the sandboxes of this machine to the server whose
// runner it is, what host reads of the machine, and the addresses of sandboxes, to which connect
// connects; nil: not that.
func RegisterNode(s *rpc.Server, n sandboxes.Node, host func() (*runner.Host, error), connect ConnectFunc) {
	runner.RegisterNode(s, &runnerHandler{node: n, host: host, connect: connect})
	sandbox.RegisterFiles(s, &fileHandler{func(_ context.Context, sid id.Sandbox, user string) (sandboxfs.FS, error) {
		return n.Files(sid, sandboxfs.View{User: user}), nil
	}})
}

// ConnectFunc connects to a port at the address of a sandbox of an app.
type ConnectFunc func(ctx context.Context, sid id.Sandbox, port uint16) (sandboxes.Conn, error)

// runnerHandler serves runner.Node.
type runnerHandler struct {
	node      sandboxes.Node
	host      func() (*runner.Host, error)
	connect   ConnectFunc
	processes sync.Map // processKey to *sandboxes.Process, of the calls under way
}

type processKey struct {
	sandbox id.Sandbox
	process string
}

// attach copies the streams of a process, which Signal finds meanwhile.
func (h *runnerHandler) attach(ctx context.Context, sid id.Sandbox, p sandboxes.Process, st execStream, s streams) error {
	k := processKey{sid, p.ID()}
	h.processes.Store(k, &p)
	defer h.processes.CompareAndDelete(k, &p) // a later call may have the process
	return attach(ctx, &output{st: st}, sid, p, nil, s)
}

// Signal sends a signal to a process; no error if it has ended.
func (h *runnerHandler) Signal(ctx context.Context, req *runner.SignalRequest) error {
	p, ok := h.processes.Load(processKey{req.Sandbox, req.Process})
	if !ok {
		return nil
	}
	return (*p.(*sandboxes.Process)).Signal(ctx, int(req.Signal))
}

// Exec runs a process. An error says that there is none.
func (h *runnerHandler) Exec(ctx context.Context, req *runner.ExecRequest, st execStream) error {
	p, err := h.node.Exec(ctx, req.Sandbox, sandboxes.ExecSpec{
		Command: req.Command, Env: req.Env, WorkDir: req.Workdir, User: req.User, TTY: opt.Value(req.TTY), Rows: uint16(opt.Value(req.Rows)),
		Cols: uint16(opt.Value(req.Cols)), NoInput: opt.Value(req.NoInput), Detached: opt.Value(req.Detached), Tag: req.Tag,
	})
	if err != nil {
		return err
	}
	return h.attach(ctx, req.Sandbox, p, st, streams{
		stdin: !opt.Value(req.NoInput), tty: opt.Value(req.TTY), detached: opt.Value(req.Detached), keep: true, offsets: true,
	})
}

// Attach continues a detached process.
func (h *runnerHandler) Attach(ctx context.Context, req *runner.ProcessRequest, st execStream) error {
	p, err := h.node.Attach(ctx, req.Sandbox, req.Process, opt.Value(req.StdoutOffset), opt.Value(req.StderrOffset))
	if err != nil {
		return err
	}
	return h.attach(ctx, req.Sandbox, p, st, streams{stdin: true, detached: true, keep: true, offsets: true})
}

// CloseProcess ends a detached process, or forgets it.
func (h *runnerHandler) CloseProcess(ctx context.Context, req *runner.ProcessRequest) error {
	p, err := h.node.Attach(ctx, req.Sandbox, req.Process, 0, 0)
	if errs.Is(err, errs.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	return p.Close()
}

func policy(b []byte) (p egress.Policy, err error) {
	if err := json.Unmarshal(b, &p); err != nil {
		return p, errs.New(errs.InvalidArgument, "network policy: %w", err)
	}
	return p, nil
}

// Configure gives a warm sandbox to its claim.
func (h *runnerHandler) Configure(ctx context.Context, req *runner.ConfigureRequest) error {
	p, err := policy(req.Policy)
	if err != nil {
		return err
	}
	return h.node.Configure(ctx, req.Sandbox, sandboxes.Identity{
		Claim: req.Claim, Hostname: req.Hostname, Env: req.Env, WorkDir: req.Workdir, User: req.User,
		CPUMillis: opt.Value(req.CPUMillis), MemoryBytes: opt.Value(req.MemoryBytes), PIDs: opt.Value(req.PIDs), Egress: p,
	})
}

// SetEgress changes what a sandbox may reach.
func (h *runnerHandler) SetEgress(ctx context.Context, req *runner.PolicyRequest) error {
	p, err := policy(req.Policy)
	if err != nil {
		return err
	}
	return h.node.SetEgress(ctx, req.Sandbox, p)
}

// EgressLog lists what a sandbox asked for.
func (h *runnerHandler) EgressLog(ctx context.Context, req *runner.SandboxRequest) (*sandbox.EgressLogResponse, error) {
	records, err := h.node.EgressLog(ctx, req.Sandbox)
	if err != nil {
		return nil, err
	}
	return egressLogResponse(records), nil
}

// Logs sends output.
func (h *runnerHandler) Logs(ctx context.Context, req *runner.LogsRequest, st rpc.ServerStream[rpc.None, sandbox.LogBatch]) error {
	out := newLogSender(st)
	err := h.node.Logs(ctx, req.Sandbox, sandboxes.LogQuery{Offset: opt.Value(req.Offset), Tail: int(opt.Value(req.Tail)), Follow: opt.Value(req.Follow)},
		func(l sandboxes.LogLine) error {
			return out.add(sandbox.LogLine{At: l.At, Offset: opt.Of(l.Offset), Stderr: opt.Of(l.Stderr), Text: l.Text, Missed: opt.Of(l.Missed)})
		})
	if serr := out.close(); serr != nil && ctx.Err() == nil {
		return serr
	}
	return err
}

// Host reads what the machine uses.
func (h *runnerHandler) Host(context.Context) (*runner.Host, error) {
	if h.host == nil {
		return nil, errs.New(errs.FailedPrecondition, "this machine is not read")
	}
	return h.host()
}

// Stats reads what a sandbox uses.
func (h *runnerHandler) Stats(ctx context.Context, req *runner.SandboxRequest) (*sandbox.Stats, error) {
	st, err := h.node.Stats(ctx, req.Sandbox)
	return &st, err
}

// Processes lists processes.
func (h *runnerHandler) Processes(ctx context.Context, req *runner.SandboxRequest) (*sandbox.ProcessesResponse, error) {
	list, err := h.node.Processes(ctx, req.Sandbox)
	return &sandbox.ProcessesResponse{Processes: list}, err
}

// Ports lists ports.
func (h *runnerHandler) Ports(ctx context.Context, req *runner.SandboxRequest) (*sandbox.PortsResponse, error) {
	ports, err := h.node.Ports(ctx, req.Sandbox)
	return &sandbox.PortsResponse{Ports: ports}, err
}

// Dial connects to a port. The first byte, 0, says that it is connected.
func (h *runnerHandler) Dial(ctx context.Context, req *runner.DialRequest, st rpc.ServerStream[rpc.Bytes, rpc.Bytes]) error {
	c, err := h.node.Dial(ctx, req.Sandbox, int(req.Port))
	if err != nil {
		return err
	}
	return Connected(ctx, c, st)
}

// Connect connects to a port at the address of a sandbox. The first byte, 0, says that it is connected.
func (h *runnerHandler) Connect(ctx context.Context, req *runner.DialRequest, st rpc.ServerStream[rpc.Bytes, rpc.Bytes]) error {
	if h.connect == nil {
		return errs.New(errs.Unavailable, "this machine has no private networks")
	}
	c, err := h.connect(ctx, req.Sandbox, uint16(req.Port))
	if err != nil {
		return err
	}
	return Connected(ctx, c, st)
}
