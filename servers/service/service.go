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
	err = entity.Create(ctx, s.Store, &core.Project{Meta: schema.Meta{Name: name}})
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
	a := &app.App{Meta: schema.Meta{Project: pid, Name: name}}
	return a, entity.Create(ctx, s.Store, a)
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

// DeleteApp deletes an app with everything that belongs to it; its sandboxes
// are torn down as their entities go.
func (s *Service) DeleteApp(ctx context.Context, project, name string) error {
	for {
		a, err := s.App(ctx, project, name)
		if err != nil {
			return err
		}
		// The active version restricts its own deletion while the app points to it.
		if a.Status.ActiveVersion != "" {
			a.Status.ActiveVersion = ""
			if err := entity.UpdateStatus(ctx, s.Store, a); errs.Is(err, errs.Conflict) {
				continue
			} else if err != nil {
				return err
			}
		}
		if err := entity.Delete(ctx, s.Store, a); !errs.Is(err, errs.Conflict) {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
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
// holds it) while another is under way.
func (s *Service) Deploy(ctx context.Context, a *app.App, req DeployRequest) (*app.Deployment, error) {
	if holder, err := deployment.LeaseOf(ctx, s.Store, a.GetID()); err == nil {
		return nil, leaseHeld(a, holder.Spec.Deployment)
	} else if !errs.Is(err, errs.NotFound) {
		return nil, err
	}
	lease, err := s.Store.Grant(ctx, deployment.LeaseTTL)
	if err != nil {
		return nil, err
	}
	dep, err := s.deploy(ctx, a, req, lease.ID)
	if err != nil {
		// Nothing was written, or it is not known: the lease lapses by itself
		// where it cannot be revoked now.
		if rerr := s.Store.Revoke(context.WithoutCancel(ctx), lease.ID); rerr != nil {
			s.Log.Warn("revoke lease of a refused deployment", "lease", string(lease.ID), "error", rerr)
		}
		if errs.Is(err, errs.AlreadyExists) {
			if holder, herr := deployment.LeaseOf(ctx, s.Store, a.GetID()); herr == nil {
				return nil, leaseHeld(a, holder.Spec.Deployment)
			}
		}
		return nil, err
	}
	return dep, nil
}

func leaseHeld(a *app.App, holder id.Deployment) error {
	return errs.New(errs.Conflict, "another deployment of %s is under way (%s)", a.Name, holder).
		With("lease", string(holder)).
		WithHint("wait for it (`r app status %s`), or stop it with `r app cancel %s`", a.Name, a.Name)
}

func (s *Service) deploy(ctx context.Context, a *app.App, req DeployRequest, lease schema.LeaseID) (*app.Deployment, error) {
	now := time.Now()
	dep := &app.Deployment{Meta: schema.Meta{ID: schema.NewID(app.DeploymentKind.Prefix), Project: a.Project}}
	dep.Spec = app.DeploymentSpec{
		App: a.GetID(), Kind: req.Kind, Target: req.Target, Message: req.Message, RequestedBy: req.RequestedBy, Git: req.Git,
	}
	dep.Status.Phase = app.DeploymentPhasePending
	dep.Status.StartedAt = &now
	var objects []schema.Object
	if req.Kind == app.RolloutKindDeploy {
		b := &app.Build{Meta: schema.Meta{ID: schema.NewID(app.BuildKind.Prefix), Project: a.Project}}
		b.Spec = app.BuildSpec{App: a.GetID(), Source: req.Source, NoCache: req.NoCache}
		b.Status.Phase = app.BuildPhasePending
		dep.Spec.Build = b.GetID()
		objects = append(objects, b)
	}
	objects = append(objects, dep, &app.DeployLease{
		Meta: schema.Meta{Project: a.Project, Name: deployment.LeaseName(a.GetID()), Lease: lease},
		Spec: app.DeployLeaseSpec{App: a.GetID(), Deployment: dep.GetID()},
	})
	var ops []entity.Op
	for _, o := range objects {
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
	_, err = s.Store.Txn(ctx, entity.TxnRequest{RequestID: string(dep.ID), Ops: append(ops, op)})
	return dep, err
}
