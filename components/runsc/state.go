package runsc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/snapshots"

	"miren.dev/runtime/components/agentdriver"
	"miren.dev/runtime/components/containerd"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/atomicfile"
	"miren.dev/runtime/pkg/errs"
)

// startedFile says that the main process was started; it contains the time.
const startedFile = "started"

func (d *Driver) markStarted(id string, at time.Time) error {
	// Without sync: a start should be fast, and no sandbox outlives a crash of
	// the machine.
	err := atomicfile.Write(d.sandboxDir(id, startedFile), []byte(at.UTC().Format(time.RFC3339Nano)), 0o644, atomicfile.Volatile)
	if err != nil {
		return errs.New(errs.FailedPrecondition, "record start: %w", err)
	}
	return nil
}

// startedAt returns the zero time if the main process was not started. The
// existence of the file counts, whatever it contains.
func (d *Driver) startedAt(id string) (time.Time, error) {
	b, err := os.ReadFile(d.sandboxDir(id, startedFile))
	if errors.Is(err, os.ErrNotExist) {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, errs.New(errs.Unavailable, "start of sandbox %s: %w", id, err)
	}
	at, err := time.Parse(time.RFC3339Nano, string(b))
	if err == nil {
		return at, nil
	}
	st, err := os.Stat(d.sandboxDir(id, startedFile))
	if err != nil {
		return time.Time{}, errs.New(errs.Unavailable, "start of sandbox %s: %w", id, err)
	}
	return st.ModTime(), nil
}

// Get returns the state of a sandbox on the machine.
func (d *Driver) Get(ctx context.Context, id string) (execution.Instance, error) {
	if err := agentdriver.CheckID(id); err != nil {
		return execution.Instance{}, err
	}
	if paused, err := d.pausedInstance(ctx, id); err != nil || paused != nil {
		if err != nil {
			return execution.Instance{}, err
		}
		return *paused, nil
	}
	in, err := d.contained(ctx, id)
	if errs.Is(err, errs.NotFound) {
		return d.remains(ctx, id)
	}
	return in, err
}

// backendOf returns the backend by which a sandbox was made.
func (d *Driver) backendOf(ctx context.Context, id string) (backend, error) {
	rec, err := d.record(ctx, id)
	if err != nil {
		return nil, err
	}
	return d.backend(rec.Backend)
}

// contained returns the state of a sandbox that has a container, else NotFound.
func (d *Driver) contained(ctx context.Context, id string) (execution.Instance, error) {
	c, err := d.client()
	if err != nil {
		return execution.Instance{}, err
	}
	container, err := c.ContainerService().Get(ctx, taskID(id))
	if err != nil {
		return execution.Instance{}, containerd.Error(err, "sandbox %s", id)
	}
	return d.inspect(ctx, id, container)
}

// answers says whether the agent of a sandbox is connected, without waiting for it.
func (d *Driver) answers(id string) bool {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := d.hub.Conn(ctx, id)
	return err == nil
}

// remains returns an instance if any part exists of a sandbox without a
// container.
func (d *Driver) remains(ctx context.Context, id string) (execution.Instance, error) {
	ids, err := d.leftovers(ctx)
	if err != nil {
		return execution.Instance{}, err
	}
	if !slices.Contains(ids, id) {
		return execution.Instance{}, errs.New(errs.NotFound, "sandbox %s is not on this node", id)
	}
	return execution.Instance{ID: id, Phase: execution.Creating}, nil
}

// inspect returns the state of a sandbox with a container.
func (d *Driver) inspect(ctx context.Context, id string, container containers.Container) (execution.Instance, error) {
	in := execution.Instance{ID: id, Phase: execution.Creating}
	rec, damage := recordOf(container) // damage ends the sandbox: it cannot continue
	if at, err := d.cfg.Network.Get(id); err == nil && at.Address.IsValid() {
		in.Address = at.Address.String()
	} else if err != nil && !errs.Is(err, errs.NotFound) {
		return in, err
	}
	var err error
	if in.StartedAt, err = d.startedAt(id); err != nil {
		return in, err
	}
	exit, err := d.hub.Exit(id) // a damaged record is a crash
	if err == nil {
		if exit.Cause == execution.CauseExit && exit.Code == killed {
			exit = d.orOOM(id, exit)
		}
		in.Phase, in.Exit = execution.Exited, &exit
		return in, nil
	}
	if !errs.Is(err, errs.NotFound) {
		return in, err
	}
	if damage == nil && rec.Spec.Network == execution.NetworkBridge && in.Address == "" && !in.StartedAt.IsZero() {
		damage = errs.New(errs.Corrupt, "the sandbox has lost its address")
	}
	if damage != nil {
		return d.End(in, execution.Exit{Cause: execution.CauseCrash, Code: 255, At: time.Now(), Message: damage.Error()})
	}
	if !in.StartedAt.IsZero() && d.answers(id) {
		// The sandbox runs. When it ends, the connection breaks, which is a change to inspect.
		in.Phase = execution.Running
		return in, nil
	}
	b, err := d.backend(rec.Backend)
	if err != nil {
		return in, err
	}
	state, err := b.state(ctx, id)
	if err != nil {
		return in, err
	}
	boot, err := bootID()
	if err != nil {
		return in, errs.New(errs.Unavailable, "boot id: %w", err)
	}
	alive := state != nil && state.Running
	switch {
	case rec.BootID != boot:
		// It is not known any more whether its process was started. The sandbox
		// ends either way, and must not count as one that never existed.
		return d.End(in, execution.Exit{Cause: execution.CauseCrash, Code: 255, At: time.Now(), Message: "the machine was restarted"})
	case alive && !in.StartedAt.IsZero():
		in.Phase = execution.Running
		return in, nil
	case alive || in.StartedAt.IsZero():
		return in, nil
	}
	return d.End(in, d.cause(in.ID, state))
}

// cause says how a sandbox ended whose agent said nothing.
func (d *Driver) cause(id string, state *process) execution.Exit {
	exit := execution.Exit{Cause: execution.CauseCrash, Code: 255, At: time.Now(), Message: "the sandbox's processes vanished"}
	if state != nil {
		if !state.EndedAt.IsZero() {
			exit.At = state.EndedAt
		}
		exit.Message = "the sandbox's kernel ended unexpectedly"
		if state.Status >= 0 {
			exit.Code = state.Status
			exit.Message += fmt.Sprintf(" (status %d)", state.Status)
		}
	}
	return d.orOOM(id, exit)
}

// killed is the exit code of a program that SIGKILL ended, and that a shell returns for one.
const killed = 137

// orOOM returns how a sandbox ended: by its memory limit if the kernel has killed a process of its control group. That
// may have been a process of the program, and not the sandbox's kernel: then the agent reports the SIGKILL.
func (d *Driver) orOOM(id string, exit execution.Exit) execution.Exit {
	usage, err := d.cgroups.Usage(id)
	if err == nil && usage.OOMKills > 0 {
		exit.Cause, exit.Code = execution.CauseOOM, killed
		exit.Message = "the memory limit was reached"
	}
	return exit
}

// List returns all sandboxes of which any part is on the machine.
func (d *Driver) List(ctx context.Context) ([]execution.Instance, error) {
	// Read leftovers first: a sandbox that is created meanwhile has a
	// container.
	ids, err := d.leftovers(ctx)
	if err != nil {
		return nil, err
	}
	all, err := d.containers(ctx)
	if err != nil {
		return nil, err
	}
	out, err := d.listPaused(ctx)
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	for _, in := range out {
		seen[in.ID] = true
	}
	for _, container := range all {
		id, ok := sandboxID(container.ID)
		if !ok || seen[id] {
			continue
		}
		seen[id] = true
		in, err := d.inspect(ctx, id, container)
		if ctx.Err() != nil {
			return nil, err
		}
		if err != nil {
			in.Phase, in.Err = execution.Unknown, err
		}
		out = append(out, in)
	}
	for _, id := range ids {
		if !seen[id] {
			out = append(out, execution.Instance{ID: id, Phase: execution.Creating})
		}
	}
	return out, nil
}

// listPaused returns the paused sandboxes.
func (d *Driver) listPaused(ctx context.Context) ([]execution.Instance, error) {
	ids, err := d.pausedIDs()
	if err != nil {
		return nil, err
	}
	var out []execution.Instance
	for _, id := range ids {
		in, err := d.pausedInstance(ctx, id)
		if err != nil {
			return nil, err
		}
		if in != nil {
			out = append(out, *in)
		}
	}
	return out, nil
}

// leftovers returns the ids of sandboxes with parts other than a container.
func (d *Driver) leftovers(ctx context.Context) ([]string, error) {
	var ids []string
	add := func(more []string, err error) error {
		ids = append(ids, more...)
		return err
	}
	err := errors.Join(
		add(d.cfg.Network.List()),
		add(d.cgroups.List()),
		add(d.hub.IDs()),
		add(dirNames(d.sandboxDir())),
		add(dirNames(d.volumesDir())),
		add(d.backends[BackendDirect].list()),
		add(d.backends[BackendContainerd].list()),
	)
	if err != nil {
		return nil, err
	}
	c, err := d.client()
	if err != nil {
		return nil, err
	}
	err = c.SnapshotService(containerd.Snapshotter).Walk(ctx, func(_ context.Context, i snapshots.Info) error {
		ids = append(ids, i.Labels[labelSandbox])
		return nil
	}, "labels."+fmt.Sprintf("%q", labelSandbox))
	if err != nil {
		return nil, containerd.Error(err, "list snapshots")
	}
	slices.Sort(ids)
	ids = slices.Compact(ids)
	return slices.DeleteFunc(ids, func(id string) bool { return agentdriver.CheckID(id) != nil }), nil
}

func dirNames(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, errs.New(errs.Unavailable, "list %s: %w", dir, err)
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() && !strings.HasPrefix(e.Name(), ".") {
			names = append(names, e.Name())
		}
	}
	return names, nil
}
