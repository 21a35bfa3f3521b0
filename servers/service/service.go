// Package service has the operations that every surface offers: RPC now, REST,
// MCP and SSH later. A surface decodes, authorises and calls these; they
// validate, write entities and leave the work to the controllers.
//
// Every operation is a conditional write; two that meet are told apart by
// errors of class conflict. Errors name what to do next.
package service

import (
	"context"
	"log/slog"
	"regexp"
	"time"

	"miren.dev/runtime/api/app"
	"miren.dev/runtime/api/core"
	"miren.dev/runtime/api/id"
	"miren.dev/runtime/controllers/deployment"
	"miren.dev/runtime/entity"
	"miren.dev/runtime/pkg/errs"
	"miren.dev/runtime/pkg/fault"
	"miren.dev/runtime/pkg/schema"
)

// DefaultProject is the project of those who name none.
const DefaultProject = "default"

// Service is the operations over one store.
type Service struct {
	Store  entity.Store
	Sealer *schema.Sealer
	Log    *slog.Logger
}

// maxAppName leaves room for "-v123456-service" within the 63 bytes of a name.
const maxAppName = 40

var appName = regexp.MustCompile(`^[a-z]([a-z0-9-]*[a-z0-9])?$`)

// Project returns the id of the named project; "" names DefaultProject.
func (s *Service) Project(ctx context.Context, name string) (schema.ID, error) {
	if name == "" {
		name = DefaultProject
	}
	p, err := entity.ByName[core.Project](ctx, s.Store, "", name)
	if errs.Is(err, errs.NotFound) {
		return "", errs.New(errs.NotFound, "project %q does not exist", name).WithHint("`r entity list project` lists those that do")
	}
	if err != nil {
		return "", err
	}
	return p.ID, nil
}

// EnsureProject creates the named project if it does not exist.
func (s *Service) EnsureProject(ctx context.Context, name string) error {
	_, err := s.Project(ctx, name)
	if !errs.Is(err, errs.NotFound) {
		return err
	}
	p := core.NewProject()
	p.Name = name
	err = entity.Create(ctx, s.Store, p)
	if errs.Is(err, errs.AlreadyExists) {
		return nil
	}
	return err
}

// App returns the named app of a project.
func (s *Service) App(ctx context.Context, project, name string) (*app.App, error) {
	pid, err := s.Project(ctx, project)
	if err != nil {
		return nil, err
	}
	a, err := entity.ByName[app.App](ctx, s.Store, pid, name)
	if errs.Is(err, errs.NotFound) {
		return nil, errs.New(errs.NotFound, "app %q does not exist", name).With("kind", "app").
			WithHint("`r app list` lists those that do; `r app deploy` creates one")
	}
	return a, err
}

// CreateApp creates an app. AlreadyExists if there is one of that name.
func (s *Service) CreateApp(ctx context.Context, project, name string) (*app.App, error) {
	if !appName.MatchString(name) || len(name) > maxAppName {
		return nil, errs.New(errs.InvalidArgument, "app name %q: lower-case letters, digits and dashes, starting with a letter, at most %d", name, maxAppName).
			WithHint("choose another with --app, or name = \"...\" in app.toml")
	}
	pid, err := s.Project(ctx, project)
	if err != nil {
		return nil, err
	}
	a := app.NewApp()
	a.Project, a.Name = pid, name
	if err := entity.Create(ctx, s.Store, a); err != nil {
		return nil, err
	}
	return a, nil
}

// EnsureApp returns the named app, creating it if it does not exist.
func (s *Service) EnsureApp(ctx context.Context, project, name string) (*app.App, error) {
	a, err := s.App(ctx, project, name)
	if !errs.Is(err, errs.NotFound) {
		return a, err
	}
	a, err = s.CreateApp(ctx, project, name)
	if errs.Is(err, errs.AlreadyExists) {
		return s.App(ctx, project, name)
	}
	return a, err
}

// DeleteApp deletes an app with everything that belongs to it, a deployment
// that is under way too; its sandboxes are torn down as their entities go.
func (s *Service) DeleteApp(ctx context.Context, project, name string) error {
	return s.retry(ctx, func() error {
		a, err := s.App(ctx, project, name)
		if err != nil {
			return err
		}
		// Nobody waits for the lease of a deployment that goes with it: it lapses.
		return entity.Delete(ctx, s.Store, a)
	})
}

// retry does f again while it meets other writers. f reads what it writes.
func (s *Service) retry(ctx context.Context, f func() error) error {
	for wait := time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		err := f()
		if !errs.Is(err, errs.Conflict) || errs.Detail(err, "lease") != "" {
			return err
		}
		select {
		case <-ctx.Done():
			return errs.Wrap(err, "given up")
		case <-time.After(wait):
		}
	}
}

// DeployRequest asks for a rollout.
type DeployRequest struct {
	Kind        app.RolloutKind
	Source      string // for deploy: digest of the uploaded manifest
	NoCache     bool
	Target      id.AppVersion // for the others
	Message     string
	RequestedBy string
	Git         *app.GitInfo
	// Change, if set, changes the app's spec in the same transaction.
	Change func(*app.App) error
}

// Deploy accepts a rollout of an app: build, deployment and lease are written
// together or not at all. Conflict with detail "lease" (the deployment that
// holds it) while another is under way; other writers do not matter.
func (s *Service) Deploy(ctx context.Context, a *app.App, req DeployRequest) (*app.Deployment, error) {
	if err := s.notHeld(ctx, a); err != nil {
		return nil, err
	}
	lease, err := s.Store.Grant(ctx, deployment.LeaseTTL)
	if err != nil {
		return nil, err
	}
	var dep *app.Deployment
	err = s.retry(ctx, func() error {
		// What the caller read may have changed since.
		now, err := entity.Get[app.App](ctx, s.Store, a.GetID())
		if err != nil {
			return err
		}
		dep, err = s.deploy(ctx, now, req, lease.ID)
		if errs.Is(err, errs.AlreadyExists) {
			if held := s.notHeld(ctx, a); held != nil {
				return held
			}
			return errs.New(errs.Conflict, "%w", err) // given back meanwhile
		}
		return err
	})
	if err != nil {
		// Nothing was written, or it is not known: then the deployment, which
		// loses its lease here, ends. The lease lapses by itself where it cannot
		// be revoked now.
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if rerr := s.Store.Revoke(bounded, lease.ID); rerr != nil {
			s.Log.Warn("revoke lease of a refused deployment", "lease", string(lease.ID), "error", rerr)
		}
		return nil, err
	}
	return dep, nil
}

// notHeld fails if a deployment of a is under way.
func (s *Service) notHeld(ctx context.Context, a *app.App) error {
	holder, err := deployment.LeaseOf(ctx, s.Store, a.GetID())
	if errs.Is(err, errs.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	return leaseHeld(a, holder.Spec.Deployment)
}

func leaseHeld(a *app.App, holder id.Deployment) error {
	return errs.New(errs.Conflict, "another deployment of %s is under way (%s)", a.Name, holder).
		With("lease", string(holder)).
		WithHint("wait for it (`r app status %s`), or stop it with `r app cancel %s`", a.Name, a.Name)
}

func (s *Service) deploy(ctx context.Context, a *app.App, req DeployRequest, lease schema.LeaseID) (*app.Deployment, error) {
	now := time.Now()
	dep := app.NewDeployment()
	dep.ID, dep.Project = schema.NewID(app.DeploymentKind.Prefix), a.Project
	dep.Spec.App, dep.Spec.Kind, dep.Spec.Target, dep.Spec.Message = a.GetID(), req.Kind, req.Target, req.Message
	dep.Spec.RequestedBy, dep.Spec.Git = req.RequestedBy, req.Git
	dep.Status.StartedAt = &now
	var objects []schema.Object
	switch req.Kind {
	case app.RolloutKindDeploy:
		if req.Source == "" {
			return nil, errs.New(errs.InvalidArgument, "a deployment of new source needs the source")
		}
		b := app.NewBuild()
		b.ID, b.Project = schema.NewID(app.BuildKind.Prefix), a.Project
		b.Spec.App, b.Spec.Source, b.Spec.NoCache = a.GetID(), req.Source, req.NoCache
		dep.Spec.Build = b.GetID()
		objects = append(objects, b)
	default:
		if req.Target == "" {
			return nil, errs.New(errs.InvalidArgument, "a %s needs a version", req.Kind)
		}
	}
	l := app.NewDeployLease()
	l.Project, l.Name, l.Lease = a.Project, deployment.LeaseName(a.GetID()), lease
	l.Spec.App, l.Spec.Deployment = a.GetID(), dep.GetID()
	var ops []entity.Op
	for _, o := range append(objects, dep, l) {
		op, err := entity.CreateOp(o)
		if err != nil {
			return nil, err
		}
		ops = append(ops, op)
	}
	if req.Change != nil {
		if err := req.Change(a); err != nil {
			return nil, err
		}
		op, err := entity.UpdateSpecOp(a)
		if err != nil {
			return nil, err
		}
		ops = append(ops, op)
	}
	a.Status.ActiveDeployment = dep.GetID()
	op, err := entity.UpdateStatusOp(a)
	if err != nil {
		return nil, err
	}
	fault.Point("deployment", "accept", fault.Before)
	res, err := s.Store.Txn(ctx, entity.TxnRequest{RequestID: string(dep.ID), Ops: append(ops, op)})
	if err != nil {
		return nil, err
	}
	fault.Point("deployment", "accept", fault.After)
	for i := range res.Records {
		if res.Records[i].ID == dep.ID {
			dep.Meta = res.Records[i].Meta
		}
	}
	return dep, nil
}
