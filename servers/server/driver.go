package server

import (
	"cmp"
	"context"
	"errors"
	"os"

	"miren.dev/runtime/components/docker"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/components/kubernetes"
	"miren.dev/runtime/components/network"
	"miren.dev/runtime/components/registry"
	"miren.dev/runtime/components/runsc"
	"miren.dev/runtime/pkg/config"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/servers/runner"
)

// Values of node.driver.
const (
	driverRunsc      = "runsc"
	driverDocker     = "docker"
	driverKubernetes = "kubernetes"
)

// The network of this driver has those of apps; control adds their controller.
var _ runner.Network = (*runsc.Driver)(nil)

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
	case driverKubernetes:
		return m.newKubernetes(cfg.Kubernetes)
	}
	return nil, errs.New(errs.InvalidArgument, "node.driver: there is no driver %q", cfg.Node.Driver)
}

// newKubernetes returns the driver that runs sandboxes as pods.
func (m *machine) newKubernetes(cfg config.Kubernetes) (sandboxDriver, error) {
	if cfg.Registry == "" {
		return nil, errs.New(errs.InvalidArgument, "kubernetes.registry: no registry is configured, from which the cluster pulls images")
	}
	images, err := registry.New(registry.Config{
		Repository: cfg.Registry, CredentialsFile: cfg.RegistryCredentials, CAFile: cfg.RegistryCAFile, PlainHTTP: cfg.RegistryPlainHTTP,
		Logger: m.logger.With("component", "registry"),
	})
	if err != nil {
		return nil, errs.Wrap(err, "kubernetes.registry")
	}
	access, err := kubernetes.Access(cfg.Kubeconfig, cfg.Context)
	if err != nil {
		return nil, err
	}
	return kubernetes.New(kubernetes.Config{
		Instance: m.in, BinDir: m.binDir, Cluster: access, Namespace: cfg.Namespace, RuntimeClass: cfg.RuntimeClass,
		PullSecret: cfg.PullSecret, StartTimeout: cfg.StartTimeout,
		Images: kubernetes.Pushed{Store: m.images, Registry: images, BinDir: m.binDir}, Logger: m.logger.With("component", "kubernetes"),
	})
}

// startDriver takes over the existing sandboxes. FailedPrecondition if there are some of another driver, which this one
// would neither see nor end.
func (m *machine) startDriver(ctx context.Context) error {
	of := map[string]string{
		driverRunsc: m.in.Socket("sandboxes"), driverDocker: docker.SandboxDir(m.in), driverKubernetes: kubernetes.SandboxDir(m.in),
	}
	for other, dir := range of {
		if other == cmp.Or(m.cfg.Node.Driver, driverRunsc) {
			continue
		}
		left, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return errs.New(errs.Unavailable, "look for sandboxes of the driver %s: %w", other, err)
		}
		if len(left) > 0 {
			return errs.New(errs.FailedPrecondition, "%d sandboxes of the driver %s exist", len(left), other).
				WithHint("end them before node.driver is changed: set it to %s and run `r server stop`", other)
		}
	}
	return errs.Wrap(m.driver.Start(ctx), "sandbox driver")
}
