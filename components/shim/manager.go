package main

import (
	"context"
	"errors"
	"os"

	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/shim"
	v1 "gvisor.dev/gvisor/pkg/shim/v1"

	"miren.dev/runtime/components/shim/internal/launch"
)

// manager is gVisor's shim manager, except for how it starts shims.
type manager struct {
	shim.Manager
}

func newManager(name string) manager {
	return manager{v1.NewShimManager(name)}
}

// Start starts the shim process that serves container id, or finds the one that serves its sandbox, and answers with
// its address. Containerd runs this in the container's bundle.
func (m manager) Start(ctx context.Context, id string, opts shim.StartOpts) (shim.BootstrapParams, error) {
	var none shim.BootstrapParams
	namespace, err := namespaces.NamespaceRequired(ctx)
	if err != nil {
		return none, err
	}
	self, err := os.Executable()
	if err != nil {
		return none, err
	}
	address, err := launch.Shim{
		Path: self, Namespace: namespace, ID: id, Containerd: opts.Address, Debug: opts.Debug, Bootstrap: os.Stdin,
		SocketDir: os.Getenv(launch.SocketDir),
	}.Start()
	if err != nil {
		return none, err
	}
	return shim.BootstrapParams{Version: 2, Address: address, Protocol: "ttrpc"}, nil
}

// Stop cleans up after a container whose shim died. Containerd runs this in the container's bundle.
func (m manager) Stop(ctx context.Context, id string) (shim.StopStatus, error) {
	status, err := m.Manager.Stop(ctx, id)
	if err != nil {
		return status, err
	}
	return status, errors.Join(restoreNetwork("."), removeSocket())
}

// removeSocket removes the socket that a killed shim left. A socket that is served belongs to a shim with further
// containers.
func removeSocket() error {
	address, err := shim.ReadAddress("address")
	if err != nil || shim.CanConnect(address) {
		return nil // there is none, or it is in use
	}
	if err := shim.RemoveSocket(address); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
