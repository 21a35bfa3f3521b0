package buildkit

import (
	"context"

	"miren.dev/runtime/components/cgroup"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/instance"
)

// Groups are control groups for programs of the machine that work for builds, such as those that make base images. Each
// has the limits of one step, except those of the disk, and counts among all steps. No daemon need run.
type Groups struct {
	groups *cgroup.Manager
	limits Limits
}

// NewGroups returns the groups of an instance without touching the machine.
func NewGroups(in *instance.Instance, l Limits) *Groups {
	return &Groups{groups: cgroup.New(in.Name("build")), limits: l}
}

// Create makes a group and returns the files with which a process joins it: it writes 0 to each.
func (g *Groups) Create(id string) ([]string, error) {
	l, err := limitAll(g.groups, g.limits, cpuPercent)
	if err != nil {
		return nil, err
	}
	if err := g.groups.Create(id, cgroup.Limits{MemoryBytes: l.MemoryBytes, PIDs: l.Processes}); err != nil {
		return nil, err
	}
	return g.groups.Files(id)
}

// Explain adds to an error of a program of a group that the limit of memory ended it, if it did.
func (g *Groups) Explain(id string, err error) error {
	u, uerr := g.groups.Usage(id)
	machine, merr := machineMemory()
	if uerr != nil || merr != nil || u.OOMKills == 0 {
		return err
	}
	message, hint := g.limits.withDefaults(machine).explain(LimitMemory)
	return errs.New(errs.ResourceExhausted, "%s: %w", message, err).WithHint("%s", hint)
}

// Delete kills the processes of a group and removes it. It returns nil if there is none.
func (g *Groups) Delete(ctx context.Context, id string) error { return g.groups.Delete(ctx, id) }

// List returns the groups, with those of steps.
func (g *Groups) List() ([]string, error) { return g.groups.List() }

// Remove removes the group of all, which must be empty.
func (g *Groups) Remove() error { return g.groups.Remove() }
