package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	task "github.com/containerd/containerd/api/runtime/task/v2"
	runcoptions "github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/protobuf/types"
	"github.com/containerd/containerd/v2/pkg/shim"
	"github.com/containerd/containerd/v2/pkg/shutdown"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/log"
	"github.com/containerd/plugin"
	"github.com/containerd/plugin/registry"
	"github.com/containerd/ttrpc"
	"github.com/containerd/typeurl/v2"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/types/known/anypb"
	v1 "gvisor.dev/gvisor/pkg/shim/v1"
	"gvisor.dev/gvisor/pkg/shim/v1/extension"
	"gvisor.dev/gvisor/pkg/shim/v1/proc"
	"gvisor.dev/gvisor/pkg/shim/v1/runsc"
	"gvisor.dev/gvisor/pkg/shim/v1/runsccmd"
)

func init() {
	registry.Register(&plugin.Registration{
		Type:     plugins.TTRPCPlugin,
		ID:       "task",
		Requires: []plugin.Type{plugins.EventPlugin, plugins.InternalPlugin},
		InitFn: func(ic *plugin.InitContext) (any, error) {
			publisher, err := ic.GetByID(plugins.EventPlugin, "publisher")
			if err != nil {
				return nil, err
			}
			stop, err := ic.GetByID(plugins.InternalPlugin, "shutdown")
			if err != nil {
				return nil, err
			}
			next, err := v1.NewShimRedirector(ic.Context, publisher.(shim.Publisher), stop.(shutdown.Service))
			if err != nil {
				return nil, err
			}
			return newService(next), nil
		},
	})
}

// service is gVisor's task service. It changes a container's spec before the service below reads it, and corrects the
// exit status.
type service struct {
	extension.TaskServiceExt

	exits *exits

	mu         sync.Mutex // protects the map, not its values: the calls for one container come in order
	containers map[string]*container
}

// newService wraps the service, which must not have served a call yet.
func newService(next extension.TaskServiceExt) *service {
	s := &service{
		TaskServiceExt: next,
		exits:          newExits(),
		containers:     map[string]*container{},
	}
	runsccmd.Monitor = &commands{next: runsccmd.Monitor, container: s.get}
	go s.exits.watch()
	return s
}

// container holds the facts about a container from its creation to its
// deletion.
type container struct {
	bundle  string
	first   bool // first container of its sandbox
	eager   bool // started when it is created
	rootfs  string
	stubs   []string // mount points that runsc made for our mounts in a root that is kept
	ca      bool     // processes get the variables
	apt     bool
	restore *extension.RestoreConfig
	guard   *guard // nil: it has no limits
	mounts  []specs.Mount

	mu      sync.Mutex // protects the fields below
	sandbox *process   // process of the sandbox whose first container it is; else nil
	state   string     // state in runsc's words, as long as the sandbox has not ended
}

// RegisterTTRPC lets the shim's server find the service.
func (s *service) RegisterTTRPC(server *ttrpc.Server) error {
	task.RegisterTaskService(server, s)
	return nil
}

func (s *service) get(id string) *container {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.containers[id]
}

// set records a container, or forgets it.
func (s *service) set(id string, c *container) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c == nil {
		delete(s.containers, id)
		return
	}
	s.containers[id] = c
}

// Create changes the spec in the bundle, for which it mounts the root, and creates the container.
func (s *service) Create(ctx context.Context, r *task.CreateTaskRequest) (*task.CreateTaskResponse, error) {
	c, err := prepare(r)
	if err != nil {
		return nil, errgrpc.ToGRPC(fmt.Errorf("prepare %s: %w", r.ID, err))
	}
	s.set(r.ID, c)
	response, err := s.TaskServiceExt.Create(ctx, r)
	if err != nil {
		s.set(r.ID, nil)
		c.clean(ctx)
		if c.guard != nil {
			c.guard.close()
		}
		return nil, err
	}
	if c.first {
		c.mu.Lock()
		c.sandbox, c.state = s.exits.expect(int(response.Pid)), "created"
		c.mu.Unlock()
	}
	if c.guard != nil {
		if err := c.guard.find(c.rootfs, c.mounts); err != nil {
			log.G(ctx).WithError(err).Warn("the disk of the container is not limited")
		}
		go c.guard.watch(context.WithoutCancel(ctx), c.sandbox)
	}
	return response, nil
}

// prepare applies the spec's annotations and the options to the request's bundle. When it has mounted the root, the
// request has no mounts any more. The deletion of the container unmounts them, since they are at their usual place.
func prepare(r *task.CreateTaskRequest) (_ *container, err error) {
	file := filepath.Join(r.Bundle, "config.json")
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	spec, err := parseSpec(data)
	if err != nil {
		return nil, err
	}
	conf, err := readConfig(r.Options)
	if err != nil {
		return nil, err
	}
	c := &container{bundle: r.Bundle, rootfs: filepath.Join(r.Bundle, "rootfs")}

	if image := spec.Annotations[restoreImageAnnotation]; image != "" {
		c.restore = &extension.RestoreConfig{
			ImagePath:  image,
			Background: spec.Annotations[restoreBackgroundAnnotation] == "true",
		}
	}
	spec.defaultAnnotation(containerType, "sandbox")
	c.first = spec.Annotations[containerType] == "sandbox"
	c.eager = c.first && c.restore == nil && spec.Annotations[startAnnotation] == "create"

	hostBundle, err := conf.caBundle()
	if err != nil {
		return nil, err
	}
	if hostBundle != "" {
		if err := mountRoot(r, c.rootfs); err != nil {
			return nil, err
		}
		defer func() {
			if err != nil {
				err = errors.Join(err, mount.UnmountAll(c.rootfs, 0))
			}
		}()
		files, err := prepareCA(hostBundle, r.Bundle, c.rootfs)
		if err != nil {
			return nil, err
		}
		mounted := spec.addCA(files)
		c.ca, c.apt = true, files.apt != ""
		if conf.rootIsPlain(spec.Annotations) {
			if c.stubs, err = stubs(c.rootfs, mounted); err != nil {
				return nil, err
			}
		}
	}

	if path := spec.networkNamespace(); conf.Runtime.RestoreNetwork && path != "" {
		if err := saveNetwork(r.Bundle, path); err != nil {
			return nil, err
		}
	}

	if c.first && conf.Limits != (limits{}) {
		if err := spec.limit(conf.Limits); err != nil {
			return nil, err
		}
		c.mounts = spec.Mounts
		if c.guard, err = newGuard(conf.Limits, spec.linux.CgroupsPath, r.Stderr); err != nil {
			return nil, err
		}
		defer func() {
			if err != nil {
				c.guard.close()
			}
		}()
	}

	if !spec.changed {
		return c, nil
	}
	if data, err = spec.encode(); err != nil {
		return nil, err
	}
	if err := os.WriteFile(file, data, 0o600); err != nil {
		return nil, err
	}
	return c, nil
}

// mountRoot mounts the root of the request where the service below would.
func mountRoot(r *task.CreateTaskRequest, rootfs string) error {
	if err := os.Mkdir(rootfs, 0o711); err != nil && !os.IsExist(err) {
		return err
	}
	for _, m := range r.Rootfs {
		m := mount.Mount{Type: m.Type, Source: m.Source, Target: m.Target, Options: m.Options}
		if err := m.Mount(rootfs); err != nil {
			return errors.Join(fmt.Errorf("mount root: %w", err), mount.UnmountAll(rootfs, 0))
		}
	}
	r.Rootfs = nil
	return nil
}

// clean removes our mount points from the root, which must still be mounted and no longer in use.
func (c *container) clean(ctx context.Context) {
	if err := removeStubs(c.rootfs, c.stubs); err != nil {
		log.G(ctx).WithError(err).Warn("mount points of the CA bundle were left in the root")
	}
}

// Start starts the container, from a checkpoint if its spec names one.
func (s *service) Start(ctx context.Context, r *task.StartRequest) (*task.StartResponse, error) {
	if c := s.get(r.ID); c != nil && c.restore != nil && r.ExecID == "" {
		return s.Restore(ctx, &extension.RestoreRequest{Start: r, Conf: *c.restore})
	}
	return s.TaskServiceExt.Start(ctx, r)
}

// Exec adds a process, with the variables that the first one got.
func (s *service) Exec(ctx context.Context, r *task.ExecProcessRequest) (*types.Empty, error) {
	if c := s.get(r.ID); c != nil && c.ca {
		if spec, err := c.execSpec(r.Spec); err != nil {
			return nil, errgrpc.ToGRPC(fmt.Errorf("process %s of %s: %w", r.ExecID, r.ID, err))
		} else {
			r.Spec = spec
		}
	}
	return s.TaskServiceExt.Exec(ctx, r)
}

// execSpec adds the variables to the OCI process that containerd sent as JSON.
func (c *container) execSpec(spec *anypb.Any) (*anypb.Any, error) {
	var process map[string]json.RawMessage
	if err := json.Unmarshal(spec.GetValue(), &process); err != nil {
		return nil, err
	}
	s := ociSpec{process: process}
	if raw, ok := process["env"]; ok {
		if err := json.Unmarshal(raw, &s.Env); err != nil {
			return nil, err
		}
	}
	for _, name := range caVariables {
		s.defaultEnv(name, caPath)
	}
	if c.apt {
		s.defaultEnv("APT_CONFIG", aptPath)
	}
	raw, err := json.Marshal(s.Env)
	if err != nil {
		return nil, err
	}
	process["env"] = raw
	value, err := json.Marshal(process)
	if err != nil {
		return nil, err
	}
	return &anypb.Any{TypeUrl: spec.GetTypeUrl(), Value: value}, nil
}

// Delete deletes a process or, without a process id, the container.
func (s *service) Delete(ctx context.Context, r *task.DeleteRequest) (*task.DeleteResponse, error) {
	c := s.get(r.ID)
	if c != nil && r.ExecID == "" {
		// Before the root is unmounted. The container has stopped: containerd deletes nothing that runs.
		c.clean(ctx)
	}
	response, err := s.TaskServiceExt.Delete(ctx, r)
	if err == nil && r.ExecID == "" {
		s.set(r.ID, nil)
		if c != nil {
			c.mu.Lock()
			if c.sandbox != nil {
				s.exits.forget(c.sandbox)
			}
			c.mu.Unlock()
			if err := restoreNetwork(c.bundle); err != nil {
				log.G(ctx).WithError(err).Warn("the network namespace has lost its addresses")
			}
		}
	}
	return response, err
}

// Shutdown ends the shim unless it still has containers; the service below then answers with nothing, which cannot be
// sent.
func (s *service) Shutdown(ctx context.Context, r *task.ShutdownRequest) (*types.Empty, error) {
	response, err := s.TaskServiceExt.Shutdown(ctx, r)
	if response == nil && err == nil {
		response = &types.Empty{}
	}
	return response, err
}

// Checkpoint writes memory and files of the container's sandbox into the directory r.Path.
func (s *service) Checkpoint(ctx context.Context, r *task.CheckpointTaskRequest) (*types.Empty, error) {
	if err := s.checkpoint(ctx, r); err != nil {
		return nil, errgrpc.ToGRPC(fmt.Errorf("checkpoint %s: %w", r.ID, err))
	}
	return &types.Empty{}, nil
}

func (s *service) checkpoint(ctx context.Context, r *task.CheckpointTaskRequest) error {
	c := s.get(r.ID)
	if c == nil {
		return fmt.Errorf("container %s: %w", r.ID, os.ErrNotExist)
	}
	var options runcoptions.CheckpointOptions
	if r.Options != nil && typeurl.Is(r.Options, &options) {
		if err := typeurl.UnmarshalTo(r.Options, &options); err != nil {
			return err
		}
	}
	namespace, err := namespaces.NamespaceRequired(ctx)
	if err != nil {
		return err
	}
	var state runsc.State // written by Create: the command line of runsc
	if err := state.Load(c.bundle); err != nil {
		return err
	}
	o := state.Options
	return proc.NewRunsc(o.Root, c.bundle, namespace, o.BinaryName, o.RunscConfig, nil).
		Checkpoint(ctx, r.ID, &runsccmd.CheckpointOpts{ImagePath: r.Path, LeaveRunning: !options.Exit})
}
