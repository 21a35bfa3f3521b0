package sandboxes

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"path"
	"runtime"
	"slices"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/apps"
	"miren.dev/runtime/domain/images"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// CreateRequest describes a sandbox without a sandbox pool. It has an image, or
// a template, or is like the sandboxes of an app; zero values of the other
// fields mean the default, or the setting of the template or app.
type CreateRequest struct {
	Name     string
	Labels   map[string]string
	Image    string // a name that Service.Image resolves
	Template string // a name that templates.Service.Find understands
	Agent    string // with Template: names the agent, which gets the sandbox that it has
	App      string // name of an app: image, environment and secrets of its active version
	Service  string // with App: the service whose settings apply; "": app.DefaultService
	Idle     bool   // it has no main process, whatever its image or app states; not with Command

	Command     []string
	Workdir     string
	User        string
	Env         map[string]string
	EnvSecret   map[string]string // sealed before they are stored
	CPUMillis   int64
	MemoryBytes int64
	PIDs        int64
	DiskBytes   int64
	DiskFiles   int64
	OpenFiles   int64
	FileBytes   int64
	Bandwidth   int64 // bytes per second, each way
	Network     sandbox.NetworkMode
	Egress      *sandbox.Egress // what it may reach; nil: all that the firewall permits
	Volumes     []Volume
	TTL         time.Duration // the sandbox ends this long after it began to run
	ResumeTTL   time.Duration // at the end of its TTL it is paused, and has this one from each resume on; 0: it ends
	IdleTimeout time.Duration // time without use after which OnIdle happens; 0: never
	OnIdle      sandbox.IdleAction
	StopTimeout *time.Duration
	Execution   id.Execution // the execution that it is made for, and with which it is deleted
	APIKey      id.APIKey    // the API key with which it is asked for, and whose bounds hold; "": none
	// Note, if set, is called with messages for the user: why the sandbox does
	// not run yet, or why it ended and its process with it.
	Note func(text string)
}

// Volume is a disk to mount in a sandbox.
type Volume struct {
	Disk     string // its name
	Path     string // in the sandbox, absolute
	ReadOnly bool
}

// Create creates a sandbox without a sandbox pool and returns at once; see
// Wait. With a template it is one that ran already, if that serves the request:
// the agent's own, or a warm one. Errors: InvalidArgument for a command or
// environment with which no process can be started, and without an image;
// NotFound for an app, service, template or image that does not exist;
// FailedPrecondition if the app serves no version; PermissionDenied if the policy
// of the project does not permit it.
func (s *Service) Create(ctx context.Context, project string, req CreateRequest) (*sandbox.Sandbox, error) {
	sb, t, err := s.prepare(ctx, project, req)
	if err != nil {
		return nil, err
	}
	return s.place(ctx, sb, t)
}

// prepare returns the sandbox that Create creates, and its template if it is
// made of one.
func (s *Service) prepare(ctx context.Context, project string, req CreateRequest) (*sandbox.Sandbox, *sandbox.Template, error) {
	if err := errors.Join(sandbox.CheckCommand(req.Command), sandbox.CheckEnv("env", req.Env), sandbox.CheckEnv("env_secret", req.EnvSecret)); err != nil {
		return nil, nil, errs.New(errs.InvalidArgument, "%w", err)
	}
	if req.Idle && len(req.Command) > 0 {
		return nil, nil, errs.New(errs.InvalidArgument, "a sandbox with a command is not idle")
	}
	if req.Agent != "" && req.Template == "" {
		return nil, nil, errs.New(errs.InvalidArgument, "an agent needs a template: its session is a sandbox of that")
	}
	pid, err := projects.Find(ctx, s.Store, project)
	if err != nil {
		return nil, nil, err
	}
	sb := sandbox.NewSandbox()
	sb.Project, sb.Name, sb.Labels, sb.Spec.Execution, sb.Spec.APIKey = pid, req.Name, req.Labels, req.Execution, string(req.APIKey)
	made, err := s.describe(ctx, project, sb, &req)
	if err != nil {
		return nil, nil, err
	}
	if err := s.override(&sb.Spec.Template, &req); err != nil {
		return nil, nil, err
	}
	if err := s.connect(ctx, project, sb, &req); err != nil {
		return nil, nil, err
	}
	if req.TTL > 0 {
		sb.Spec.TTL = &req.TTL
	}
	if req.ResumeTTL > 0 {
		sb.Spec.ResumeTTL = &req.ResumeTTL
	}
	if req.IdleTimeout > 0 {
		sb.Spec.IdleTimeout = &req.IdleTimeout
	}
	sb.Spec.OnIdle = cmp.Or(req.OnIdle, sb.Spec.OnIdle)
	return sb, made, s.Policies.Default(ctx, sb)
}

// connect sets the network policy and the volumes of a sandbox.
func (s *Service) connect(ctx context.Context, project string, sb *sandbox.Sandbox, req *CreateRequest) error {
	t := &sb.Spec.Template
	if req.Egress != nil {
		if _, err := s.checkEgress(ctx, sb.Project, req.Egress); err != nil {
			return err
		}
		t.Egress = req.Egress
	}
	if len(req.Volumes) > sandbox.MaxVolumes {
		return errs.New(errs.InvalidArgument, "%d volumes, at most %d are possible", len(req.Volumes), sandbox.MaxVolumes)
	}
	for _, v := range req.Volumes {
		if !path.IsAbs(v.Path) || path.Clean(v.Path) != v.Path || v.Path == "/" {
			return errs.New(errs.InvalidArgument, "volume %s: %q is not an absolute path below /", v.Disk, v.Path)
		}
		d, err := s.Disks.Find(ctx, project, v.Disk)
		if err != nil {
			return err
		}
		if d.Status.Node != "" {
			sb.Spec.OnlyNode = d.Status.Node
		}
		t.Volumes = append(t.Volumes, sandbox.Volume{Disk: d.GetID(), Path: v.Path, ReadOnly: v.ReadOnly})
	}
	return nil
}

// describe sets what sb is made of: an image, a template (which it returns), or
// what an app's sandboxes are made of.
func (s *Service) describe(ctx context.Context, project string, sb *sandbox.Sandbox, req *CreateRequest) (*sandbox.Template, error) {
	t := &sb.Spec.Template
	sources := 0
	for _, name := range []string{req.Image, req.Template, req.App} {
		if name != "" {
			sources++
		}
	}
	switch {
	case sources > 1:
		return nil, errs.New(errs.InvalidArgument, "a sandbox has an image, a template, or is like those of an app: only one of them")
	case req.App != "":
		like, err := s.templateOf(ctx, project, req.App, req.Service)
		if err != nil {
			return nil, err
		}
		*t = *like
		return nil, nil
	case req.Image != "":
		if err := images.Check(ctx, s.Store, sb.Project, req.Image); err != nil {
			return nil, err
		}
		image, err := s.Image(ctx, req.Image)
		if err != nil {
			return nil, err
		}
		t.Image, t.Arch = image, runtime.GOARCH // the server makes images for its own machine
		return nil, nil
	case req.Template == "":
		return nil, errs.New(errs.InvalidArgument, "a sandbox needs an image").
			WithHint("--template NAME, --image NAME, or --app NAME for that of an app")
	}
	of, v, err := s.Templates.Find(ctx, sb.Project, req.Template)
	if err != nil {
		return nil, err
	}
	if v.Status.Image == "" && req.Note != nil {
		req.Note("waiting: the image of template " + of.Name + " is being made, which takes minutes the first time")
	}
	image, err := s.Templates.Image(ctx, v)
	if err != nil {
		return nil, err
	}
	sb.Spec.TemplateVersion, sb.Spec.Agent = v.GetID(), req.Agent
	*t = OfVersion(v, image)
	t.Idle = len(req.Command) == 0
	return of, nil
}

// OfVersion returns the description of a sandbox of a template's version.
func OfVersion(v *sandbox.TemplateVersion, image string) sandbox.SandboxTemplate {
	t := sandbox.NewSandbox().Spec.Template
	t.Image, t.Arch, t.Idle = image, runtime.GOARCH, true // the server makes images for its own machine
	t.Workdir, t.User, t.Env, t.Resources = v.Spec.Workdir, v.Spec.User, maps.Clone(v.Spec.Env), v.Spec.Resources
	t.Capabilities = v.Spec.Capabilities
	t.Start, t.Probe = slices.Clone(v.Spec.Start), schema.Copy(v.Spec.Ready)
	return t
}

// templateOf returns the template of a sandbox of a service of an app's active
// version, except the ports and the checks.
func (s *Service) templateOf(ctx context.Context, project, name, service string) (*sandbox.SandboxTemplate, error) {
	a, err := s.Apps.Find(ctx, project, name)
	if err != nil {
		return nil, err
	}
	ver, err := apps.ActiveVersion(ctx, s.Store, a)
	if err != nil {
		return nil, err
	}
	service = cmp.Or(service, app.DefaultService)
	i := slices.IndexFunc(ver.Spec.Services, func(x app.Service) bool { return x.Name == service })
	if i < 0 {
		return nil, errs.New(errs.NotFound, "app %s has no service %q", a.Name, service)
	}
	t := apps.PoolFor(a, ver, &ver.Spec.Services[i]).Spec.Template
	t.Ports, t.Probe, t.Live = nil, nil, nil
	return &t, nil
}

// override sets in t the fields that the request states.
func (s *Service) override(t *sandbox.SandboxTemplate, req *CreateRequest) error {
	if len(req.Command) > 0 {
		t.Command = req.Command
	}
	if req.Idle {
		t.Command, t.Idle = nil, true
	}
	t.Workdir = cmp.Or(req.Workdir, t.Workdir)
	t.User = cmp.Or(req.User, t.User)
	t.Network = cmp.Or(req.Network, t.Network)
	r := &t.Resources
	r.CPUMillis = cmp.Or(req.CPUMillis, r.CPUMillis)
	r.MemoryBytes = cmp.Or(req.MemoryBytes, r.MemoryBytes)
	r.PIDs = cmp.Or(req.PIDs, r.PIDs)
	r.DiskBytes = cmp.Or(req.DiskBytes, r.DiskBytes)
	r.DiskFiles = cmp.Or(req.DiskFiles, r.DiskFiles)
	r.OpenFiles = cmp.Or(req.OpenFiles, r.OpenFiles)
	r.FileBytes = cmp.Or(req.FileBytes, r.FileBytes)
	r.BandwidthBytes = cmp.Or(req.Bandwidth, r.BandwidthBytes)
	if req.StopTimeout != nil {
		t.StopTimeout = *req.StopTimeout
	}
	if len(req.Env) > 0 {
		t.Env = merge(t.Env, req.Env)
	}
	if len(req.EnvSecret) == 0 {
		return nil
	}
	sealed := map[string]schema.Secret{}
	for k, v := range req.EnvSecret {
		sec, err := s.Sealer.Seal(v)
		if err != nil {
			return err
		}
		sealed[k] = sec
	}
	t.Secrets = merge(t.Secrets, sealed)
	return nil
}

// merge returns the union of a and b; an entry of b overrides one of a.
func merge[V any](a, b map[string]V) map[string]V {
	out := make(map[string]V, len(a)+len(b))
	maps.Copy(out, a)
	maps.Copy(out, b)
	return out
}
