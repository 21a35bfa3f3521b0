package service

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/api/sandbox"
	"miren.dev/runtime/controllers/deployment"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/schema"
)

// RunRequest describes a sandbox that stands alone. Zero values are defaults.
type RunRequest struct {
	Name    string
	Labels  map[string]string
	Image   string // reference in the node's image store; empty with App
	App     string // take image, environment and secrets of what it serves
	Service string // with App; empty: web

	Command     []string
	Workdir     string
	User        string
	Env         map[string]string
	EnvSecret   map[string]string
	CPUMillis   int64
	MemoryBytes int64
	PIDs        int64
	DiskBytes   int64
	Network     sandbox.NetworkMode
	TTL         time.Duration
	StopTimeout *time.Duration
}

// Run creates a sandbox that stands alone.
func (s *Service) Run(ctx context.Context, project string, req RunRequest) (*sandbox.Sandbox, error) {
	pid, err := s.Project(ctx, project)
	if err != nil {
		return nil, err
	}
	sb := sandbox.NewSandbox()
	sb.Project, sb.Name, sb.Labels = pid, req.Name, req.Labels
	t := &sb.Spec.Template
	switch {
	case req.App != "" && req.Image != "":
		return nil, errs.New(errs.InvalidArgument, "a sandbox has an image or is like those of an app, not both")
	case req.App != "":
		a, err := s.App(ctx, project, req.App)
		if err != nil {
			return nil, err
		}
		if err := s.likeApp(ctx, a, req.Service, sb); err != nil {
			return nil, err
		}
	case req.Image == "":
		return nil, errs.New(errs.InvalidArgument, "a sandbox needs an image").WithHint("--image NAME, or --app NAME for that of an app")
	default:
		t.Image = req.Image
	}
	if len(req.Command) > 0 {
		t.Command = req.Command
	}
	set(&t.Workdir, req.Workdir)
	set(&t.User, req.User)
	set(&t.Network, req.Network)
	set(&t.Resources.CPUMillis, req.CPUMillis)
	set(&t.Resources.MemoryBytes, req.MemoryBytes)
	set(&t.Resources.PIDs, req.PIDs)
	set(&t.Resources.DiskBytes, req.DiskBytes)
	if req.StopTimeout != nil {
		t.StopTimeout = *req.StopTimeout
	}
	if req.TTL > 0 {
		sb.Spec.TTL = &req.TTL
	}
	t.Env, t.Secrets = maps.Clone(t.Env), maps.Clone(t.Secrets)
	for k, v := range req.Env {
		if t.Env == nil {
			t.Env = map[string]string{}
		}
		t.Env[k] = v
	}
	for k, v := range req.EnvSecret {
		sec, err := s.Sealer.Seal(v)
		if err != nil {
			return nil, err
		}
		if t.Secrets == nil {
			t.Secrets = map[string]schema.Secret{}
		}
		t.Secrets[k] = sec
	}
	return sb, entity.Create(ctx, s.Store, sb)
}

func set[T comparable](to *T, v T) {
	var zero T
	if v != zero {
		*to = v
	}
}

// likeApp gives sb what a sandbox of the app's active version has, except the
// ports and the probe.
func (s *Service) likeApp(ctx context.Context, a *app.App, svc string, sb *sandbox.Sandbox) error {
	if a.Status.ActiveVersion == "" {
		return errs.New(errs.FailedPrecondition, "app %s serves no version yet", a.Name).WithHint("deploy it first: `r app deploy`")
	}
	ver, err := entity.Get[app.AppVersion](ctx, s.Store, a.Status.ActiveVersion)
	if err != nil {
		return err
	}
	if svc == "" {
		svc = "web"
	}
	i := slices.IndexFunc(ver.Spec.Services, func(x app.Service) bool { return x.Name == svc })
	if i < 0 {
		return errs.New(errs.NotFound, "app %s has no service %q", a.Name, svc)
	}
	sb.Spec.Template = deployment.PoolFor(a, ver, &ver.Spec.Services[i]).Spec.Template
	sb.Spec.Template.Ports, sb.Spec.Template.Probe = nil, nil
	return nil
}

// Stop asks a sandbox to end.
func (s *Service) Stop(ctx context.Context, sid id.Sandbox) (*sandbox.Sandbox, error) {
	return entity.ModifySpec(ctx, s.Store, sid, func(sb *sandbox.Sandbox) error {
		if sb.Spec.Desired != sandbox.DesiredStateStopped {
			sb.Spec.Desired, sb.Spec.StopReason = sandbox.DesiredStateStopped, sandbox.EndReasonUser
		}
		return nil
	})
}

// DeleteSandbox deletes a sandbox; its node takes down what is there.
func (s *Service) DeleteSandbox(ctx context.Context, sid id.Sandbox) error {
	for {
		sb, err := entity.Get[sandbox.Sandbox](ctx, s.Store, sid)
		if err != nil {
			return err
		}
		if err := entity.Delete(ctx, s.Store, sb); !errs.Is(err, errs.Conflict) {
			return err
		}
	}
}

// ReadySandbox returns a ready sandbox of the version that an app serves.
func (s *Service) ReadySandbox(ctx context.Context, project, name, svc string) (*sandbox.Sandbox, error) {
	a, err := s.App(ctx, project, name)
	if err != nil {
		return nil, err
	}
	if svc == "" {
		svc = "web"
	}
	all, err := s.AppSandboxes(ctx, a)
	if err != nil {
		return nil, err
	}
	for _, sb := range all {
		if sb.Spec.AppVersion == a.Status.ActiveVersion && sb.Spec.Service == svc && sb.Status.Ready {
			return sb, nil
		}
	}
	return nil, errs.New(errs.FailedPrecondition, "no sandbox of service %s of app %s is ready", svc, name).
		WithHint("`r app status %s` shows what runs; `r sandbox run --app %s` starts one of its own", name, name)
}

// AppSandboxes lists the sandboxes of an app.
func (s *Service) AppSandboxes(ctx context.Context, a *app.App) ([]*sandbox.Sandbox, error) {
	list, _, err := entity.List[sandbox.Sandbox](ctx, s.Store, entity.Query{Index: []entity.IndexMatch{{
		Attr: sandbox.SandboxAttrApp, Op: entity.IndexEq, Value: schema.EncodeIndexString(string(a.ID)),
	}}})
	if err != nil {
		return nil, fmt.Errorf("list the sandboxes of %s: %w", a.Name, err)
	}
	return list, nil
}
