package agent

import (
	"context"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/errs"
)

var errSoon = errs.New(errs.Unimplemented, "not built yet")

// Hub has the agents of all sandboxes of this machine. It is safe for
// concurrent use.
type Hub struct{ c HubConfig }

// NewHub makes a hub; it does no IO.
func NewHub(c HubConfig) *Hub { return &Hub{c: c} }

// Prepare makes the directories of sandbox id, listens for its agent and
// returns what the container needs. It is idempotent.
func (h *Hub) Prepare(id string, c GuestConfig) (Guest, error) { return Guest{}, errSoon }

// Attach listens again for the agent of a sandbox that an earlier hub
// prepared. NotFound if none did.
func (h *Hub) Attach(id string) error { return errSoon }

// Conn waits until the agent of sandbox id is connected. NotFound if id was
// neither prepared nor attached, Unavailable if ctx ends before.
func (h *Hub) Conn(ctx context.Context, id string) (*Conn, error) { return nil, errSoon }

// Exit returns how the main process of id ended, from the record that its
// agent wrote or End did. NotFound while there is none.
func (h *Hub) Exit(id string) (execution.Exit, error) { return execution.Exit{}, errSoon }

// End says that the sandbox is gone and how, so that readers of its log stop
// waiting for more; an exit record of the agent is kept.
func (h *Hub) End(id string, e execution.Exit) error { return errSoon }

// Logs calls line for each selected line of the main process.
func (h *Hub) Logs(ctx context.Context, id string, q execution.LogQuery, line func(execution.LogLine) error) error {
	return errSoon
}

// IDs returns the sandboxes that have a directory under Dir.
func (h *Hub) IDs() ([]string, error) { return nil, errSoon }

// LogIDs returns the sandboxes that have logs.
func (h *Hub) LogIDs() ([]string, error) { return nil, errSoon }

// Remove closes the connection of id and removes everything but its logs. No
// error when nothing is there.
func (h *Hub) Remove(id string) error { return errSoon }

// RemoveLogs removes the logs and the exit record of id.
func (h *Hub) RemoveLogs(id string) error { return errSoon }

// Close closes all connections and stops listening; the directories stay, and
// the agents redial the next hub.
func (h *Hub) Close() error { return nil }

// Conn is the agent of one sandbox. It outlives single connections: while the
// agent is away calls fail with Unavailable, and execs go on when it is back.
type Conn struct{}

// Main returns the last known state of the main process.
func (c *Conn) Main() MainStatus { return MainStatus{} }

// MainExit is closed when the main process has ended; Main().Exit says how.
func (c *Conn) MainExit() <-chan struct{} { return nil }

// StartMain starts the main process and returns when it runs; no error if it
// was started before. If it cannot be started the error has the detail
// "exit_code" (127 not found, 126 not executable), and the sandbox ends.
func (c *Conn) StartMain(ctx context.Context) error { return errSoon }

// Signal sends a signal to the main process.
func (c *Conn) Signal(ctx context.Context, sig int) error { return errSoon }

// Listening returns the TCP sockets that accept connections.
func (c *Conn) Listening(ctx context.Context) ([]Listener, error) { return nil, errSoon }

// Exec starts a process beside the main one. If it cannot be started the
// error is InvalidArgument with the detail "exit_code" (127 not found, 126 not
// executable).
func (c *Conn) Exec(ctx context.Context, s execution.ExecSpec) (*Process, error) { return nil, errSoon }

// Process is an exec; it implements execution.Process.
type Process struct{ execution.Process }

// ID names the exec within its sandbox, for Reattach.
func (p *Process) ID() uint64 { return 0 }
