package runsc

import (
	"context"

	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/egress"
)

// Exports for the tests, which are in another package.

func (d *Driver) ShimSocket(id string) string   { return d.tasks().shimSocket(id) }
func (d *Driver) BundleDir(id string) string    { return d.tasks().bundleDir(id) }
func (d *Driver) RunscDir() string              { return d.backends[d.cfg.Backend].runscDir() }
func (d *Driver) PIDs(id string) ([]int, error) { return d.cgroups.PIDs(id) }

func (d *Driver) HelpersFile(id string) (string, error) { return d.cgroups.HelpersFile(id) }
func (d *Driver) Helpers(id string) ([]int, error)      { return d.cgroups.Helpers(id) }
func (d *Driver) ShimSocketDir() string                 { return d.cfg.Containerd.ShimSocketDir() }

func (d *Driver) RunscFiles(id string) ([]string, error) { return runscFiles(d.RunscDir(), id) }

func (d *Driver) tasks() *taskBackend { return d.backends[BackendContainerd].(*taskBackend) }

// Steps returns the names of the steps of a set-up.
func (d *Driver) Steps() []string {
	var names []string
	for _, s := range (&creation{d: d}).steps() {
		names = append(names, s.name)
	}
	return names
}

// SetUp does the first n steps of a set-up.
func (d *Driver) SetUp(ctx context.Context, s execution.Spec, n int) error {
	cr := &creation{d: d, spec: s, backend: d.backends[d.cfg.Backend]}
	return setUp(ctx, cr.steps()[:n])
}

// SweepAgents removes the agents that nothing uses.
func (d *Driver) SweepAgents() error { return d.hub.SweepBinaries() }

// NetworkIDs returns the sandboxes that have a network namespace or an address.
func (d *Driver) NetworkIDs() ([]string, error) { return d.cfg.Network.List() }

// Policy returns a sandbox's network policy.
func (d *Driver) Policy(id string) (egress.Policy, bool) { return d.cfg.Network.Policy(id) }
