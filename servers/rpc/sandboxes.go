package rpcserver

import (
	"context"
	"io"

	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/sandboxes"
	"miren.dev/runtime/pkg/opt"
	"miren.dev/runtime/pkg/rpc"
)

// sandboxHandler serves sandbox.Sandboxes.
type sandboxHandler struct{ sandboxes *sandboxes.Service }

func (h *sandboxHandler) Run(ctx context.Context, req *sandbox.RunRequest) (*sandbox.SandboxResponse, error) {
	sb, err := h.sandboxes.Create(ctx, req.Project, createRequest(ctx, req))
	if err == nil {
		rpc.SetSubjects(ctx, rpc.Subject{Kind: sandbox.KindSandbox, ID: string(sb.ID)})
	}
	return sandboxResponse(sb, err)
}

func createRequest(ctx context.Context, req *sandbox.RunRequest) sandboxes.CreateRequest {
	var volumes []sandboxes.Volume
	for _, v := range req.Volumes {
		volumes = append(volumes, sandboxes.Volume{Disk: v.Disk, Path: v.Path, ReadOnly: opt.Value(v.ReadOnly)})
	}
	return sandboxes.CreateRequest{
		Name: req.Name, Labels: req.Labels, Image: req.Image, Idle: opt.Value(req.Idle), Template: req.Template, Agent: req.Agent, App: req.App, Service: req.Service, Command: req.Command,
		Workdir: req.Workdir, User: req.User, Env: req.Env, EnvSecret: req.EnvSecret, CPUMillis: opt.Value(req.CPUMillis),
		MemoryBytes: opt.Value(req.MemoryBytes), PIDs: opt.Value(req.PIDs), DiskBytes: opt.Value(req.DiskBytes), Network: req.Network,
		DiskFiles: opt.Value(req.DiskFiles), OpenFiles: opt.Value(req.OpenFiles), FileBytes: opt.Value(req.FileBytes), Bandwidth: opt.Value(req.BandwidthBytes),
		TTL: opt.Value(req.TTL), ResumeTTL: opt.Value(req.ResumeTTL), StopTimeout: req.StopTimeout, IdleTimeout: opt.Value(req.IdleTimeout), OnIdle: req.OnIdle,
		Egress: req.Egress, Volumes: volumes, APIKey: callerKey(ctx),
	}
}

func sandboxResponse(sb *sandbox.Sandbox, err error) (*sandbox.SandboxResponse, error) {
	if err != nil {
		return nil, err
	}
	rec, err := record(sb)
	return &sandbox.SandboxResponse{Sandbox: rec}, err
}

func (h *sandboxHandler) Wait(ctx context.Context, req *sandbox.WaitRequest) (*sandbox.SandboxResponse, error) {
	return sandboxResponse(h.sandboxes.Wait(ctx, req.Sandbox, req.Until))
}

func (h *sandboxHandler) Stop(ctx context.Context, req *sandbox.StopRequest) (*sandbox.SandboxResponse, error) {
	sb, err := h.sandboxes.Stop(ctx, req.Sandbox)
	if err != nil || !opt.Value(req.Wait) {
		return sandboxResponse(sb, err)
	}
	return sandboxResponse(h.sandboxes.Wait(ctx, req.Sandbox, sandbox.WaitUntilEnded))
}

func (h *sandboxHandler) Delete(ctx context.Context, req *sandbox.SandboxRequest) error {
	return h.sandboxes.Delete(ctx, req.Sandbox)
}

func (h *sandboxHandler) Stats(ctx context.Context, req *sandbox.SandboxRequest) (*sandbox.Stats, error) {
	return h.sandboxes.Stats(ctx, req.Sandbox)
}

// Processes lists the processes of a sandbox beside the main one.
func (h *sandboxHandler) Processes(ctx context.Context, req *sandbox.SandboxRequest) (*sandbox.ProcessesResponse, error) {
	list, err := h.sandboxes.Processes(ctx, req.Sandbox)
	return &sandbox.ProcessesResponse{Processes: list}, err
}

// Ports lists the ports on which processes of a sandbox listen.
func (h *sandboxHandler) Ports(ctx context.Context, req *sandbox.SandboxRequest) (*sandbox.PortsResponse, error) {
	ports, err := h.sandboxes.Ports(ctx, req.Sandbox)
	return &sandbox.PortsResponse{Ports: ports}, err
}

// Dial connects the streams of the call with a port of a sandbox, until the
// process there has ended its side.
func (h *sandboxHandler) Dial(ctx context.Context, req *sandbox.DialRequest, st rpc.ServerStream[rpc.Bytes, rpc.Bytes]) error {
	c, err := h.sandboxes.Dial(ctx, req.Sandbox, int(req.Port))
	if err != nil {
		return err
	}
	return connect(ctx, c, st)
}

// DialService connects the streams of the call with a port of a service, after a byte 0.
func (h *sandboxHandler) DialService(ctx context.Context, req *sandbox.DialRequest, st rpc.ServerStream[rpc.Bytes, rpc.Bytes]) error {
	c, err := h.sandboxes.DialService(ctx, req.Sandbox, int(req.Port))
	if err != nil {
		return err
	}
	return Connected(ctx, c, st)
}

// Connected connects the streams of a call with a port of a sandbox, until the process there has
// ended its side. Before, it sends a byte 0, which says that there is a connection.
func Connected(ctx context.Context, c sandboxes.Conn, st rpc.ServerStream[rpc.Bytes, rpc.Bytes]) error {
	if _, err := st.Writer().Write([]byte{0}); err != nil {
		c.Close()
		return err
	}
	return connect(ctx, c, st)
}

// connect connects the streams of a call with a port of a sandbox, until the
// process there has ended its side.
func connect(ctx context.Context, c sandboxes.Conn, st rpc.ServerStream[rpc.Bytes, rpc.Bytes]) error {
	defer closing(ctx, c)()
	// This goroutine ends with the call, which alone makes a read of its stream return.
	go func() {
		if _, err := io.Copy(c, st.Reader()); err == nil {
			_ = c.CloseWrite() // a connection that is lost shows in the read below
		}
	}()
	_, err := io.Copy(st.Writer(), c)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// Logs sends the output of a sandbox, or of all sandboxes of an app.
func (h *sandboxHandler) Logs(ctx context.Context, req *sandbox.LogsRequest, st rpc.ServerStream[rpc.None, sandbox.LogBatch]) error {
	out := newLogSender(st)
	err := h.sandboxes.Logs(ctx, sandboxes.LogsRequest{
		Sandbox: req.Sandbox, Offset: opt.Value(req.Offset), Project: req.Project, App: req.App, Service: req.Service, Tail: req.Tail,
		Follow: opt.Value(req.Follow), Since: opt.Value(req.Since), Until: opt.Value(req.Until), Grep: req.Grep, Level: req.Level, Limit: int(opt.Value(req.Limit)),
	}, out.add)
	if serr := out.close(); serr != nil && ctx.Err() == nil {
		return serr
	}
	return err
}

// Pause saves a sandbox and ends its processes.
func (h *sandboxHandler) Pause(ctx context.Context, req *sandbox.PauseRequest) (*sandbox.SandboxResponse, error) {
	sb, err := h.sandboxes.Pause(ctx, req.Sandbox)
	if err != nil || !opt.Value(req.Wait) {
		return sandboxResponse(sb, err)
	}
	return sandboxResponse(h.sandboxes.Wait(ctx, req.Sandbox, sandbox.WaitUntilPaused))
}

// Resume continues a paused sandbox.
func (h *sandboxHandler) Resume(ctx context.Context, req *sandbox.PauseRequest) (*sandbox.SandboxResponse, error) {
	sb, err := h.sandboxes.Resume(ctx, req.Sandbox)
	if err != nil || !opt.Value(req.Wait) {
		return sandboxResponse(sb, err)
	}
	return sandboxResponse(h.sandboxes.Wait(ctx, req.Sandbox, sandbox.WaitUntilRunning))
}

// Snapshot takes a snapshot of a sandbox.
func (h *sandboxHandler) Snapshot(ctx context.Context, req *sandbox.SnapshotRequest) (*sandbox.SnapshotResponse, error) {
	if err := mayName(ctx, h.sandboxes.Disks, req.Store); err != nil {
		return nil, err
	}
	s, err := h.sandboxes.Snapshot(ctx, req.Sandbox, req.Name, req.Labels, req.Store)
	if err != nil {
		return nil, err
	}
	rec, err := record(s)
	return &sandbox.SnapshotResponse{Snapshot: rec}, err
}

// DeleteSnapshot deletes a snapshot.
func (h *sandboxHandler) DeleteSnapshot(ctx context.Context, req *sandbox.DeleteSnapshotRequest) error {
	return h.sandboxes.DeleteSnapshot(ctx, req.Snapshot)
}

// Fork makes sandboxes from a sandbox or a snapshot.
func (h *sandboxHandler) Fork(ctx context.Context, req *sandbox.ForkRequest) (*sandbox.ForkResponse, error) {
	forks, err := h.sandboxes.Fork(ctx, sandboxes.ForkRequest{
		Sandbox: req.Sandbox, Snapshot: req.Snapshot, Count: int(opt.Value(req.Count)), Labels: req.Labels, Env: req.Env, TTL: opt.Value(req.TTL),
		ResumeTTL: opt.Value(req.ResumeTTL), IdleTimeout: opt.Value(req.IdleTimeout), OnIdle: req.OnIdle,
		APIKey: callerKey(ctx),
	})
	if err != nil {
		return nil, err
	}
	records, err := recordsOf(forks)
	return &sandbox.ForkResponse{Sandboxes: records}, err
}

// CheckExec is for those who may work in the sandbox, and so does nothing.
func (h *sandboxHandler) CheckExec(context.Context, *sandbox.SandboxRequest) error { return nil }

// Extend changes the end of a sandbox.
func (h *sandboxHandler) Extend(ctx context.Context, req *sandbox.ExtendRequest) (*sandbox.SandboxResponse, error) {
	return sandboxResponse(h.sandboxes.Extend(ctx, req.Sandbox, opt.Value(req.TTL)))
}

// SetIdle changes the idle time of a sandbox.
func (h *sandboxHandler) SetIdle(ctx context.Context, req *sandbox.IdleRequest) (*sandbox.SandboxResponse, error) {
	return sandboxResponse(h.sandboxes.SetIdle(ctx, req.Sandbox, opt.Value(req.IdleTimeout), req.OnIdle))
}

// SetEgress changes a sandbox's network policy.
func (h *sandboxHandler) SetEgress(ctx context.Context, req *sandbox.EgressRequest) (*sandbox.SandboxResponse, error) {
	return sandboxResponse(h.sandboxes.SetEgress(ctx, req.Sandbox, req.Egress))
}

// EgressLog lists a sandbox's requests and connections.
func (h *sandboxHandler) EgressLog(ctx context.Context, req *sandbox.SandboxRequest) (*sandbox.EgressLogResponse, error) {
	records, err := h.sandboxes.EgressLog(ctx, req.Sandbox)
	if err != nil {
		return nil, err
	}
	return egressLogResponse(records), nil
}

func egressLogResponse(records []sandboxes.EgressRecord) *sandbox.EgressLogResponse {
	resp := &sandbox.EgressLogResponse{}
	for _, r := range records {
		out := sandbox.EgressRecord{At: r.Time, Protocol: r.Protocol, Name: r.Name, Permitted: r.Allowed, Why: r.Reason, Secret: r.Secret, Port: opt.Of(int64(r.Port))}
		if r.Address.IsValid() {
			out.Address = r.Address.String()
		}
		resp.Records = append(resp.Records, out)
	}
	return resp
}
