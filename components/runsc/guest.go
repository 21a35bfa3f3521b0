package runsc

import (
	"context"
	"time"

	"miren.dev/runtime/components/agentdriver"
	"miren.dev/runtime/components/cgroup"
	"miren.dev/runtime/components/containerd"
	"miren.dev/runtime/components/execution"
)

// Configure gives a sandbox to its user.
func (d *Driver) Configure(ctx context.Context, id string, i execution.Identity) error {
	if err := i.Check(); err != nil {
		return err
	}
	c, err := d.Conn(ctx, id)
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
	unlock, err := d.locks.Lock(ctx, id)
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
		return d.Explain(ctx, id, err)
	}
	if len(i.Mounts) > 0 {
		if err := d.mountVolumes(ctx, c, id, i); err != nil {
			return d.Explain(ctx, id, err)
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

// Stats reads the resource use of a sandbox; tasks of the host count as PIDs.
func (d *Driver) Stats(_ context.Context, id string) (execution.Stats, error) {
	if err := agentdriver.CheckID(id); err != nil {
		return execution.Stats{}, err
	}
	u, err := d.cgroups.Usage(id)
	if err != nil {
		return execution.Stats{}, err
	}
	st := execution.Stats{At: time.Now(), CPU: u.CPU, MemoryBytes: u.MemoryBytes, PIDs: u.Tasks}
	if received, sent, ok := d.cfg.Network.Traffic(id); ok {
		st.Network = &execution.Traffic{Received: received, Sent: sent}
	}
	return st, nil
}

// OOMKills returns how many processes of a sandbox the kernel has ended for memory.
func (d *Driver) OOMKills(_ context.Context, id string) (int64, error) {
	if err := agentdriver.CheckID(id); err != nil {
		return 0, err
	}
	return d.cgroups.OOMKills(id)
}

var (
	_ execution.Driver     = (*Driver)(nil)
	_ execution.FileDriver = (*Driver)(nil)
)
