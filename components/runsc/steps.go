package runsc

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/containerd/containerd/v2/core/mount"

	"miren.dev/runtime/components/agent"
	"miren.dev/runtime/components/cgroup"
	"miren.dev/runtime/components/containerd"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/components/network"
	"miren.dev/runtime/pkg/errs"
)

// connectTimeout is how long the agent may take to connect after the task was started.
const connectTimeout = 60 * time.Second

// build is a sandbox being made: what the steps hand on to each other.
type build struct {
	d    *Driver
	spec execution.Spec

	image   *containerd.Image
	mounts  []mount.Mount
	network network.Attachment
	guest   agent.Guest
	conn    *agent.Conn
}

// steps are all parts of a sandbox, in order: this list is the one place that
// says what there is. For a teardown only the id of the specification matters.
func (b *build) steps() []step {
	return []step{
		{name: "network", setup: b.setupNetwork, teardown: b.teardownNetwork},
		{name: "cgroup", setup: b.setupCgroup, teardown: b.teardownCgroup},
		{name: "rootfs", setup: b.setupRootfs, teardown: b.teardownRootfs},
		{name: "agent", after: []string{"rootfs"}, setup: b.setupAgent, teardown: b.teardownAgent},
		{name: "files", after: []string{"network"}, setup: b.setupFiles, teardown: b.teardownFiles},
		{name: "container", after: []string{"rootfs", "agent", "files"}, setup: b.setupContainer, teardown: b.teardownContainer},
		{name: "task", after: []string{"container", "cgroup", "network", "files", "agent", "rootfs"}, setup: b.setupTask, teardown: b.teardownTask},
		{name: "start", after: []string{"task"}, setup: b.startTask},
		{name: "connect", after: []string{"task"}, setup: b.setupConnection},
		{name: "main", after: []string{"connect"}, setup: b.setupMain},
	}
}

func (b *build) setupNetwork(ctx context.Context) (err error) {
	b.network, err = b.d.cfg.Network.Attach(ctx, b.spec.ID, b.spec.Network == execution.NetworkBridge)
	return err
}

func (b *build) teardownNetwork(ctx context.Context) error {
	return b.d.cfg.Network.Detach(ctx, b.spec.ID)
}

func (b *build) setupCgroup(context.Context) error {
	return b.d.cgroups.Create(b.spec.ID, cgroup.Limits{
		CPUMillis:   b.spec.CPUMillis,
		MemoryBytes: b.spec.MemoryBytes,
		PIDs:        b.spec.PIDs,
	})
}

func (b *build) teardownCgroup(ctx context.Context) error {
	return b.d.cgroups.Delete(ctx, b.spec.ID)
}

func (b *build) setupAgent(context.Context) (err error) {
	b.guest, err = b.d.hub.Prepare(b.spec.ID, b.d.guestConfig(b.spec, b.image.Config))
	return err
}

func (b *build) teardownAgent(context.Context) error { return b.d.hub.Remove(b.spec.ID) }

func (b *build) setupConnection(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	// A sandbox that ends at once never connects: do not wait for it.
	ended, err := b.d.watchEnd(ctx, b.spec.ID)
	if err != nil {
		return err
	}
	conn := make(chan error, 1)
	go func() {
		var err error
		b.conn, err = b.d.hub.Conn(ctx, b.spec.ID)
		conn <- err
	}()
	select {
	case err := <-conn:
		return err
	case <-ended:
		cancel()
		<-conn
		return errs.New(errs.Internal, "the sandbox ended before its agent connected")
	}
}

func (b *build) setupMain(ctx context.Context) error {
	if !b.spec.Idle {
		if err := b.conn.StartMain(ctx); err != nil && errs.Detail(err, "exit_code") == "" {
			return err
		}
	}
	// A command that cannot be started is an end of the sandbox like any other: it was started.
	return b.d.markStarted(b.spec.ID, time.Now())
}

func (b *build) address() string {
	if b.network.Address == (netip.Addr{}) {
		return ""
	}
	return b.network.Address.String()
}

// mergeEnv joins environments; the last to set a variable wins.
func mergeEnv(envs ...[]string) []string {
	var out []string
	index := map[string]int{}
	for _, e := range slices.Concat(envs...) {
		name := envName(e)
		if i, ok := index[name]; ok {
			out[i] = e
			continue
		}
		index[name] = len(out)
		out = append(out, e)
	}
	return out
}
