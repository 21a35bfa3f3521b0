// Package runsc is the execution.Driver that runs sandboxes with gVisor, the agent
// (components/agent) as PID 1 in each. A backend runs them: the node itself, or
// containerd with a shim per sandbox (backend.go).
//
// A sandbox is made by the steps in steps.go, each with a teardown that is safe
// whether or not its set-up ran. A sandbox has these parts on the machine, which
// can be found by listing:
//
//	network     components/network
//	cgroup      components/cgroup
//	rootfs      snapshot sandbox-<id> of containerd, with the label below
//	agent       components/agent: sockets, configuration, logs
//	files       <run dir>/sandboxes/<id>/started; /etc/hosts, hostname and resolv.conf are in the rootfs;
//	            beside it the CA bundle of the image with that of the host
//	volumes     <run dir>/volumes/<id>/, a mount of its own (volumes.go)
//	container   containerd container <id>.sandbox; its extension holds the specification without the environment
//	task        what the backend has: see there
//
// The machine is the only source of this state: a new Driver, after a restart of the
// server, knows everything that the old one did. The file "started" says that the main process
// was started; a container without it is one whose set-up was interrupted.
//
// How a sandbox ended is the agent's exit record if it wrote one; else the
// control group's count of OOM kills tells an OOM from a crash. The driver then writes the
// record itself, so that the answer does not change later.
//
// What a sandbox can write on the host: its rootfs, up to Spec.DiskBytes, which
// runsc enforces; and, through the agent only, the directory of its log
// (components/agent bounds it). All else that is mounted is read-only.
//
// Snapshots, and sandboxes that are paused, have files of their own (snapshots.go). A restored sandbox has the same parts
// as any other and is made by the same steps: its processes come from the snapshot's image instead of the agent's start.
//
// Lock order: the lock of one id, then that of a snapshot (Driver.locks).
package runsc

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"miren.dev/runtime/components/agent"
	"miren.dev/runtime/components/agentdriver"
	"miren.dev/runtime/components/cgroup"
	"miren.dev/runtime/components/containerd"
	"miren.dev/runtime/components/network"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/instance"
)

// DefaultDiskBytes is how many bytes a sandbox may write to its root filesystem
// when its specification sets no limit.
const DefaultDiskBytes = 10 << 30

// killWait is how long the agent may take to report a killed main process.
const killWait = 3 * time.Second

// Config of a Driver.
type Config struct {
	Instance *instance.Instance
	// BinDir is the directory of the toolchain: runsc, runtime-agent and runtime-launch.
	BinDir     string
	Containerd *containerd.Daemon
	Images     *containerd.Images
	Network    *network.Manager
	// CABundle, if set, is a file of certificates that every sandbox gets (ca.go).
	CABundle string
	// Backend runs the sandboxes that are made from now on; empty: BackendDirect.
	Backend string
	Logger  *slog.Logger
}

// Driver implements execution.Driver.
type Driver struct {
	agentdriver.Guests
	agentdriver.Lifecycle
	agentdriver.Changes

	cfg     Config
	logger  *slog.Logger
	cgroups *cgroup.Manager
	hub     *agent.Hub // Guests.Hub
	locks   agentdriver.KeyLock

	background sync.WaitGroup // of the work that Close waits for

	backends map[string]backend
}

// New returns a driver; it does no IO.
func New(cfg Config) *Driver {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	d := &Driver{
		cfg:     cfg,
		logger:  cfg.Logger,
		cgroups: cgroup.New(cfg.Instance.Name("")),
	}
	d.cfg.Backend = cmp.Or(cfg.Backend, BackendDirect)
	d.backends = map[string]backend{BackendDirect: newDirectBackend(d), BackendContainerd: &taskBackend{d}}
	d.hub = agent.NewHub(agent.HubConfig{
		Dir:       cfg.Instance.Socket("agent"),
		LogDir:    cfg.Instance.State("logs", "sandboxes"),
		AgentPath: filepath.Join(cfg.BinDir, "runtime-agent"),
		AgentDir:  cfg.Instance.State("agents"),
		Logger:    cfg.Logger,
		Notify:    d.Notify,
		PIDs:      d.cgroups.PIDs,
		Exceeded:  func(id string) { d.EndExceeded(context.Background(), id) },
		Pinned:    d.snapshotAgents,
	})
	d.Guests = agentdriver.Guests{Hub: d.hub, State: d.Get}
	d.Lifecycle = agentdriver.NewLifecycle(&d.Guests, &d.Changes, &d.locks, agentdriver.Steps{
		Kill:     func(_ context.Context, id string) error { return d.killSandbox(id) },
		Teardown: d.teardown,
		Started: func(id string) bool {
			at, _ := d.startedAt(id)
			return !at.IsZero()
		},
		Forget:   d.forgetPause,
		KillWait: killWait,
	}, d.logger)
	return d
}

// Start brings up the network and takes over the existing sandboxes. containerd
// must run.
func (d *Driver) Start(ctx context.Context) error {
	if err := os.MkdirAll(d.sandboxDir(), 0o711); err != nil {
		return errs.New(errs.FailedPrecondition, "sandbox directory: %w", err)
	}
	if err := d.writeCA(); err != nil {
		return errs.New(errs.FailedPrecondition, "CA bundle: %w", err)
	}
	for _, b := range d.backends {
		if err := b.start(ctx); err != nil {
			return err
		}
	}
	if err := d.cfg.Network.Start(ctx); err != nil {
		return err
	}
	if err := d.cfg.Network.SweepLinks(); err != nil {
		return err
	}
	if err := d.recoverSnapshots(ctx); err != nil {
		return err
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
	return nil
}

// Run follows the ends of the sandboxes and keeps their firewall until ctx ends. The sandboxes go on.
func (d *Driver) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, b := range d.backends {
		g.Go(func() error { return b.follow(ctx) })
	}
	g.Go(func() error { return d.cfg.Network.Run(ctx) })
	return g.Wait()
}

// Close lets go of the agents, which wait for the next Driver.
func (d *Driver) Close() error {
	d.background.Wait()
	for _, b := range d.backends {
		b.close()
	}
	return d.hub.Close()
}

// Shutdown removes the network and every sandbox but paused ones, as `r server stop` does
// before it stops containerd.
func (d *Driver) Shutdown(ctx context.Context) error {
	d.background.Wait()
	all, err := d.List(ctx)
	if err != nil {
		return err
	}
	if err := d.DeleteAll(ctx, all); err != nil {
		return err
	}
	return errors.Join(d.cfg.Network.Stop(ctx), d.cgroups.Remove(), d.removeRunscRoot())
}

func (d *Driver) sandboxDir(elem ...string) string {
	return d.cfg.Instance.Socket(append([]string{"sandboxes"}, elem...)...)
}
