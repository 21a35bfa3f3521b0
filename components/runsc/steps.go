package runsc

import (
	"context"
	"net/netip"
	"time"

	"github.com/containerd/containerd/v2/core/mount"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"miren.dev/runtime/components/agent"
	"miren.dev/runtime/components/agentdriver"
	"miren.dev/runtime/components/cgroup"
	"miren.dev/runtime/components/containerd"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/components/network"
	"miren.dev/runtime/pkg/egress"
	"miren.dev/runtime/pkg/errs"
)

// connectTimeout is how long the agent may take to connect after the task was started.
const connectTimeout = 60 * time.Second

// warmTimeout bounds how long a sandbox that waits for a claim is warmed up.
const warmTimeout = 2 * time.Second

// creation is a sandbox that is being set up: the values that steps pass on to
// later ones.
type creation struct {
	d        *Driver
	spec     execution.Spec
	snapshot *snapshotRecord // from which it is restored; nil: it is new
	backend  backend         // not of a teardown

	image   *containerd.Image
	mounts  []mount.Mount
	network network.Attachment
	guest   agent.Guest
	helpers string // file by which what starts the sandbox joins its control group
	ca      []specs.Mount
	conn    *agent.Conn
}

// steps are all parts of a sandbox, in order; no other place lists them. A
// teardown uses only the id of the specification.
func (cr *creation) steps() []step {
	return []step{
		{name: "network", setup: cr.setupNetwork, teardown: cr.teardownNetwork},
		{name: "cgroup", setup: cr.setupCgroup, teardown: cr.teardownCgroup},
		{name: "rootfs", setup: cr.setupRootfs, teardown: cr.teardownRootfs},
		{name: "agent", after: []string{"rootfs"}, setup: cr.setupAgent, teardown: cr.teardownAgent},
		{name: "files", after: []string{"network", "rootfs"}, setup: cr.setupFiles, teardown: cr.teardownFiles},
		{name: "volumes", setup: cr.setupVolumes, teardown: cr.teardownVolumes},
		{name: "container", after: []string{"cgroup", "rootfs", "agent", "files"}, setup: cr.setupContainer, teardown: cr.teardownContainer},
		{name: "task", after: []string{"container", "cgroup", "network", "files", "volumes", "agent", "rootfs"}, setup: cr.setupTask, teardown: cr.removeTask},
		{name: "connect", after: []string{"task"}, setup: cr.setupConnection},
		{name: "identify", after: []string{"connect"}, setup: cr.setupIdentity},
		{name: "warm", after: []string{"identify"}, setup: cr.setupWarm},
		{name: "main", after: []string{"warm"}, setup: cr.setupMain},
	}
}

func (cr *creation) setupNetwork(ctx context.Context) (err error) {
	o := network.Options{Bridge: cr.spec.Network == execution.NetworkBridge, Policy: egress.Open(), Bandwidth: cr.spec.Bandwidth}
	if cr.spec.Egress != nil {
		o.Policy = *cr.spec.Egress
	}
	cr.network, err = cr.d.cfg.Network.Attach(ctx, cr.spec.ID, o)
	return err
}

func (cr *creation) teardownNetwork(ctx context.Context) error {
	return cr.d.cfg.Network.Detach(ctx, cr.spec.ID)
}

func (cr *creation) setupCgroup(context.Context) (err error) {
	if cr.helpers, err = cr.d.cgroups.HelpersFile(cr.spec.ID); err != nil {
		return err
	}
	return cr.d.cgroups.Create(cr.spec.ID, cgroup.Limits{
		CPUMillis:   cr.spec.CPUMillis,
		MemoryBytes: cr.bootMemory(),
		PIDs:        cr.spec.PIDs,
	})
}

// bootMemory is the limit of memory for which a sandbox is started. runsc reads
// the limit of the control group then, and what it finds is what programs see as
// the size of the memory: so the group has no overhead until the agent connects.
// A small one could not start that way, nor one that gets the memory of a
// snapshot.
func (cr *creation) bootMemory() int64 {
	bytes := cr.spec.MemoryBytes
	if bytes < 2*cgroup.Overhead || cr.snapshot != nil {
		return bytes
	}
	return bytes - cgroup.Overhead
}

func (cr *creation) teardownCgroup(ctx context.Context) error {
	return cr.d.cgroups.Delete(ctx, cr.spec.ID)
}

func (cr *creation) setupAgent(context.Context) (err error) {
	c, err := agentdriver.GuestConfig(cr.spec, cr.image.Config, cr.d.caEnv()...)
	if err != nil {
		return err
	}
	if cr.snapshot != nil {
		c.Binary = cr.snapshot.Agent
	}
	cr.guest, err = cr.d.hub.Prepare(cr.spec.ID, c)
	return err
}

func (cr *creation) teardownAgent(context.Context) error { return cr.d.hub.Remove(cr.spec.ID) }

func (cr *creation) setupTask(ctx context.Context) error { return cr.backend.create(ctx, cr) }

func (cr *creation) setupConnection(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	// A sandbox that ends at once never connects: do not wait for it.
	ended, err := cr.backend.ended(ctx, cr.spec.ID)
	if err != nil {
		return err
	}
	conn := make(chan error, 1)
	go func() {
		var err error
		cr.conn, err = cr.d.hub.Conn(ctx, cr.spec.ID)
		conn <- err
	}()
	select {
	case err := <-conn:
		if bytes := cr.spec.MemoryBytes; err == nil && bytes != cr.bootMemory() {
			err = cr.d.cgroups.Update(cr.spec.ID, cgroup.Limits{MemoryBytes: bytes})
		}
		return err
	case <-ended:
		cancel()
		<-conn
		return errs.New(errs.Internal, "the sandbox ended before its agent connected")
	}
}

func (cr *creation) setupMain(ctx context.Context) error {
	if !cr.spec.Idle {
		err := cr.conn.StartMain(ctx)
		if errs.Detail(err, "exit_code") != "" {
			err = nil // a command that cannot be started ends the sandbox like any other command: it counts as started
		}
		if err = cr.unlessEnded(err); err != nil {
			return err
		}
	}
	if err := cr.d.markStarted(cr.spec.ID, time.Now()); err != nil {
		return err
	}
	return cr.d.forgetPause(cr.spec.ID)
}

// setupWarm has a sandbox that waits for a claim execute something.
func (cr *creation) setupWarm(ctx context.Context) error {
	if !cr.spec.Warm {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, warmTimeout)
	defer cancel()
	if err := cr.conn.Warm(ctx); err != nil {
		cr.d.logger.Debug("the first process in a sandbox will be slow", "sandbox", cr.spec.ID, "error", err)
	}
	return nil
}

// shmBytes is the size of /dev/shm.
func (cr *creation) shmBytes() int64 {
	if cr.snapshot != nil {
		return cr.snapshot.ShmBytes
	}
	return shmBytes(cr.spec)
}

func (cr *creation) address() string {
	if cr.network.Address == (netip.Addr{}) {
		return ""
	}
	return cr.network.Address.String()
}
