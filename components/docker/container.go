package docker

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"path/filepath"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"miren.dev/runtime/components/agent"
	"miren.dev/runtime/components/agentdriver"
	"miren.dev/runtime/components/cgroup"
	"miren.dev/runtime/components/execution"
	"miren.dev/runtime/pkg/errs"
)

// Labels of our containers.
const (
	labelSandbox  = "dev.miren.runtime/sandbox"  // its id
	labelInstance = "dev.miren.runtime/instance" // the installation's id
	labelSpec     = "dev.miren.runtime/spec"     // the specification as JSON, without Env, which has secrets
)

// defaultOpenFiles is the limit of open files of one process.
const defaultOpenFiles = 1 << 16

func (d *Driver) containerName(id string) string { return d.cfg.Instance.Name("") + "-" + id }

// ours selects our containers.
func (d *Driver) ours() client.Filters {
	return make(client.Filters).Add("label", labelInstance+"="+d.cfg.Instance.ID)
}

// inspectContainer returns a sandbox's container; NotFound if it has none.
func (d *Driver) inspectContainer(ctx context.Context, id string) (container.InspectResponse, error) {
	res, err := d.engine.ContainerInspect(ctx, d.containerName(id), client.ContainerInspectOptions{})
	if err != nil {
		return container.InspectResponse{}, engineError(err, "sandbox %s", id)
	}
	if c := res.Container; c.Config == nil || c.Config.Labels[labelInstance] != d.cfg.Instance.ID || c.Config.Labels[labelSandbox] != id {
		return container.InspectResponse{}, errs.New(errs.AlreadyExists, "the Docker engine has a container %s that is not of this installation", d.containerName(id))
	}
	return res.Container, nil
}

// madeWith returns the specification of a sandbox, without its environment.
func (d *Driver) madeWith(ctx context.Context, id string) (execution.Spec, error) {
	c, err := d.inspectContainer(ctx, id)
	if err != nil {
		return execution.Spec{}, err
	}
	return specOf(id, c.Config.Labels)
}

func specOf(id string, labels map[string]string) (s execution.Spec, err error) {
	if err := json.Unmarshal([]byte(labels[labelSpec]), &s); err != nil {
		return s, errs.New(errs.Corrupt, "specification of sandbox %s: %w", id, err)
	}
	return s, nil
}

// guestConfig merges the image's configuration and the specification.
func (d *Driver) guestConfig(s execution.Spec, im ocispec.ImageConfig) (agent.GuestConfig, error) {
	g, err := agentdriver.GuestConfig(s, im)
	if !d.runtime.gvisor {
		g.PIDs = 0 // the engine limits them
	}
	return g, err
}

// createContainer makes the container of a sandbox. It does not start it.
func (d *Driver) createContainer(ctx context.Context, s execution.Spec, im image, guest agent.Guest) error {
	kept := s
	kept.Env = nil
	record, err := json.Marshal(kept)
	if err != nil {
		return errs.New(errs.Internal, "specification of sandbox %s: %w", s.ID, err)
	}
	labels := map[string]string{}
	for k, v := range s.Labels {
		labels["dev.miren.runtime/label/"+k] = v
	}
	labels[labelSandbox], labels[labelInstance], labels[labelSpec] = s.ID, d.cfg.Instance.ID, string(record)
	o := client.ContainerCreateOptions{
		Name: d.containerName(s.ID),
		Config: &container.Config{
			Image: im.id, Hostname: hostname(s), User: "0:0", WorkingDir: "/", Env: guest.Env, Entrypoint: guest.Args,
			Labels: labels, Healthcheck: &container.HealthConfig{Test: []string{"NONE"}},
		},
		HostConfig: d.hostConfig(s, im, guest),
	}
	if s.Network == execution.NetworkBridge {
		o.NetworkingConfig = &network.NetworkingConfig{EndpointsConfig: map[string]*network.EndpointSettings{d.cfg.Network: {}}}
	}
	_, err = d.engine.ContainerCreate(ctx, o)
	if errdefs.IsConflict(err) { // of an interrupted attempt
		if err := d.removeContainer(ctx, s.ID); err != nil {
			return err
		}
		_, err = d.engine.ContainerCreate(ctx, o)
	}
	return engineError(err, "create container")
}

func (d *Driver) hostConfig(s execution.Spec, im image, guest agent.Guest) *container.HostConfig {
	open := int64(cmp.Or(s.OpenFiles, defaultOpenFiles))
	noInit := false
	c := &container.HostConfig{
		Runtime:        d.cfg.Runtime,
		NetworkMode:    container.NetworkMode("none"),
		LogConfig:      container.LogConfig{Type: "none"}, // the agent keeps the log
		RestartPolicy:  container.RestartPolicy{Name: container.RestartPolicyDisabled},
		CapDrop:        []string{"ALL"},
		CapAdd:         d.capabilities(guest),
		SecurityOpt:    []string{"no-new-privileges"},
		IpcMode:        container.IPCModePrivate,
		CgroupnsMode:   container.CgroupnsModePrivate,
		ReadonlyRootfs: s.ReadOnlyRoot,
		ShmSize:        shmBytes(s),
		Init:           &noInit,
		Resources: container.Resources{
			NanoCPUs: s.CPUMillis * 1e6, Memory: d.bootMemory(s), MemorySwap: swapLimit(s),
			Ulimits: []*container.Ulimit{{Name: "nofile", Soft: open, Hard: open}, {Name: "core"}},
		},
		Tmpfs: map[string]string{},
	}
	if d.runtime.gvisor {
		// gVisor's own hierarchy, not the machine's: in the root of it the agent makes the group that limits processes.
		c.CgroupnsMode = container.CgroupnsModeHost
	}
	if s.Network == execution.NetworkBridge {
		c.NetworkMode = container.NetworkMode(d.cfg.Network)
	}
	if s.FileBytes > 0 {
		c.Ulimits = append(c.Ulimits, &container.Ulimit{Name: "fsize", Soft: s.FileBytes, Hard: s.FileBytes})
	}
	if !d.runtime.gvisor && s.PIDs > 0 {
		pids := s.PIDs + agentThreads
		c.PidsLimit = &pids
	}
	if s.ReadOnlyRoot {
		c.Tmpfs["/tmp"] = "nosuid,nodev,mode=1777"
	}
	// The engine would make volumes on the host's disk, without a bound.
	for path := range im.config.Volumes {
		if path = filepath.Clean("/" + path); path != "/" {
			c.Tmpfs[path] = "nosuid,nodev,mode=1777"
		}
	}
	for _, name := range etcFiles {
		c.Mounts = append(c.Mounts, bind(d.dir("sandboxes", s.ID, name), "/etc/"+name, true))
	}
	for _, m := range guest.Mounts {
		c.Mounts = append(c.Mounts, bind(m.Source, m.Target, m.ReadOnly))
	}
	for _, m := range s.Mounts {
		delete(c.Tmpfs, m.Target)
		c.Mounts = append(c.Mounts, bind(m.Source, m.Target, m.ReadOnly))
	}
	return c
}

// agentThreads is how many threads the agent has, which count as processes with a runtime other than gVisor.
const agentThreads = 16

// capabilities are the agent's. It has SYS_ADMIN in gVisor only, where it is that of the sandbox's own kernel.
func (d *Driver) capabilities(g agent.Guest) []string {
	return slices.DeleteFunc(slices.Clone(g.Capabilities), func(c string) bool { return c == "CAP_SYS_ADMIN" && !d.runtime.gvisor })
}

func bind(source, target string, readOnly bool) mount.Mount {
	return mount.Mount{Type: mount.TypeBind, Source: source, Target: target, ReadOnly: readOnly, BindOptions: &mount.BindOptions{Propagation: mount.PropagationRPrivate}}
}

// bootMemory is the limit of memory for which a sandbox is started. runsc reads it then, and what it finds is what
// programs see as the size of the memory: so it has no overhead until the agent connects. A small one could not start
// that way.
func (d *Driver) bootMemory(s execution.Spec) int64 {
	if s.MemoryBytes < 2*cgroup.Overhead && s.MemoryBytes > 0 {
		return memoryLimit(s.MemoryBytes)
	}
	return s.MemoryBytes
}

// memoryLimit is the limit of the control group of a sandbox with this much memory.
func memoryLimit(bytes int64) int64 { return bytes + cgroup.Overhead }

// swapLimit bounds memory and swap together. It is that of the later limit of memory from the start, since it must not be
// less than that at any moment: then no swap is left.
func swapLimit(s execution.Spec) int64 {
	if s.MemoryBytes <= 0 {
		return 0
	}
	return memoryLimit(s.MemoryBytes)
}

// update changes limits of a container; those that are 0 stay.
func (d *Driver) update(ctx context.Context, id string, r container.Resources) error {
	_, err := d.engine.ContainerUpdate(ctx, d.containerName(id), client.ContainerUpdateOptions{Resources: &r})
	return engineError(err, "change the limits of sandbox %s", id)
}

// keepTmp puts a file into /tmp. gVisor mounts a file system in memory on an empty one, which would count as the
// sandbox's memory.
func (d *Driver) keepTmp(ctx context.Context, s execution.Spec) error {
	if s.ReadOnlyRoot || !d.runtime.gvisor {
		return nil
	}
	text := []byte("This file keeps /tmp on the disk of the sandbox.\n")
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	_ = w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: "tmp/", Mode: 0o1777}) // to a buffer: cannot fail
	_ = w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "tmp/.runtime", Mode: 0o644, Size: int64(len(text)), ModTime: time.Now()})
	_, _ = w.Write(text)
	_ = w.Close()
	_, err := d.engine.CopyToContainer(ctx, d.containerName(s.ID), client.CopyToContainerOptions{DestinationPath: "/", Content: &b})
	return engineError(err, "make /tmp")
}

// removeContainer kills and removes a sandbox's container, and waits until it is gone.
func (d *Driver) removeContainer(ctx context.Context, id string) error {
	for {
		_, err := d.inspectContainer(ctx, id)
		if errs.Is(err, errs.NotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		_, err = d.engine.ContainerRemove(ctx, d.containerName(id), client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
		switch {
		case err == nil || errdefs.IsNotFound(err):
			return nil
		case !errdefs.IsConflict(err): // else it is being removed already
			return engineError(err, "remove container")
		}
		select {
		case <-ctx.Done():
			return engineError(err, "remove container")
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// kill kills a sandbox's container, if it runs.
func (d *Driver) kill(ctx context.Context, id string) error {
	_, err := d.engine.ContainerKill(ctx, d.containerName(id), client.ContainerKillOptions{Signal: "KILL"})
	if errdefs.IsNotFound(err) || errdefs.IsConflict(err) {
		return nil
	}
	return engineError(err, "kill sandbox %s", id)
}

func hostname(s execution.Spec) string { return cmp.Or(s.Hostname, s.ID) }

// shmBytes bounds /dev/shm, which is memory, to half of it, as is usual.
func shmBytes(s execution.Spec) int64 {
	if s.MemoryBytes <= 0 {
		return 64 << 20
	}
	return s.MemoryBytes / 2
}
