package runsc

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"strings"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types"
	runtimeoptions "github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/typeurl/v2"

	"miren.dev/runtime/components/containerd"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/fault"
)

// Labels of our objects in containerd.
const (
	labelSandbox  = "dev.miren.runtime/sandbox"  // its id
	labelInstance = "dev.miren.runtime/instance" // the installation's id
	labelGCRoot   = "containerd.io/gc.root"      // a time: containerd keeps the snapshot until the driver deletes it
)

// extension is the key under which a container keeps our record.
const extension = "dev.miren.runtime/record"

// record holds the facts that a later Driver needs about a sandbox.
type record struct {
	Spec   execution.Spec // without Env, which has secrets
	BootID string         // boot id of the machine when it was made
}

func (r *record) GetTypeUrl() string { return "dev.miren.runtime/sandbox.record" }

func (r *record) GetValue() []byte {
	b, _ := json.Marshal(r) // strings and numbers: cannot fail
	return b
}

// recordOf reads the record of a container, empty if it has none.
func recordOf(c containers.Container) (record, error) {
	var r record
	e := c.Extensions[extension]
	if e == nil {
		return r, nil
	}
	if err := json.Unmarshal(e.GetValue(), &r); err != nil {
		return r, errs.New(errs.Corrupt, "record of sandbox %s: %w", c.ID, err)
	}
	return r, nil
}

func bootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b)), err
}

// taskSuffix ends the ids of our containers and tasks in containerd and runsc. runsc accepts the beginning of an id for
// the whole id: with the suffix no id is the beginning of another. It also tells our containers from BuildKit's.
const taskSuffix = ".sandbox"

func taskID(id string) string { return id + taskSuffix }

// sandboxID returns the id of the sandbox whose container or task this is, if it is ours.
func sandboxID(task string) (string, bool) {
	id, ok := strings.CutSuffix(task, taskSuffix)
	return id, ok && checkID(id) == nil
}

func snapshotKey(id string) string { return "sandbox-" + id }

func (d *Driver) client() (*client.Client, error) { return d.cfg.Containerd.Client() }

// setupRootfs makes a snapshot on top of the image's.
func (cr *creation) setupRootfs(ctx context.Context) error {
	c, err := cr.d.client()
	if err != nil {
		return err
	}
	s := c.SnapshotService(containerd.Snapshotter)
	key := snapshotKey(cr.spec.ID)
	labels := snapshots.WithLabels(map[string]string{
		labelSandbox:  cr.spec.ID,
		labelInstance: cr.d.cfg.Instance.ID,
		labelGCRoot:   time.Now().UTC().Format(time.RFC3339),
	})
	for attempt := range 3 {
		if cr.image, err = cr.d.cfg.Images.Resolve(ctx, cr.spec.Image); err != nil {
			return err
		}
		cr.mounts, err = s.Prepare(ctx, key, cr.image.ChainID, labels)
		switch {
		case errdefs.IsAlreadyExists(err): // left by an interrupted attempt
			if err := s.Remove(ctx, key); err != nil && !errdefs.IsNotFound(err) {
				return containerd.Error(err, "remove old root filesystem")
			}
		case errdefs.IsNotFound(err) && attempt == 0: // the image was collected since it was resolved
			cr.d.cfg.Images.Forget(cr.image.Digest)
		default:
			return containerd.Error(err, "prepare root filesystem from %s", cr.spec.Image)
		}
	}
	return containerd.Error(err, "prepare root filesystem from %s", cr.spec.Image)
}

func (cr *creation) teardownRootfs(ctx context.Context) error {
	c, err := cr.d.client()
	if err != nil {
		return err
	}
	err = c.SnapshotService(containerd.Snapshotter).Remove(ctx, snapshotKey(cr.spec.ID))
	if err != nil && !errdefs.IsNotFound(err) {
		return containerd.Error(err, "remove root filesystem")
	}
	return nil
}

func (cr *creation) setupContainer(ctx context.Context) error {
	c, err := cr.d.client()
	if err != nil {
		return err
	}
	boot, err := bootID()
	if err != nil {
		return err
	}
	spec, err := typeurl.MarshalAny(cr.ociSpec())
	if err != nil {
		return err
	}
	options, err := typeurl.MarshalAny(&runtimeoptions.Options{TypeUrl: optionsType, ConfigPath: cr.d.runscConfig()})
	if err != nil {
		return err
	}
	labels := maps.Clone(cr.spec.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	labels[labelSandbox], labels[labelInstance] = cr.spec.ID, cr.d.cfg.Instance.ID
	kept := cr.spec
	kept.Env = nil
	_, err = c.ContainerService().Create(ctx, containers.Container{
		ID:          taskID(cr.spec.ID),
		Labels:      labels,
		Image:       cr.image.Ref,
		Runtime:     containers.RuntimeInfo{Name: runtimeName, Options: options},
		Spec:        spec,
		Snapshotter: containerd.Snapshotter,
		SnapshotKey: snapshotKey(cr.spec.ID),
		Extensions:  map[string]typeurl.Any{extension: &record{Spec: kept, BootID: boot}},
	})
	return containerd.Error(err, "create container")
}

func (cr *creation) teardownContainer(ctx context.Context) error {
	c, err := cr.d.client()
	if err != nil {
		return err
	}
	if err := c.ContainerService().Delete(ctx, taskID(cr.spec.ID)); err != nil && !errdefs.IsNotFound(err) {
		return containerd.Error(err, "delete container")
	}
	return nil
}

// taskTimeout is how long a busy machine may take to start a sandbox.
const taskTimeout = 60 * time.Second

func (cr *creation) setupTask(ctx context.Context) error {
	c, err := cr.d.client()
	if err != nil {
		return err
	}
	// Do not give up half-way: containerd would clean up after its answer, and
	// remove what a next attempt has made meanwhile.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), taskTimeout)
	defer cancel()
	_, err = c.TaskService().Create(ctx, &tasks.CreateTaskRequest{ContainerID: taskID(cr.spec.ID), Rootfs: protoMounts(cr.mounts)})
	return containerd.Error(errgrpc.ToNative(err), "create task")
}

// startTask reports the task as started; it has run since it was created.
func (cr *creation) startTask(ctx context.Context) error {
	c, err := cr.d.client()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), taskTimeout)
	defer cancel()
	_, err = c.TaskService().Start(ctx, &tasks.StartRequest{ContainerID: taskID(cr.spec.ID)})
	return containerd.Error(errgrpc.ToNative(err), "start task")
}

func protoMounts(mounts []mount.Mount) []*types.Mount {
	out := make([]*types.Mount, 0, len(mounts))
	for _, m := range mounts {
		out = append(out, &types.Mount{Type: m.Type, Source: m.Source, Target: m.Target, Options: m.Options})
	}
	return out
}

// teardownTask kills the sandbox, makes containerd delete its task and removes
// what that may have left.
func (cr *creation) teardownTask(ctx context.Context) error {
	c, err := cr.d.client()
	if err != nil {
		return err
	}
	id := cr.spec.ID
	ts := c.TaskService()
	_, err = ts.Get(ctx, &tasks.GetRequest{ContainerID: taskID(id)})
	switch err := errgrpc.ToNative(err); {
	case err == nil:
		if err := cr.d.deleteTask(ctx, ts, id); err != nil {
			return err
		}
	case !errdefs.IsNotFound(err):
		return containerd.Error(err, "look for task")
	}
	return cr.d.scrub(ctx, id)
}

// killAttempts bounds how often teardownTask kills a task that does not end.
const killAttempts = 40

func (d *Driver) deleteTask(ctx context.Context, ts tasks.TasksClient, id string) error {
	var last error
	for range killAttempts {
		// Faster than runsc, and works when runsc does not.
		if err := d.killSandbox(id); err != nil {
			return err
		}
		fault.Point("teardown", "task-delete", fault.Before)
		_, err := ts.Delete(ctx, &tasks.DeleteTaskRequest{ContainerID: taskID(id)})
		if err = errgrpc.ToNative(err); err == nil || errdefs.IsNotFound(err) {
			return nil
		}
		last = err
		if !errdefs.IsFailedPrecondition(err) { // otherwise containerd has not seen its end yet
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

var _ typeurl.Any = (*record)(nil)
