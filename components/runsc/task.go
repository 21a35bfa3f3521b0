package runsc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	apievents "github.com/containerd/containerd/api/events"
	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/typeurl/v2"

	"miren.dev/runtime/components/agentdriver"
	"miren.dev/runtime/components/containerd"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/fault"
)

// taskBackend is BackendContainerd: a task of containerd per sandbox, with the runsc shim.
//
//	shim        <run dir>/s/<id>.sandbox is its socket
//	runsc       <run dir>/runsc/<namespace>/
//	bundle      of containerd
type taskBackend struct{ d *Driver }

func (b *taskBackend) start(context.Context) error {
	if err := b.d.writeRunscConfig(); err != nil {
		return errs.New(errs.FailedPrecondition, "runsc configuration: %w", err)
	}
	return b.sweepSockets()
}

func (b *taskBackend) close() {}

// taskTimeout is how long a busy machine may take to start a sandbox.
const taskTimeout = 60 * time.Second

// create has containerd start the shim, which starts the sandbox, and then report the task
// as running, which it is since its creation.
func (b *taskBackend) create(ctx context.Context, cr *creation) error {
	c, err := b.d.client()
	if err != nil {
		return err
	}
	// Not given up half-way: containerd would clean up behind its answer, and take
	// away what a next attempt has made meanwhile.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), taskTimeout)
	defer cancel()
	if _, err := c.TaskService().Create(ctx, &tasks.CreateTaskRequest{ContainerID: taskID(cr.spec.ID), Rootfs: protoMounts(cr.mounts)}); err != nil {
		return containerd.Error(errgrpc.ToNative(err), "create task")
	}
	fault.Point("setup", "task-start", fault.Before)
	_, err = c.TaskService().Start(ctx, &tasks.StartRequest{ContainerID: taskID(cr.spec.ID)})
	fault.Point("setup", "task-start", fault.After)
	return containerd.Error(errgrpc.ToNative(err), "start task")
}

func protoMounts(mounts []mount.Mount) []*types.Mount {
	out := make([]*types.Mount, 0, len(mounts))
	for _, m := range mounts {
		out = append(out, &types.Mount{Type: m.Type, Source: m.Source, Target: m.Target, Options: m.Options})
	}
	return out
}

// canSnapshot refuses: the shim and containerd would have to agree on the state of a task that no containerd command
// has checkpointed, and containerd's own way archives the image into its content store, and extracts it for each restore.
func (b *taskBackend) canSnapshot() error {
	return errs.New(errs.FailedPrecondition, "sandboxes of backend %q have no snapshots", BackendContainerd).
		WithHint("set node.sandbox_backend to %q for sandboxes that are created from now on", BackendDirect)
}

func (b *taskBackend) save(context.Context, string, string) error { return b.canSnapshot() }

func (b *taskBackend) freeze(context.Context, string) error { return b.canSnapshot() }

func (b *taskBackend) thaw(context.Context, string) error { return b.canSnapshot() }

func (b *taskBackend) setHostname(context.Context, string, string) error { return b.canSnapshot() }

// remove kills the sandbox, has containerd delete its task and removes what that may
// have left.
func (b *taskBackend) remove(ctx context.Context, id string) error {
	c, err := b.d.client()
	if err != nil {
		return err
	}
	ts := c.TaskService()
	_, err = ts.Get(ctx, &tasks.GetRequest{ContainerID: taskID(id)})
	switch err := errgrpc.ToNative(err); {
	case err == nil:
		if err := b.deleteTask(ctx, ts, id); err != nil {
			return err
		}
	case !errdefs.IsNotFound(err):
		return containerd.Error(err, "look for task")
	}
	return b.scrub(ctx, id)
}

// killAttempts bounds how often a task that does not want to go is killed.
const killAttempts = 40

func (b *taskBackend) deleteTask(ctx context.Context, ts tasks.TasksClient, id string) error {
	var last error
	for range killAttempts {
		// Faster than runsc, and works when runsc does not.
		if err := b.d.killSandbox(id); err != nil {
			return err
		}
		fault.Point("teardown", "task-delete", fault.Before)
		_, err := ts.Delete(ctx, &tasks.DeleteTaskRequest{ContainerID: taskID(id)})
		if err = errgrpc.ToNative(err); err == nil || errdefs.IsNotFound(err) {
			return nil
		}
		last = err
		if !errdefs.IsFailedPrecondition(err) { // else it was not seen to have stopped yet
			_, kill := ts.Kill(ctx, &tasks.KillRequest{ContainerID: taskID(id), Signal: 9, All: true})
			last = errors.Join(err, errgrpc.ToNative(kill))
		}
		select {
		case <-ctx.Done():
			return containerd.Error(ctx.Err(), "delete task")
		case <-time.After(50 * time.Millisecond):
		}
	}
	return containerd.Error(last, "delete task")
}

// state returns the state of the sandbox's task.
func (b *taskBackend) state(ctx context.Context, id string) (*process, error) {
	c, err := b.d.client()
	if err != nil {
		return nil, err
	}
	res, err := c.TaskService().Get(ctx, &tasks.GetRequest{ContainerID: taskID(id)})
	if err = errgrpc.ToNative(err); errdefs.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, containerd.Error(err, "task of sandbox %s", id)
	}
	p := &process{Running: res.Process.Status != tasktypes.Status_STOPPED, Status: int(res.Process.ExitStatus)}
	if at := res.Process.ExitedAt; at != nil && at.AsTime().Year() > 1970 {
		p.EndedAt = at.AsTime()
	}
	return p, nil
}

// ended asks containerd to report the end.
func (b *taskBackend) ended(ctx context.Context, id string) (<-chan struct{}, error) {
	c, err := b.d.client()
	if err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	go func() {
		for ctx.Err() == nil {
			_, err := c.TaskService().Wait(ctx, &tasks.WaitRequest{ContainerID: taskID(id)})
			if err = errgrpc.ToNative(err); err == nil || errdefs.IsNotFound(err) {
				close(ended)
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
		}
	}()
	return ended, nil
}

// list returns the sandboxes for which there is a bundle or the socket of a shim.
func (b *taskBackend) list() ([]string, error) {
	bundles, err := b.bundles()
	if err != nil {
		return nil, err
	}
	sockets, err := b.shimSockets()
	return append(bundles, sockets...), err
}

// bundles returns the sandboxes for which containerd has a directory of a task.
func (b *taskBackend) bundles() ([]string, error) {
	names, err := dirNames(filepath.Dir(b.bundleDir("x")))
	var ids []string
	for _, n := range names {
		if id, ok := sandboxID(n); ok {
			ids = append(ids, id)
		}
	}
	return ids, err
}

// shimSockets returns the sandboxes for which there is the socket of a shim.
func (b *taskBackend) shimSockets() ([]string, error) {
	entries, err := os.ReadDir(b.d.cfg.Containerd.ShimSocketDir())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, errs.New(errs.Unavailable, "list sockets of shims: %w", err)
	}
	var ids []string
	for _, e := range entries {
		if id, ok := sandboxID(e.Name()); ok {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// follow turns containerd's events into notifications until ctx ends.
func (b *taskBackend) follow(ctx context.Context) error {
	return agentdriver.Follow(ctx, "containerd", b.d.logger, b.followOnce)
}

func (b *taskBackend) followOnce(ctx context.Context) error {
	c, err := b.d.client()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var filters []string
	for _, topic := range []string{"/tasks/exit", "/tasks/delete", "/containers/delete"} {
		filters = append(filters, fmt.Sprintf("namespace==%s,topic==%q", b.d.cfg.Containerd.Namespace(), topic))
	}
	events, failed := c.EventService().Subscribe(ctx, filters...)
	// Changes from before the subscription sent no event: look at every sandbox.
	b.d.notifyAll(ctx)
	for {
		select {
		case err := <-failed:
			return containerd.Error(err, "events")
		case e := <-events:
			v, err := typeurl.UnmarshalAny(e.Event)
			if err != nil {
				b.d.logger.Warn("event of containerd is not understood", "topic", e.Topic, "error", err)
				continue
			}
			var task string
			switch v := v.(type) {
			case *apievents.TaskExit:
				task = v.ContainerID
			case *apievents.TaskDelete:
				task = v.ContainerID
			case *apievents.ContainerDelete:
				task = v.ID
			}
			if id, ok := sandboxID(task); ok {
				b.d.Notify(id)
			}
		}
	}
}

// notifyAll is for when changes may have been missed.
func (d *Driver) notifyAll(ctx context.Context) {
	all, err := d.List(ctx)
	if err != nil {
		return // containerd is away again, and follow will call notifyAll again
	}
	for _, in := range all {
		d.Notify(in.ID)
	}
}
