package runsc

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"strings"

	runtimeoptions "github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"

	"miren.dev/runtime/components/agentdriver"
	"miren.dev/runtime/components/containerd"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/errs"
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
	BootID string         // of the machine when it was made
	// Backend made the sandbox; empty: BackendContainerd.
	Backend string
	// ShmBytes is the size of its /dev/shm; 0: what shmBytes returns for Spec.
	ShmBytes int64
	// Volumes: Spec.Mounts are volumes of its claim (volumes.go).
	Volumes bool
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

// record returns the record of a sandbox; NotFound if it has no container.
func (d *Driver) record(ctx context.Context, id string) (record, error) {
	c, err := d.client()
	if err != nil {
		return record{}, err
	}
	container, err := c.ContainerService().Get(ctx, taskID(id))
	if err != nil {
		return record{}, containerd.Error(err, "sandbox %s", id)
	}
	return recordOf(container)
}

// hasContainer says whether a sandbox has a container.
func (d *Driver) hasContainer(ctx context.Context, id string) (bool, error) {
	_, err := d.record(ctx, id)
	if errs.Is(err, errs.NotFound) {
		return false, nil
	}
	return err == nil || errs.Is(err, errs.Corrupt), err
}

// ofEarlierBoot says whether a sandbox has a container, and the machine was restarted since it was made.
func (d *Driver) ofEarlierBoot(ctx context.Context, id string) (bool, error) {
	rec, err := d.record(ctx, id)
	if errs.Is(err, errs.NotFound) || errs.Is(err, errs.Corrupt) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	boot, err := bootID()
	return rec.BootID != boot, err
}

// containers returns the containers of all sandboxes.
func (d *Driver) containers(ctx context.Context) ([]containers.Container, error) {
	c, err := d.client()
	if err != nil {
		return nil, err
	}
	all, err := c.ContainerService().List(ctx, "labels."+fmt.Sprintf("%q", labelSandbox))
	return all, containerd.Error(err, "list containers")
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
	return id, ok && agentdriver.CheckID(id) == nil
}

func snapshotKey(id string) string { return "sandbox-" + id }

func (d *Driver) client() (*client.Client, error) { return d.cfg.Containerd.Client() }

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
		Extensions:  map[string]typeurl.Any{extension: &record{Spec: kept, BootID: boot, Backend: cr.d.cfg.Backend, ShmBytes: cr.shmBytes(), Volumes: cr.takesVolumes()}},
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

var _ typeurl.Any = (*record)(nil)
