package sandboxes

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"runtime"
	"slices"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/domain/apps"
	"miren.dev/runtime/domain/projects"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// CreateRequest describes a sandbox without a pool. It has an image, or is like
// the sandboxes of an app; zero values of the other fields mean the default, or
// the app's setting.
type CreateRequest struct {
	Name    string
	Labels  map[string]string
	Image   string // a name that Service.Image resolves
	App     string // name of an app: image, environment and secrets of its active version
	Service string // with App: the service whose settings apply; "": app.DefaultService

	Command     []string
	Workdir     string
	User        string
	Env         map[string]string
	EnvSecret   map[string]string // sealed before they are stored
	CPUMillis   int64
	MemoryBytes int64
	PIDs        int64
	DiskBytes   int64
	Network     sandbox.NetworkMode
	TTL         time.Duration // the sandbox ends this long after it began to run
	StopTimeout *time.Duration
}

// Create creates a sandbox without a pool and returns at once; see Wait.
// Errors: InvalidArgument for a command or environment with which no process
// can be started, and without an image; NotFound for an app, service or image
// that does not exist; FailedPrecondition if the app serves no version.
func (s *Service) Create(ctx context.Context, project string, req CreateRequest) (*sandbox.Sandbox, error) {
	sb, err := s.prepare(ctx, project, req)
	if err != nil {
		return nil, err
	}
	return sb, entity.Create(ctx, s.Store, sb)
}

// prepare returns the sandbox that Create creates.
func (s *Service) prepare(ctx context.Context, project string, req CreateRequest) (*sandbox.Sandbox, error) {
	if err := errors.Join(checkCommand(req.Command), checkEnv("env", req.Env), checkEnv("env_secret", req.EnvSecret)); err != nil {
		return nil, errs.New(errs.InvalidArgument, "%w", err)
	}
	image := ""
	if req.Image != "" {
		var err error
		if image, err = s.Image(ctx, req.Image); err != nil {
			return nil, err
		}
	}
	pid, err := projects.Find(ctx, s.Store, project)
	if err != nil {
		return nil, err
	}
	sb := sandbox.NewSandbox()
	sb.Project, sb.Name, sb.Labels = pid, req.Name, req.Labels
	t := &sb.Spec.Template
	switch {
	case req.App != "" && image != "":
		return nil, errs.New(errs.InvalidArgument, "a sandbox has an image or is like those of an app, not both")
	case req.App != "":
		like, err := s.templateOf(ctx, project, req.App, req.Service)
		if err != nil {
			return nil, err
		}
		*t = *like
	case image == "":
		return nil, errs.New(errs.InvalidArgument, "a sandbox needs an image").WithHint("--image NAME, or --app NAME for that of an app")
	default:
		t.Image, t.Arch = image, runtime.GOARCH // the server makes images for its own machine
	}
	if err := s.override(t, &req); err != nil {
		return nil, err
	}
	if req.TTL > 0 {
		sb.Spec.TTL = &req.TTL
	}
	return sb, nil
}

// templateOf returns the template of a sandbox of a service of an app's active
// version, except the ports and the probe.
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
	t.Ports, t.Probe = nil, nil
	return &t, nil
}

// override sets in t the fields that the request states.
func (s *Service) override(t *sandbox.SandboxTemplate, req *CreateRequest) error {
	if len(req.Command) > 0 {
		t.Command = req.Command
	}
	t.Workdir = cmp.Or(req.Workdir, t.Workdir)
	t.User = cmp.Or(req.User, t.User)
	t.Network = cmp.Or(req.Network, t.Network)
	r := &t.Resources
	r.CPUMillis = cmp.Or(req.CPUMillis, r.CPUMillis)
	r.MemoryBytes = cmp.Or(req.MemoryBytes, r.MemoryBytes)
	r.PIDs = cmp.Or(req.PIDs, r.PIDs)
	r.DiskBytes = cmp.Or(req.DiskBytes, r.DiskBytes)
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
