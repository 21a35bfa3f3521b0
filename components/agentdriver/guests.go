// Package agentdriver is what execution drivers share whose sandboxes have the agent
// (components/agent) as PID 1: the calls that the agent answers, how sandboxes are
// ended and deleted, their changes, one lock per sandbox, and the refusals of what a
// driver lacks.
package agentdriver

import (
	"context"
	"time"

	"miren.dev/runtime/components/agent"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/errs"
)

// agentTimeout bounds how long a call waits for an agent that is not connected.
const agentTimeout = 5 * time.Second

// Guests answers the calls of execution.Driver that need only the agent of a
// sandbox, or its log and exit record. Drivers embed it.
type Guests struct {
	Hub *agent.Hub
	// State is the driver's Get. It says why an agent does not answer.
	State func(ctx context.Context, id string) (execution.Instance, error)
}

// Conn returns the agent of a running sandbox.
func (g *Guests) Conn(ctx context.Context, id string) (*agent.Conn, error) {
	if err := CheckID(id); err != nil {
		return nil, err
	}
	if c := g.Hub.Ready(id); c != nil {
		return c, nil
	}
	// Otherwise the call would wait for the agent, which is gone.
	if _, err := g.Hub.Exit(id); err == nil {
		return nil, errs.New(errs.FailedPrecondition, "sandbox %s has ended", id)
	}
	wait, cancel := context.WithTimeout(ctx, agentTimeout)
	defer cancel()
	c, err := g.Hub.Conn(wait, id)
	return c, g.Explain(ctx, id, err)
}

// Explain returns why an agent does not answer: usually because its sandbox has
// ended or does not run yet.
func (g *Guests) Explain(ctx context.Context, id string, err error) error {
	if err == nil || ctx.Err() != nil || !errs.Is(err, errs.Unavailable) && !errs.Is(err, errs.NotFound) {
		return err
	}
	in, state := g.State(ctx, id)
	switch {
	case state != nil:
		return state
	case in.Phase == execution.Exited:
		return errs.New(errs.FailedPrecondition, "sandbox %s has ended", id)
	case in.Phase == execution.Paused:
		return Paused(id)
	case in.Phase == execution.Creating:
		return errs.New(errs.FailedPrecondition, "sandbox %s is still being set up", id)
	}
	return err
}

// Paused is the error of a call that a paused sandbox cannot answer.
func Paused(id string) error {
	return errs.New(errs.FailedPrecondition, "sandbox %s is paused", id).WithHint("resume it first")
}

// Exec runs a process beside the main one.
func (g *Guests) Exec(ctx context.Context, id string, e execution.ExecSpec) (execution.Process, error) {
	c, err := g.Conn(ctx, id)
	if err != nil {
		return nil, err
	}
	p, err := c.Exec(ctx, e)
	if err != nil {
		return nil, g.Explain(ctx, id, err) // not a nil *agent.Process in an interface
	}
	return p, nil
}

// Processes returns the processes beside the main one.
func (g *Guests) Processes(ctx context.Context, id string) ([]execution.ProcessInfo, error) {
	c, err := g.Conn(ctx, id)
	if err != nil {
		return nil, err
	}
	list, err := c.Processes(ctx)
	return list, g.Explain(ctx, id, err)
}

// Attach continues a detached process.
func (g *Guests) Attach(ctx context.Context, id, process string, stdout, stderr int64) (execution.Process, error) {
	c, err := g.Conn(ctx, id)
	if err != nil {
		return nil, err
	}
	p, err := c.Attach(ctx, process, stdout, stderr)
	if errs.Is(err, errs.NotFound) { // the process, not the sandbox
		return nil, err
	}
	if err != nil {
		return nil, g.Explain(ctx, id, err)
	}
	return p, nil
}

// Dial connects to a port inside a sandbox.
func (g *Guests) Dial(ctx context.Context, id string, port int) (execution.Conn, error) {
	c, err := g.Conn(ctx, id)
	if err != nil {
		return nil, err
	}
	p, err := c.Dial(ctx, port)
	if err != nil {
		return nil, g.Explain(ctx, id, err)
	}
	return p, nil
}

// Activity says how much a sandbox is used.
func (g *Guests) Activity(ctx context.Context, id string) (execution.Activity, error) {
	c, err := g.Conn(ctx, id)
	if err != nil {
		return execution.Activity{}, err
	}
	a, err := c.Activity(ctx)
	return a, g.Explain(ctx, id, err)
}

// OOMKills implements execution.Driver for drivers that cannot tell.
func (g *Guests) OOMKills(context.Context, string) (int64, error) { return 0, nil }

// Listening returns the TCP ports on which processes in the sandbox listen.
func (g *Guests) Listening(ctx context.Context, id string) ([]execution.Listener, error) {
	c, err := g.Conn(ctx, id)
	if err != nil {
		return nil, err
	}
	listeners, err := c.Listening(ctx)
	if err != nil {
		return nil, g.Explain(ctx, id, err)
	}
	var ports []execution.Listener
	for _, l := range listeners { // in the order of their ports
		if n := len(ports); n > 0 && ports[n-1].Port == l.Port {
			ports[n-1].Loopback = ports[n-1].Loopback && l.Loopback()
			continue
		}
		ports = append(ports, execution.Listener{Port: l.Port, Loopback: l.Loopback()})
	}
	return ports, nil
}

// Logs calls line for each selected line of the main process.
func (g *Guests) Logs(ctx context.Context, id string, q execution.LogQuery, line func(execution.LogLine) error) error {
	if err := CheckID(id); err != nil {
		return err
	}
	return g.Hub.Logs(ctx, id, q, line)
}

// DeleteLogs deletes the logs of a deleted sandbox.
func (g *Guests) DeleteLogs(_ context.Context, id string) error {
	if err := CheckID(id); err != nil {
		return err
	}
	return g.Hub.RemoveLogs(id)
}

// LogIDs returns the sandboxes that have logs, including deleted ones.
func (g *Guests) LogIDs(context.Context) ([]string, error) { return g.Hub.LogIDs() }

// CheckID rejects ids that could not be names of files and containers.
func CheckID(id string) error {
	ok := len(id) >= 1 && len(id) <= 63
	for _, r := range id {
		ok = ok && (r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-')
	}
	if !ok {
		return errs.New(errs.InvalidArgument, "sandbox id %q is not 1 to 63 of a-z, 0-9 and -", id)
	}
	return nil
}
