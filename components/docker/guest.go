package docker

import (
	"context"
	"encoding/json"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"miren.dev/runtime/components/agentdriver"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/errs"
)

// Configure gives a sandbox to its user.
func (d *Driver) Configure(ctx context.Context, id string, i execution.Identity) error {
	if err := i.Check(); err != nil {
		return err
	}
	if len(i.Mounts) > 0 {
		return errs.New(errs.Unimplemented, "a sandbox of the Docker driver gets volumes when it is made, not with its claim")
	}
	conn, err := d.Conn(ctx, id)
	if err != nil {
		return err
	}
	made, err := d.madeWith(ctx, id)
	if err != nil {
		return err
	}
	if err := i.CheckLimits(made); err != nil {
		return err
	}
	unlock, err := d.locks.Lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	forAgent := i
	if !d.runtime.gvisor {
		if i.Hostname != "" && i.Hostname != hostname(made) {
			return errs.New(errs.FailedPrecondition, "a claim cannot change the host name of sandbox %s, which shares the machine's kernel", id)
		}
		forAgent.Hostname, forAgent.PIDs = "", 0
	}
	// The agent decides between claims, so it comes first. If the limits fail, the claim is repeated.
	if err := conn.Configure(ctx, forAgent); err != nil {
		return d.Explain(ctx, id, err)
	}
	if i.Hostname != "" {
		c, err := d.inspectContainer(ctx, id)
		if err != nil {
			return err
		}
		made.Hostname = i.Hostname
		if err := d.writeEtc(made, d.addressOf(c.NetworkSettings)); err != nil {
			return err
		}
	}
	return d.claimLimits(ctx, id, i)
}

// claimLimits sets the limits of a claim that are the engine's.
func (d *Driver) claimLimits(ctx context.Context, id string, i execution.Identity) error {
	if i.CPUMillis == 0 && i.MemoryBytes == 0 && (d.runtime.gvisor || i.PIDs == 0) {
		return nil
	}
	var r container.Resources
	r.NanoCPUs = i.CPUMillis * 1e6
	if i.MemoryBytes > 0 {
		st, err := d.Stats(ctx, id)
		if err != nil {
			return err
		}
		r.Memory = memoryLimit(i.MemoryBytes)
		r.MemorySwap = r.Memory
		if st.MemoryBytes > r.Memory {
			return errs.New(errs.ResourceExhausted, "sandbox %s uses more memory than %d bytes", id, i.MemoryBytes)
		}
	}
	if !d.runtime.gvisor && i.PIDs > 0 {
		pids := i.PIDs + agentThreads
		r.PidsLimit = &pids
	}
	return d.update(ctx, id, r)
}

// Stats reads the resource use of a sandbox; tasks of the host count as PIDs.
func (d *Driver) Stats(ctx context.Context, id string) (execution.Stats, error) {
	if err := agentdriver.CheckID(id); err != nil {
		return execution.Stats{}, err
	}
	if _, err := d.inspectContainer(ctx, id); err != nil {
		return execution.Stats{}, err
	}
	res, err := d.engine.ContainerStats(ctx, d.containerName(id), client.ContainerStatsOptions{})
	if err != nil {
		return execution.Stats{}, engineError(err, "resource use of sandbox %s", id)
	}
	defer res.Body.Close()
	var s container.StatsResponse
	if err := json.NewDecoder(res.Body).Decode(&s); err != nil {
		return execution.Stats{}, errs.New(errs.Unavailable, "resource use of sandbox %s: %w", id, err)
	}
	return execution.Stats{
		At: time.Now(), CPU: time.Duration(s.CPUStats.CPUUsage.TotalUsage), MemoryBytes: int64(s.MemoryStats.Usage), PIDs: int64(s.PidsStats.Current),
	}, nil
}
