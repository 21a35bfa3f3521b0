package docker

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"miren.dev/runtime/components/agentdriver"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/errs"
)

// Get returns the state of a sandbox on the machine.
func (d *Driver) Get(ctx context.Context, id string) (execution.Instance, error) {
	if err := agentdriver.CheckID(id); err != nil {
		return execution.Instance{}, err
	}
	in, err := d.contained(ctx, id)
	if !errs.Is(err, errs.NotFound) {
		return in, err
	}
	ids, left := d.leftovers()
	switch {
	case left != nil:
		return execution.Instance{}, left
	case slices.Contains(ids, id):
		return execution.Instance{ID: id, Phase: execution.Creating}, nil
	}
	return execution.Instance{}, errs.New(errs.NotFound, "sandbox %s is not on this node", id)
}

// contained returns the state of a sandbox that has a container, else NotFound.
func (d *Driver) contained(ctx context.Context, id string) (execution.Instance, error) {
	c, err := d.inspectContainer(ctx, id)
	if err != nil {
		return execution.Instance{}, err
	}
	return d.state(id, c)
}

// state returns the state of a sandbox with this container.
func (d *Driver) state(id string, c container.InspectResponse) (in execution.Instance, err error) {
	in = execution.Instance{ID: id, Phase: execution.Creating}
	if in.StartedAt, err = d.startedAt(id); err != nil {
		return in, err
	}
	exit, err := d.hub.Exit(id) // a damaged record is a crash
	if err == nil {
		in.Phase, in.Exit = execution.Exited, &exit
		return in, nil
	}
	if !errs.Is(err, errs.NotFound) {
		return in, err
	}
	if c.State == nil {
		return in, errs.New(errs.Unavailable, "the Docker engine does not say how sandbox %s is", id)
	}
	switch {
	case c.State.Running:
		if a := d.addressOf(c.NetworkSettings); a.IsValid() {
			in.Address = a.String()
		}
		if !in.StartedAt.IsZero() {
			in.Phase = execution.Running
		}
		return in, nil
	case c.State.Status == container.StateCreated:
		return in, nil
	}
	// Without a record of its start too: it is not known then whether its process was started, after a restart of the
	// machine for example. It must not count as one that never existed.
	return d.End(in, endOf(c.State))
}

// addressOf returns the address in the network of the configuration.
func (d *Driver) addressOf(n *container.NetworkSettings) netip.Addr {
	if n == nil || d.cfg.Network == "" || n.Networks[d.cfg.Network] == nil {
		return netip.Addr{}
	}
	return n.Networks[d.cfg.Network].IPAddress
}

// endOf says how a sandbox ended whose agent said nothing.
func endOf(s *container.State) execution.Exit {
	exit := execution.Exit{Cause: execution.CauseCrash, Code: 255, At: time.Now(), Message: "the sandbox's processes vanished"}
	if at, err := time.Parse(time.RFC3339Nano, s.FinishedAt); err == nil && at.Year() > 1970 {
		exit.At = at
	}
	if s.OOMKilled {
		exit.Cause, exit.Code, exit.Message = execution.CauseOOM, 137, "the memory limit was reached"
		return exit
	}
	if s.ExitCode != 0 {
		exit.Code = s.ExitCode
		exit.Message = fmt.Sprintf("the container ended unexpectedly (status %d)", s.ExitCode)
	}
	if s.Error != "" {
		exit.Message += ": " + s.Error
	}
	return exit
}

// List returns all sandboxes of which any part is on the machine.
func (d *Driver) List(ctx context.Context) ([]execution.Instance, error) {
	// Read leftovers first: a sandbox that is created meanwhile has a container.
	ids, err := d.leftovers()
	if err != nil {
		return nil, err
	}
	all, err := d.engine.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: d.ours()})
	if err != nil {
		return nil, engineError(err, "list containers")
	}
	var out []execution.Instance
	seen := map[string]bool{}
	for _, c := range all.Items {
		id := c.Labels[labelSandbox]
		if agentdriver.CheckID(id) != nil || seen[id] {
			continue
		}
		in, err := d.contained(ctx, id)
		if errs.Is(err, errs.NotFound) {
			continue // it was deleted meanwhile, or its other parts are in ids
		}
		if ctx.Err() != nil {
			return nil, err
		}
		if err != nil {
			in.ID, in.Phase, in.Err = id, execution.Unknown, err
		}
		seen[id] = true
		out = append(out, in)
	}
	for _, id := range ids {
		if !seen[id] {
			out = append(out, execution.Instance{ID: id, Phase: execution.Creating})
		}
	}
	return out, nil
}

// leftovers returns the ids of sandboxes with parts other than a container.
func (d *Driver) leftovers() ([]string, error) {
	ids, err := d.hub.IDs()
	if err != nil {
		return nil, err
	}
	files, err := dirNames(d.dir("sandboxes"))
	if err != nil {
		return nil, err
	}
	ids = append(ids, files...)
	slices.Sort(ids)
	ids = slices.Compact(ids)
	return slices.DeleteFunc(ids, func(id string) bool { return agentdriver.CheckID(id) != nil }), nil
}
