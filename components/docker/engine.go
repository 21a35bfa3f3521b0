package docker

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/moby/moby/api/types/events"
	"github.com/moby/moby/client"

	"miren.dev/runtime/components/agentdriver"
	"miren.dev/runtime/components/containerd"
	"miren.dev/runtime/pkg/errs"
)

// callTimeout bounds calls of the engine that no caller waits for, and those that must not be given up half-way.
const callTimeout = 60 * time.Second

func newEngine(host string) (*client.Client, error) {
	if path, ok := strings.CutPrefix(host, "unix://"); !ok || !filepath.IsAbs(path) {
		return nil, errs.New(errs.InvalidArgument, "docker.host: %q is not unix:// and the absolute path of a socket", host).
			WithHint("the engine must run on this machine, because it mounts the socket of each sandbox's agent")
	}
	c, err := client.New(client.WithHost(host), client.WithUserAgent("miren-runtime"))
	if err != nil {
		return nil, errs.New(errs.InvalidArgument, "docker.host: %w", err)
	}
	return c, nil
}

// engineError gives an error of the engine its class.
func engineError(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	if client.IsErrConnectionFailed(err) {
		return errs.New(errs.Unavailable, "%s: the Docker engine does not answer: %w", fmt.Sprintf(format, args...), err)
	}
	return containerd.Error(err, format, args...) // the engine's errors have the classes of containerd's
}

// engineRuntime is what a runtime's registration says.
type engineRuntime struct {
	gvisor    bool
	diskBytes int64 // that each sandbox may write to its root file system; 0: no bound is known
}

// checkEngine reads how the engine runs containers, and refuses what would not isolate a sandbox.
func (d *Driver) checkEngine(ctx context.Context) error {
	res, err := d.engine.Info(ctx, client.InfoOptions{})
	if err != nil {
		return engineError(err, "ask the Docker engine at %s", d.cfg.Host)
	}
	name := d.cfg.Runtime
	r, ok := res.Info.Runtimes[name]
	if !ok {
		return errs.New(errs.FailedPrecondition, "the Docker engine has no runtime %q", name).
			WithHint("register gVisor in the engine's daemon.json as docs/docker.md says, or name another runtime (docker.runtime)")
	}
	if filepath.Base(r.Path) != "runsc" {
		if !d.cfg.SharedKernel {
			return errs.New(errs.FailedPrecondition, "runtime %q of the Docker engine is %q, not gVisor's runsc", name, strings.TrimSpace(r.Path+" "+r.Type)).
				WithHint("register runsc by its path as docs/docker.md says; docker.shared_kernel permits sandboxes that share the machine's kernel")
		}
		d.logger.Warn("sandboxes share the kernel of the machine, and nothing bounds their disk", "runtime", name)
		d.runtime = engineRuntime{}
		return nil
	}
	d.runtime, err = runscRuntime(r.Args)
	return errs.Wrap(err, "runtime %q of the Docker engine", name)
}

// runscRuntime reads the arguments that the engine gives to runsc. FailedPrecondition if one is missing that sandboxes need.
func runscRuntime(args []string) (engineRuntime, error) {
	flags := map[string]string{}
	for _, a := range args {
		name, value, _ := strings.Cut(strings.TrimLeft(a, "-"), "=")
		flags[name] = value
	}
	missing := func(flag, why string) error {
		return errs.New(errs.FailedPrecondition, "its runtimeArgs lack %s, %s", flag, why).
			WithHint("add it to the engine's daemon.json as docs/docker.md says, and restart the engine")
	}
	r := engineRuntime{gvisor: true}
	if v := flags["host-uds"]; v != "open" && v != "all" {
		return r, missing("--host-uds=open", "with which the agent reaches its socket")
	}
	if flags["in-sandbox-cgroup"] != "v2" {
		return r, missing("--in-sandbox-cgroup=v2", "by which the agent limits processes")
	}
	overlay, size, ok := strings.Cut(flags["overlay2"], ",size=")
	if overlay != "root:self" || !ok {
		return r, missing("--overlay2=root:self,size=10g", "which bounds what a sandbox writes to the disk")
	}
	var err error
	if r.diskBytes, err = parseSize(size); err != nil {
		return r, missing("a size in --overlay2=root:self,size=10g", "which bounds what a sandbox writes to the disk")
	}
	return r, nil
}

// parseSize reads a size as the kernel's tmpfs does: a number, and k, m, g or t.
func parseSize(s string) (int64, error) {
	s = strings.ToLower(s)
	shift := 0
	if n := len(s); n > 0 {
		if i := strings.IndexByte("kmgt", s[n-1]); i >= 0 {
			s, shift = s[:n-1], 10*(i+1)
		}
	}
	v, err := strconv.ParseInt(s, 10, 64)
	if err != nil || v <= 0 || v > (1<<62)>>shift {
		return 0, errs.New(errs.InvalidArgument, "%q is no size", s)
	}
	return v << shift, nil
}

// follow turns the engine's events into notifications until ctx ends.
func (d *Driver) follow(ctx context.Context) error {
	return agentdriver.Follow(ctx, "Docker engine", d.logger, d.followOnce)
}

func (d *Driver) followOnce(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events := d.engine.Events(ctx, client.EventsListOptions{Filters: d.ours().Add("type", string(events.ContainerEventType)).Add("event", "die", "oom", "destroy")})
	// Changes from before the subscription sent no event: look at every sandbox.
	if all, err := d.List(ctx); err == nil {
		for _, in := range all {
			d.Notify(in.ID)
		}
	}
	for {
		select {
		case err := <-events.Err:
			return engineError(err, "events")
		case m := <-events.Messages:
			if id := m.Actor.Attributes[labelSandbox]; id != "" {
				d.Notify(id)
			}
		}
	}
}
