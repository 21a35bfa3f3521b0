package runsc

import (
	"context"
	"slices"
	"time"

	"miren.dev/runtime/components/agent"
	"miren.dev/runtime/components/cgroup"
	"miren.dev/runtime/components/containerd"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/errs"
)

// agentTimeout bounds how long a call waits for an agent that is not connected.
const agentTimeout = 5 * time.Second

// conn returns the agent of a running sandbox.
func (d *Driver) conn(ctx context.Context, id string) (*agent.Conn, error) {
	if err := checkID(id); err != nil {
		return nil, err
	}
	if c := d.hub.Ready(id); c != nil {
		return c, nil
	}
	// Otherwise the call would wait for the agent, which is gone.
	if _, err := d.hub.Exit(id); err == nil {
		return nil, errs.New(errs.FailedPrecondition, "sandbox %s has ended", id)
	}
	wait, cancel := context.WithTimeout(ctx, agentTimeout)
	defer cancel()
	c, err := d.hub.Conn(wait, id)
	return c, d.explain(ctx, id, err)
}

// explain returns why an agent does not answer: usually because its sandbox has
// ended or does not run yet.
func (d *Driver) explain(ctx context.Context, id string, err error) error {
	if err == nil || ctx.Err() != nil || !errs.Is(err, errs.Unavailable) && !errs.Is(err, errs.NotFound) {
		return err
	}
	in, state := d.Get(ctx, id)
	switch {
	case state != nil:
		return state
	case in.Phase == execution.Exited:
		return errs.New(errs.FailedPrecondition, "sandbox %s has ended", id)
	case in.Phase == execution.Paused:
		return isPaused(id)
	case in.Phase == execution.Creating:
		return errs.New(errs.FailedPrecondition, "sandbox %s is still being set up", id)
	}
	return err
}

func isPaused(id string) error {
	return errs.New(errs.FailedPrecondition, "sandbox %s is paused", id).WithHint("resume it first")
}

// Exec runs a process beside the main one.
func (d *Driver) Exec(ctx context.Context, id string, e execution.ExecSpec) (execution.Process, error) {
	c, err := d.conn(ctx, id)
	if err != nil {
		return nil, err
	}
	p, err := c.Exec(ctx, e)
	if err != nil {
		return nil, d.explain(ctx, id, err) // not a nil *agent.Process in an interface
	}
	return p, nil
}

// Processes returns the processes beside the main one.
func (d *Driver) Processes(ctx context.Context, id string) ([]execution.ProcessInfo, error) {
	c, err := d.conn(ctx, id)
	if err != nil {
		return nil, err
	}
	list, err := c.Processes(ctx)
	return list, d.explain(ctx, id, err)
}

// Attach continues a detached process.
func (d *Driver) Attach(ctx context.Context, id, process string, stdout, stderr int64) (execution.Process, error) {
	c, err := d.conn(ctx, id)
	if err != nil {
		return nil, err
	}
	p, err := c.Attach(ctx, process, stdout, stderr)
	if errs.Is(err, errs.NotFound) { // the process, not the sandbox
		return nil, err
	}
	if err != nil {
		return nil, d.explain(ctx, id, err)
	}
	return p, nil
}

// Dial connects to a port inside a sandbox.
func (d *Driver) Dial(ctx context.Context, id string, port int) (execution.Conn, error) {
	c, err := d.conn(ctx, id)
	if err != nil {
		return nil, err
	}
	p, err := c.Dial(ctx, port)
	if err != nil {
		return nil, d.explain(ctx, id, err)
	}
	return p, nil
}

// Activity says how much a sandbox is used.
func (d *Driver) Activity(ctx context.Context, id string) (execution.Activity, error) {
	c, err := d.conn(ctx, id)
	if err != nil {
		return execution.Activity{}, err
	}
	a, err := c.Activity(ctx)
	return a, d.explain(ctx, id, err)
}

// Configure gives a sandbox to its user.
func (d *Driver) Configure(ctx context.Context, id string, i execution.Identity) error {
	if err := i.Check(); err != nil {
		return err
	}
	c, err := d.conn(ctx, id)
	if err != nil {
		return err
	}
	limits := cgroup.Limits{CPUMillis: i.CPUMillis, MemoryBytes: i.MemoryBytes, PIDs: i.PIDs}
	if limits != (cgroup.Limits{}) {
		made, err := d.madeWith(ctx, id)
		if err != nil {
			return err
		}
		if err := i.CheckLimits(made); err != nil {
			return err
		}
	}
	unlock, err := d.locks.lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	if len(i.Mounts) > 0 {
		if err := d.checkVolumes(ctx, id, i.Mounts); err != nil {
			return err
		}
	}
	// The agent decides between claims, so it comes first. If the limits fail, the claim is repeated.
	if err := c.Configure(ctx, i); err != nil {
		return d.explain(ctx, id, err)
	}
	if len(i.Mounts) > 0 {
		if err := d.mountVolumes(ctx, c, id, i); err != nil {
			return d.explain(ctx, id, err)
		}
	}
	if limits == (cgroup.Limits{}) {
		return nil
	}
	return d.cgroups.Update(id, limits)
}

// madeWith returns the specification of a sandbox, without its environment.
func (d *Driver) madeWith(ctx context.Context, id string) (execution.Spec, error) {
	c, err := d.client()
	if err != nil {
		return execution.Spec{}, err
	}
	container, err := c.ContainerService().Get(ctx, taskID(id))
	if err != nil {
		return execution.Spec{}, containerd.Error(err, "sandbox %s", id)
	}
	rec, err := recordOf(container)
	return rec.Spec, err
}

// Logs calls line for each selected line of the main process.
func (d *Driver) Logs(ctx context.Context, id string, q execution.LogQuery, line func(execution.LogLine) error) error {
	if err := checkID(id); err != nil {
		return err
	}
	return d.hub.Logs(ctx, id, q, line)
}

// DeleteLogs deletes the logs of a deleted sandbox.
func (d *Driver) DeleteLogs(_ context.Context, id string) error {
	if err := checkID(id); err != nil {
		return err
	}
	return d.hub.RemoveLogs(id)
}

// LogIDs returns the sandboxes that have logs, including deleted ones.
func (d *Driver) LogIDs(context.Context) ([]string, error) { return d.hub.LogIDs() }

// Stats reads the resource use of a sandbox; tasks of the host count as PIDs.
func (d *Driver) Stats(_ context.Context, id string) (execution.Stats, error) {
	if err := checkID(id); err != nil {
		return execution.Stats{}, err
	}
	u, err := d.cgroups.Usage(id)
	if err != nil {
		return execution.Stats{}, err
	}
	return execution.Stats{At: time.Now(), CPU: u.CPU, MemoryBytes: u.MemoryBytes, PIDs: u.Tasks}, nil
}

// Listening returns the TCP ports on which processes in the sandbox listen.
func (d *Driver) Listening(ctx context.Context, id string) ([]int, error) {
	c, err := d.conn(ctx, id)
	if err != nil {
		return nil, err
	}
	listeners, err := c.Listening(ctx)
	if err != nil {
		return nil, d.explain(ctx, id, err)
	}
	var ports []int
	for _, l := range listeners {
		ports = append(ports, l.Port)
	}
	slices.Sort(ports)
	return slices.Compact(ports), nil
}

var _ execution.Driver = (*Driver)(nil)
