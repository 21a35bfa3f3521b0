// Package kubernetes is the execution.Driver that runs sandboxes as pods of a
// Kubernetes cluster, the agent (components/agent) as PID 1 in each. The pods'
// RuntimeClass is expected to be gVisor's.
//
// A sandbox has these parts:
//
//	pod      rt-<instance>-<id>, with the labels below
//	agent    components/agent on this machine: socket, configuration, copy of the log
//	record   <state>/kubernetes/<id>.json: the specification without the environment, the pod's UID
//
// An init container of the agent's image copies the agent into a volume of the pod.
// The pod cannot reach this machine, nor need this machine reach the pod: the
// driver executes a relay in the pod's container, through the API server, and
// connects it with the agent's socket of components/agent (relay.go). The agent's
// token authenticates it there, as it does on this machine. The relay also sends the
// log of the main process, which the driver keeps as the agent of a local sandbox
// would write it.
//
// The API server is the source of the pods' state. A pod that vanished without
// Delete is a sandbox that ended: CauseCrash. An API server that does not answer is
// Unavailable, and nothing changes.
//
// Every object carries the label LabelInstance with the id of the installation; no
// other object is changed or deleted.
//
// Lock order: the lock of one id (Driver.locks); Driver.mu is held for moments only.
package kubernetes

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"miren.dev/runtime/components/agent"
	"miren.dev/runtime/components/agentdriver"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/instance"
)

// Labels of every object.
const (
	LabelInstance = "runtime.miren.dev/instance" // id of the installation
	LabelSandbox  = "runtime.miren.dev/sandbox"  // id of the sandbox
)

// killWait is how long the agent may take to report a killed main process.
const killWait = 10 * time.Second

// pushAgentTimeout bounds the push of the agent's image.
const pushAgentTimeout = 2 * time.Minute

// DefaultStartTimeout is Config.StartTimeout when it is 0.
const DefaultStartTimeout = 2 * time.Minute

// Config of a Driver.
type Config struct {
	Instance *instance.Instance
	// BinDir has runtime-agent, the same as Images.Agent.
	BinDir string
	// Cluster is how the API server is reached.
	Cluster *rest.Config
	// Namespace must exist. Everything is made in it.
	Namespace string
	// RuntimeClass of the pods; empty: the cluster's default, which is no isolation by gVisor.
	RuntimeClass string
	// PullSecret is the name of a secret of the namespace with which nodes pull images; empty: they need none.
	PullSecret string
	Images     Images
	// StartTimeout bounds how long a pod may take to be scheduled, pull its image and start; 0: DefaultStartTimeout.
	StartTimeout time.Duration
	Logger       *slog.Logger
}

// Image is an image that the cluster can pull.
type Image struct {
	Ref    string              // by which nodes pull it
	Config ocispec.ImageConfig // what it is configured to run: Kubernetes does not say
}

// Images puts images where the cluster pulls them.
type Images interface {
	// Image returns NotFound if there is no such image.
	Image(ctx context.Context, ref string) (Image, error)
	// Agent returns the reference of an image with /runtime-agent.
	Agent(ctx context.Context) (string, error)
	// Forget says that the cluster could not pull the image with this reference.
	Forget(ref string)
}

// Driver implements execution.Driver.
type Driver struct {
	*agentdriver.Guests
	agentdriver.Changes
	agentdriver.Lifecycle
	agentdriver.NoSnapshots
	agentdriver.OpenNetwork

	cfg      Config
	logger   *slog.Logger
	api      *clients
	locks    agentdriver.KeyLock
	stopped  context.Context // ends with Close
	stop     context.CancelFunc
	agent    string      // the agent's image; set by Start
	unpulled atomic.Bool // the cluster could not pull an image; it may have been that of the agent
	relaying sync.WaitGroup

	mu     sync.Mutex
	relays map[string]*relay
}

var _ execution.Driver = (*Driver)(nil)

// New returns a driver; it does no IO.
func New(cfg Config) (*Driver, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	cfg.StartTimeout = cmp.Or(cfg.StartTimeout, DefaultStartTimeout)
	switch {
	case cfg.Namespace == "":
		return nil, errs.New(errs.InvalidArgument, "no namespace for sandboxes is configured")
	}
	cluster := rest.CopyConfig(cfg.Cluster)
	cluster.QPS, cluster.Burst = 50, 100
	cluster.UserAgent = "runtime/" + cfg.Instance.ID
	api, err := newClients(cluster, cfg.Namespace)
	if err != nil {
		return nil, err
	}
	cfg.Cluster = cluster
	d := &Driver{
		cfg: cfg, logger: cfg.Logger, api: api, relays: map[string]*relay{},
		NoSnapshots: agentdriver.NoSnapshots{Refusal: errNoSnapshots},
		OpenNetwork: agentdriver.OpenNetwork{Refusal: errNoPolicies},
	}
	d.stopped, d.stop = context.WithCancel(context.Background())
	hub := agent.NewHub(agent.HubConfig{
		Dir:       d.hubDir(),
		LogDir:    d.logDir(),
		AgentPath: filepath.Join(cfg.BinDir, "runtime-agent"),
		AgentDir:  cfg.Instance.State("agents"),
		Logger:    cfg.Logger,
		Notify:    d.Notify,
		Exceeded: func(id string) {
			ctx, cancel := context.WithTimeout(d.stopped, deleteTimeout)
			defer cancel()
			d.EndExceeded(ctx, id)
		},
	})
	d.Guests = &agentdriver.Guests{Hub: hub, State: d.Get}
	d.Lifecycle = agentdriver.NewLifecycle(d.Guests, &d.Changes, &d.locks, agentdriver.Steps{
		Kill:     d.kill,
		Teardown: d.teardown,
		Started: func(id string) bool {
			rec, _ := d.record(id)
			return rec.Started
		},
		KillWait: killWait,
	}, d.logger)
	d.Made = func(_ context.Context, id string) (execution.Spec, error) {
		rec, err := d.record(id)
		return rec.Spec, err
	}
	return d, nil
}

// client-go prints, among others, every connection that ends. Errors of calls are
// returned anyway. This must be set before client-go is used.
func init() { klog.SetSlogLogger(slog.New(slog.DiscardHandler)) }

func (d *Driver) hubDir(elem ...string) string {
	return d.cfg.Instance.Socket(append([]string{"agent"}, elem...)...)
}

func (d *Driver) logDir(elem ...string) string {
	return d.cfg.Instance.State(append([]string{"logs", "sandboxes"}, elem...)...)
}

// Start checks what the cluster permits, puts the agent's image where it is pulled,
// writes the network policy, and takes over the existing sandboxes.
func (d *Driver) Start(ctx context.Context) error {
	if err := os.MkdirAll(d.recordDir(), 0o700); err != nil {
		return errs.New(errs.FailedPrecondition, "sandbox directory: %w", err)
	}
	if err := d.check(ctx); err != nil {
		return err
	}
	pushing, cancel := context.WithTimeout(ctx, pushAgentTimeout)
	defer cancel()
	var err error
	if d.agent, err = d.cfg.Images.Agent(pushing); err != nil {
		return errs.Wrap(err, "image of the agent")
	}
	if err := d.writePolicy(ctx); err != nil {
		return err
	}
	records, err := d.records()
	if err != nil {
		return err
	}
	for _, id := range records {
		if err := d.Hub.Attach(id); err != nil && !errs.Is(err, errs.NotFound) {
			d.logger.Warn("cannot listen for the agent of a sandbox", "sandbox", id, "error", err)
			continue
		}
		if r, err := d.record(id); err == nil && r.UID != "" {
			d.startRelay(id)
		}
	}
	return nil
}

// kill ends a sandbox whose agent does not answer.
func (d *Driver) kill(ctx context.Context, id string) error {
	d.stopRelay(id)
	return d.deletePod(ctx, id)
}

// Run follows the pods until ctx ends. The sandboxes go on.
func (d *Driver) Run(ctx context.Context) error { return d.follow(ctx) }

// Close lets go of the agents, which wait for the next Driver.
func (d *Driver) Close() error {
	d.stop()
	err := d.Hub.Close()
	d.relaying.Wait()
	return err
}

// Shutdown removes every sandbox and the network policy.
func (d *Driver) Shutdown(ctx context.Context) error {
	all, err := d.List(ctx)
	if err != nil {
		return err
	}
	return errors.Join(d.DeleteAll(ctx, all), d.deletePolicy(ctx))
}
