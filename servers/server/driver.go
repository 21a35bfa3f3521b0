package server

import (
	"context"
	"errors"
	"os"

	"miren.dev/runtime/components/docker"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/components/network"
	"miren.dev/runtime/components/runsc"
	"miren.dev/runtime/controllers/appnet"
	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/errs"
)

// Values of node.driver.
const (
	driverRunsc  = "runsc"
	driverDocker = "docker"
)

// The network of this driver has those of apps; control adds their controller.
var _ appnet.Node = (*runsc.Driver)(nil)

// sandboxDriver runs the sandboxes of this machine.
type sandboxDriver interface {
	execution.Driver
	execution.FileDriver
	execution.SnapshotCopier
	// Start takes over the existing sandboxes.
	Start(ctx context.Context) error
	// Run follows the sandboxes until ctx ends; they go on.
	Run(ctx context.Context) error
	// Close lets go of the sandboxes, which go on.
	Close() error
	// Shutdown removes the sandboxes.
	Shutdown(ctx context.Context) error
}

// newDriver returns the driver that the configuration names.
func (m *machine) newDriver(cfg *config.Config, n network.Config) (sandboxDriver, error) {
	switch cfg.Node.Driver {
	case "", driverRunsc:
		return runsc.New(runsc.Config{
			Instance: m.in, BinDir: m.binDir, Containerd: m.containerd, Images: m.images, Network: network.New(n),
			CABundle: m.caBundle, Backend: cfg.Node.SandboxBackend, Logger: m.logger.With("component", "runsc"),
		}), nil
	case driverDocker:
		return docker.New(docker.Config{
			Instance: m.in, BinDir: m.binDir, Images: m.images, Host: cfg.Docker.Host, Runtime: cfg.Docker.Runtime,
			SharedKernel: cfg.Docker.SharedKernel, Network: cfg.Docker.Network, Logger: m.logger.With("component", "docker"),
		})
	}
	return nil, errs.New(errs.InvalidArgument, "node.driver: there is no driver %q", cfg.Node.Driver)
}

// startDriver takes over the existing sandboxes. FailedPrecondition if there are some of another driver, which this one
// would neither see nor end.
func (m *machine) startDriver(ctx context.Context) error {
	other, dir := driverDocker, docker.SandboxDir(m.in)
	if m.cfg.Node.Driver == driverDocker {
		other, dir = driverRunsc, m.in.Socket("sandboxes")
	}
	left, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return errs.New(errs.Unavailable, "look for sandboxes of the driver %s: %w", other, err)
	}
	if len(left) > 0 {
		return errs.New(errs.FailedPrecondition, "%d sandboxes of the driver %s exist", len(left), other).
			WithHint("end them before node.driver is changed: set it to %s and run `r server stop`", other)
	}
	return errs.Wrap(m.driver.Start(ctx), "sandbox driver")
}
