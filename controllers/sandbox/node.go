package sandbox

import (
	"context"

	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/domain/sandboxes"
)

// LocalNode serves the operations on sandboxes from the driver on this machine.
type LocalNode struct{ Driver execution.Driver }

var _ sandboxes.Node = LocalNode{}

// Exec starts a process.
func (n LocalNode) Exec(ctx context.Context, sid id.Sandbox, spec sandboxes.ExecSpec) (sandboxes.Process, error) {
	return n.Driver.Exec(ctx, string(sid), execution.ExecSpec{
		Command: spec.Command, Env: spec.Env, WorkDir: spec.WorkDir, User: spec.User, TTY: spec.TTY, Rows: spec.Rows, Cols: spec.Cols,
	})
}

// Configure gives a warm sandbox to its claim.
func (n LocalNode) Configure(ctx context.Context, sid id.Sandbox, c sandboxes.Identity) error {
	return n.Driver.Configure(ctx, string(sid), execution.Identity(c))
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
	return sandbox.Stats{At: st.At, CPU: st.CPU, MemoryBytes: st.MemoryBytes, PIDs: st.PIDs}, err
}
