package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/shim"
	"github.com/containerd/containerd/v2/pkg/sys"
	"github.com/containerd/log"
	"google.golang.org/protobuf/encoding/protowire"
	v1 "gvisor.dev/gvisor/pkg/shim/v1"
	"gvisor.dev/gvisor/pkg/shim/v1/utils"
)

// oomScore protects the shim from the OOM killer: were it killed, nobody would see its sandbox end.
const oomScore = -999

// manager is gVisor's shim manager, but for how shims are started.
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
	sandbox, err := sandboxOf(id)
	if err != nil {
		return none, err
	}
	address, err := socketAddress(ctx, opts.Address, sandbox, os.Stdin)
	if err != nil {
		return none, fmt.Errorf("shim address of %s: %w", sandbox, err)
	}
	params := shim.BootstrapParams{Version: 2, Address: address, Protocol: "ttrpc"}

	listener, err := listen(address)
	if err != nil {
		return none, fmt.Errorf("listen on %s: %w", address, err)
	}
	// The shim finds its own address here, and containerd that of a shim to reconnect to.
	if err := os.WriteFile("address", []byte(address), 0o644); err != nil {
		return none, err
	}
	if listener == nil {
		return params, nil
	}
	// Only this process's descriptor: the shim holds its own.
	defer listener.Close()
	listener.SetUnlinkOnClose(false)

	if err := spawn(ctx, id, opts, listener); err != nil {
		return none, errors.Join(err, shim.RemoveSocket(address))
	}
	return params, nil
}

// Stop cleans up after a container whose shim died. Containerd runs this in the container's bundle.
func (m manager) Stop(ctx context.Context, id string) (shim.StopStatus, error) {
	status, err := m.Manager.Stop(ctx, id)
	if err != nil {
		return status, err
	}
	return status, errors.Join(restoreNetwork("."), removeSocket())
}

// removeSocket removes the socket that a killed shim left. One that is served is of a shim with further containers.
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

// socketDirField is the number of socket_dir in containerd.runtime.bootstrap.v1.BootstrapParams, which containerd
// writes to the standard input of a starting shim. The types come with a newer API than gVisor's shim builds with.
const socketDirField = 9

// maxBootstrap bounds what is read of it.
const maxBootstrap = 1 << 20

// socketAddress is the address of the shim of a sandbox: in containerd's socket_dir
// ([plugins."io.containerd.shim.v1.manager"]), named so that no two containerds and namespaces share one.
func socketAddress(ctx context.Context, containerd, sandbox string, bootstrap io.Reader) (string, error) {
	address, err := shim.SocketAddress(ctx, containerd, sandbox, false)
	if err != nil {
		return "", err
	}
	params, err := io.ReadAll(io.LimitReader(bootstrap, maxBootstrap))
	if err != nil {
		return "", fmt.Errorf("read bootstrap parameters: %w", err)
	}
	dir := bytesField(params, socketDirField)
	if dir == "" {
		return address, nil
	}
	return "unix://" + filepath.Join(dir, filepath.Base(address)), nil
}

// bytesField is the last value of a string field of a protobuf message; empty when there is none, or no message.
func bytesField(message []byte, number protowire.Number) (value string) {
	for len(message) > 0 {
		n, kind, size := protowire.ConsumeTag(message)
		if size < 0 {
			return ""
		}
		message = message[size:]
		if n == number && kind == protowire.BytesType {
			v, size := protowire.ConsumeBytes(message)
			if size < 0 {
				return ""
			}
			value, message = string(v), message[size:]
			continue
		}
		if size = protowire.ConsumeFieldValue(n, kind, message); size < 0 {
			return ""
		}
		message = message[size:]
	}
	return value
}

// sandboxOf is the id of the sandbox that container id, whose bundle is the working directory, belongs to.
func sandboxOf(id string) (string, error) {
	spec, err := utils.ReadSpec(".")
	if err != nil {
		return "", fmt.Errorf("read spec of %s: %w", id, err)
	}
	if spec.Annotations[containerType] == "container" && spec.Annotations[sandboxID] != "" {
		return spec.Annotations[sandboxID], nil
	}
	return id, nil
}

// listen makes the shim's socket. It returns nil when a shim serves there already; a socket that nobody serves is
// what a killed shim left, and is replaced.
func listen(address string) (*net.UnixListener, error) {
	listener, err := shim.NewSocket(address)
	if err == nil || !shim.SocketEaddrinuse(err) {
		return listener, err
	}
	if shim.CanConnect(address) {
		return nil, nil
	}
	if err := shim.RemoveSocket(address); err != nil {
		return nil, err
	}
	return shim.NewSocket(address)
}

// spawn starts this binary as the shim process, serving on listener.
func spawn(ctx context.Context, id string, opts shim.StartOpts, listener *net.UnixListener) error {
	namespace, err := namespaces.NamespaceRequired(ctx)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	socket, err := listener.File()
	if err != nil {
		return err
	}
	defer socket.Close()

	args := []string{"-namespace", namespace, "-address", opts.Address, "-id", id}
	if opts.Debug {
		args = append(args, "-debug")
	}
	cmd := exec.Command(self, args...)
	// One thread at a time is enough to wait and to copy output, and each further one costs memory, in every
	// sandbox. runsc does not pass this on to the sandbox.
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
	cmd.ExtraFiles = []*os.File{socket} // descriptor 3, where shims look for it
	// Not in the process group of containerd, whose signals are not for us.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start shim: %w", err)
	}
	// Nobody waits for it: this process ends next, and the shim outlives it.
	if err := protect(cmd.Process.Pid); err != nil {
		return errors.Join(err, cmd.Process.Kill())
	}
	return nil
}

// protect records the shim's process id and asks for its protection, which the host may refuse.
func protect(pid int) error {
	if err := shim.WritePidFile("shim.pid", pid); err != nil {
		return err
	}
	err := sys.SetOOMScore(pid, oomScore)
	if errors.Is(err, os.ErrPermission) { // EACCES and EPERM
		log.L.WithError(err).Debug("the host does not let the OOM score of the shim be lowered")
		return nil
	}
	return err
}
