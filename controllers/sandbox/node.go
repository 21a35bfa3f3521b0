package sandbox

import (
	"context"
	"errors"
	"time"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/domain/disks"
	"miren.dev/runtime/domain/sandboxes"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/egress"
	"miren.dev/runtime/pkg/sandboxfs"
)

// LocalNode serves the operations on sandboxes from the driver on this machine.
type LocalNode struct {
	Driver     execution.Driver
	FileDriver execution.FileDriver // the same, as far as files go
	// Store has the sandboxes, and Disks their volumes: for claims of sandboxes with
	// volumes.
	Store entity.Store
	Disks Disks
}

var _ sandboxes.Node = LocalNode{}

// Exec starts a process.
func (n LocalNode) Exec(ctx context.Context, sid id.Sandbox, spec sandboxes.ExecSpec) (sandboxes.Process, error) {
	kills, kerr := n.Driver.OOMKills(ctx, string(sid)) // Exec says what is wrong with the sandbox
	p, err := n.Driver.Exec(ctx, string(sid), execution.ExecSpec{
		Command: spec.Command, Env: spec.Env, WorkDir: spec.WorkDir, User: spec.User, TTY: spec.TTY, Rows: spec.Rows, Cols: spec.Cols,
		NoInput: spec.NoInput, Detached: spec.Detached, Tag: spec.Tag,
	})
	if err != nil {
		return nil, err
	}
	return &process{Process: p, driver: n.Driver, sid: string(sid), kills: kills, counted: kerr == nil}, nil
}

// Attach continues a detached process, with its output from some offsets on.
func (n LocalNode) Attach(ctx context.Context, sid id.Sandbox, name string, stdout, stderr int64) (sandboxes.Process, error) {
	p, err := n.Driver.Attach(ctx, string(sid), name, stdout, stderr)
	if err != nil {
		return nil, err
	}
	return &process{Process: p, driver: n.Driver, sid: string(sid)}, nil
}

// Processes lists the processes beside the main one.
func (n LocalNode) Processes(ctx context.Context, sid id.Sandbox) ([]sandbox.Process, error) {
	list, err := n.Driver.Processes(ctx, string(sid))
	var out []sandbox.Process
	for _, p := range list {
		x := sandbox.Process{ID: p.ID, PID: int64(p.PID), Command: p.Command, Tag: p.Tag, StartedAt: p.StartedAt, TTY: &p.TTY, Detached: &p.Detached}
		if p.Exit != nil {
			code := int64(p.Exit.Code)
			x.ExitCode = &code
		}
		out = append(out, x)
	}
	return out, err
}

// Ports lists the TCP ports on which processes listen.
func (n LocalNode) Ports(ctx context.Context, sid id.Sandbox) ([]int64, error) {
	list, err := n.Driver.Listening(ctx, string(sid))
	var out []int64
	for _, p := range list {
		out = append(out, int64(p.Port))
	}
	return out, err
}

// Dial connects to a TCP port.
func (n LocalNode) Dial(ctx context.Context, sid id.Sandbox, port int) (sandboxes.Conn, error) {
	return n.Driver.Dial(ctx, string(sid), port)
}

// Configure gives a warm sandbox to its claim: disks, identity, network.
func (n LocalNode) Configure(ctx context.Context, sid id.Sandbox, c sandboxes.Identity) error {
	if len(c.Volumes) == 0 {
		return configure(ctx, n.Driver, string(sid), c, nil)
	}
	sb, err := entity.Get[sandbox.Sandbox](ctx, n.Store, sid)
	if err != nil {
		return err
	}
	m, err := mounts(ctx, n.Disks, sb, c.Volumes)
	if err == nil {
		err = configure(ctx, n.Driver, string(sid), c, m)
	}
	if err != nil {
		// The sandbox is discarded, and the one in its place wants the disks.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
		defer cancel()
		err = errors.Join(err, n.Disks.Release(ctx, sid))
	}
	return err
}

// releaseTimeout bounds the release of the disks of a sandbox that could not be
// configured.
const releaseTimeout = 5 * time.Second

// mounts returns where the volumes of a claim are.
func mounts(ctx context.Context, d Disks, sb *sandbox.Sandbox, v []disks.Volume) ([]execution.Mount, error) {
	if len(v) == 0 {
		return nil, nil
	}
	return d.Mounts(ctx, sb, v)
}

func configure(ctx context.Context, d execution.Driver, sid string, c sandboxes.Identity, mounts []execution.Mount) error {
	err := d.Configure(ctx, sid, execution.Identity{
		Claim: c.Claim, Hostname: c.Hostname, Env: c.Env, WorkDir: c.WorkDir, User: c.User,
		CPUMillis: c.CPUMillis, MemoryBytes: c.MemoryBytes, PIDs: c.PIDs, Mounts: mounts,
	})
	if err != nil {
		return err
	}
	return d.SetEgress(ctx, sid, c.Egress)
}

// SetEgress changes a sandbox's network policy.
func (n LocalNode) SetEgress(ctx context.Context, sid id.Sandbox, p egress.Policy) error {
	return n.Driver.SetEgress(ctx, string(sid), p)
}

// EgressLog returns a sandbox's last requests and connections.
func (n LocalNode) EgressLog(ctx context.Context, sid id.Sandbox) ([]sandboxes.EgressRecord, error) {
	return n.Driver.EgressLog(ctx, string(sid))
}

// Logs calls emit with each line that q selects.
func (n LocalNode) Logs(ctx context.Context, sid id.Sandbox, q sandboxes.LogQuery, emit func(sandboxes.LogLine) error) error {
	return n.Driver.Logs(ctx, string(sid), execution.LogQuery(q), func(l execution.LogLine) error {
		return emit(sandboxes.LogLine{Offset: l.Offset, At: l.At, Stderr: l.Stream == "stderr", Text: l.Text, Missed: l.Missed})
	})
}

// Stats reads the resource use of a sandbox.
func (n LocalNode) Stats(ctx context.Context, sid id.Sandbox) (sandbox.Stats, error) {
	st, err := n.Driver.Stats(ctx, string(sid))
	out := sandbox.Stats{At: st.At, CPU: st.CPU, MemoryBytes: st.MemoryBytes, PIDs: st.PIDs}
	if n := st.Network; n != nil {
		out.ReceivedBytes, out.SentBytes = &n.Received, &n.Sent
	}
	return out, err
}

// Files returns the files of a sandbox.
func (n LocalNode) Files(sid id.Sandbox, v sandboxfs.View) sandboxfs.FS {
	return n.FileDriver.Files(string(sid), v)
}
