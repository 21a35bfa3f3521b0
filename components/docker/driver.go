// Package docker is the execution.Driver that runs sandboxes as containers of a Docker engine of this machine, over the
// Docker Engine API. The agent (components/agent) is PID 1 in each, as it is with components/runsc.
//
// A sandbox has these parts, which can be found by listing:
//
//	container   of the engine, named <instance.Name>-<id>, with the labels in container.go; one of them holds the
//	            specification without the environment
//	agent       components/agent: <run dir>/docker/agent/<id> and its logs
//	files       <run dir>/docker/sandboxes/<id>/: hosts, hostname and resolv.conf, mounted read-only on those of /etc; and
//	            started, which says that the main process was started
//
// The engine keeps an image for as long as a sandbox uses it, under a name of this installation (images.go). The engine's
// containers, images and networks without our label or name are never touched.
//
// The engine must run on this machine, because it mounts the agent's socket, and must have gVisor as a runtime: engine.go
// checks how it is registered. What the engine cannot do is refused, see docs/docker.md.
//
// How a sandbox ended is the agent's exit record if it wrote one; else the engine's word. The driver then writes the
// record itself, so that the answer does not change later.
package docker

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/moby/moby/client"

	"miren.dev/runtime/components/agent"
	"miren.dev/runtime/components/agentdriver"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/instance"
)

// killWait is how long the agent may take to report a killed main process.
const killWait = 3 * time.Second

// Config of a Driver.
type Config struct {
	Instance *instance.Instance
	// BinDir is the directory of runtime-agent.
	BinDir string
	Images Images
	// Host is the engine's address: unix:// and the path of its socket.
	Host string
	// Runtime is the name by which the engine knows gVisor.
	Runtime string
	// SharedKernel permits a runtime other than gVisor: what sandboxes run then uses the machine's kernel, and nothing
	// bounds the disk.
	SharedKernel bool
	// Network is the engine's network that sandboxes of execution.NetworkBridge join; empty: they are refused.
	Network string
	Logger  *slog.Logger
}

// Driver implements execution.Driver.
type Driver struct {
	agentdriver.Guests
	agentdriver.Lifecycle
	agentdriver.Changes
	agentdriver.NoSnapshots
	agentdriver.OpenNetwork

	cfg    Config
	logger *slog.Logger
	hub    *agent.Hub // Guests.Hub
	locks  agentdriver.KeyLock
	images imageLoads

	engine  *client.Client
	runtime engineRuntime // set by Start
}

// New returns a driver; it does no IO.
func New(cfg Config) (*Driver, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	engine, err := newEngine(cfg.Host)
	if err != nil {
		return nil, err
	}
	d := &Driver{cfg: cfg, logger: cfg.Logger, engine: engine}
	d.NoSnapshots = agentdriver.NoSnapshots{Refusal: noSnapshots()}
	d.OpenNetwork = agentdriver.OpenNetwork{Made: d.madeWith, Refusal: noPolicy()}
	d.hub = agent.NewHub(agent.HubConfig{
		Dir:       d.dir("agent"),
		LogDir:    cfg.Instance.State("logs", "sandboxes"),
		AgentPath: filepath.Join(cfg.BinDir, "runtime-agent"),
		AgentDir:  cfg.Instance.State("docker", "agents"),
		Logger:    cfg.Logger,
		Notify:    d.Notify,
		PIDs:      d.pids,
		Exceeded: func(id string) {
			ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
			defer cancel()
			d.EndExceeded(ctx, id)
		},
	})
	d.Guests = agentdriver.Guests{Hub: d.hub, State: d.Get}
	d.Lifecycle = agentdriver.NewLifecycle(&d.Guests, &d.Changes, &d.locks, agentdriver.Steps{
		Kill:     d.kill,
		Teardown: d.teardown,
		Started: func(id string) bool {
			at, _ := d.startedAt(id)
			return !at.IsZero()
		},
		KillWait: killWait,
	}, d.logger)
	return d, nil
}

// SandboxDir returns the directory that has a directory for each sandbox of an installation.
func SandboxDir(in *instance.Instance) string { return in.Socket("docker", "sandboxes") }

func (d *Driver) dir(elem ...string) string {
	return d.cfg.Instance.Socket(append([]string{"docker"}, elem...)...)
}

// Start checks the engine and takes over the existing sandboxes.
func (d *Driver) Start(ctx context.Context) error {
	if err := d.checkEngine(ctx); err != nil {
		return err
	}
	if err := os.MkdirAll(d.dir("sandboxes"), 0o711); err != nil {
		return errs.New(errs.FailedPrecondition, "sandbox directory: %w", err)
	}
	ids, err := d.hub.IDs()
	if err != nil {
		return err
	}
	for _, id := range ids {
		if err := d.hub.Attach(id); err != nil && !errs.Is(err, errs.NotFound) {
			d.logger.Warn("cannot listen for the agent of a sandbox", "sandbox", id, "error", err)
		}
	}
	if err := d.hub.SweepBinaries(); err != nil {
		d.logger.Warn("cannot remove old agents", "error", err)
	}
	if err := d.sweepImages(ctx); err != nil {
		d.logger.Warn("cannot remove images that no sandbox uses", "error", err)
	}
	return nil
}

// Run follows the ends of the sandboxes until ctx ends. The sandboxes go on.
func (d *Driver) Run(ctx context.Context) error { return d.follow(ctx) }

// Close lets go of the agents, which wait for the next Driver.
func (d *Driver) Close() error { return errors.Join(d.hub.Close(), d.engine.Close()) }

// Shutdown removes every sandbox and every image of ours, as `r server stop` does.
func (d *Driver) Shutdown(ctx context.Context) error {
	all, err := d.List(ctx)
	if err != nil {
		return err
	}
	if err := d.DeleteAll(ctx, all); err != nil {
		return err
	}
	return errors.Join(d.sweepImages(ctx), os.RemoveAll(d.dir()))
}

// pids returns a process of the sandbox on the host: with gVisor the one that holds its files.
func (d *Driver) pids(id string) ([]int, error) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	c, err := d.inspectContainer(ctx, id)
	if errs.Is(err, errs.NotFound) {
		return nil, nil
	}
	if err != nil || c.State == nil || c.State.Pid == 0 {
		return nil, err
	}
	return []int{c.State.Pid}, nil
}

var (
	_ execution.Driver     = (*Driver)(nil)
	_ execution.FileDriver = (*Driver)(nil)
)
